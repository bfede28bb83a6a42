// SPDX-License-Identifier: Apache-2.0
//
// StreamingStream: the source that puts K and V into the windows of the compute node where some
// heads stream (path streaming): of these the first and the last tokens before a run of rows, of
// the others all (plan/streaming_tokens.h). Heads that are alike and follow each other are sent
// like a layer of their own, one range after the other.
//
// What comes is known when the step begins, so the stream runs ahead as far as windows go
// (piece_stream.h).
//
// Threading: the data thread. Allocation: in Open(), when a step begins, and for the ranges of a
// layer.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/extent.h"
#include "kernels/kv_device.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/fetch_pieces.h"
#include "plan/streaming_tokens.h"

namespace lamina::memory_node {

class StreamingStream final : public WorkSource {
 public:
  // References must outlive this.
  StreamingStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, kernels::KvReads& kv);

  // Registers what is put. Errors: the transport's, marked as its.
  absl::Status Open() override;
  void Close() override {}
  uint32_t share() const override { return 1; }
  // Takes part in a step with rows that attend over there, and leaves its units to others.
  absl::StatusOr<bool> TakeStep(Lane& lane) override;
  // The credits of lanes whose next window is still in use.
  void AppendAwaited(std::vector<transport::SignalCondition>& conditions) override;
  Nanos LookAt(Nanos now) const override;
  absl::Status Look() override;
  absl::Status Serve(size_t /*condition*/) override { return Look(); }

 private:
  // What heads of one kind send of the step's runs.
  struct Sent {
    std::vector<plan::FetchRun> runs;
    std::vector<RunTokens> tokens;
    void Clear() {
      runs.clear();
      tokens.clear();
    }
  };
  // Where one lane's stream is.
  struct Stream {
    bool active = false;                     // A step's, that has not been sent whole.
    Sent whole;                              // What heads send that see all tokens,
    Sent streamed;                           // and those that stream.
    std::vector<std::vector<Extent>> slots;  // The slots of the latter's tokens, by run.
    std::vector<plan::AlikeHeads> ranges;    // The layer's.
    size_t range = 0;                        // Next of these.
    PieceStream pieces;
  };

  bool MayPut(const Stream& stream) const { return stream.active && stream.pieces.MayPut(); }
  void BeginLayer(Stream& stream, uint32_t layer);
  void BeginRange(Stream& stream, uint32_t layer);
  absl::Status PutSome(Lane& lane, Stream& stream);

  const NodeEpoch& epoch_;
  StepFeed& feed_;
  kernels::KvReads& kv_;
  std::vector<Stream> streams_;  // [lanes]
  uint32_t next_lane_ = 0;       // Lanes take turns.
};

}  // namespace lamina::memory_node
