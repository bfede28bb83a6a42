// SPDX-License-Identifier: Apache-2.0
//
// KvStream: the source that puts K and V of a step's sequences into the windows of the compute node
// where they are attended (paths fetch and recompute), layer by layer, in the pieces of
// plan/fetch_pieces.h.
//
// What a layer needs from here is the tokens before the step, all of which are stored when the step
// begins: so the stream does not wait for the step's own rows, and runs ahead as far as windows go
// (piece_stream.h). Tokens that come as activations (plan/fetch_split.h) go ahead of the K and V of
// the others.
//
// Threading: the data thread. Allocation: in Open(), and when a step begins.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kv_device.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/attention_paths.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

class KvStream final : public WorkSource {
 public:
  // What is sent: of an epoch that keeps no activations K and V alone.
  struct Stored {
    kernels::KvReads& kv;
    kernels::KvActivations* activations = nullptr;
    bool int8 = false;  // Slots are.
  };

  // Whether it sends what rows of the path read.
  static bool Serves(plan::AttentionPath path) {
    return path == plan::AttentionPath::kFetch || path == plan::AttentionPath::kRecompute;
  }

  // References must outlive this.
  KvStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, const Stored& stored);

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
  // Where one lane's stream is.
  struct Stream {
    bool active = false;  // A step's, that has not been sent whole.
    std::vector<plan::FetchRun> runs;
    std::vector<RunTokens> kv;  // By run.
    std::vector<RunTokens> activations;
    std::vector<Int8RunTokens> int8;  // In place of both.
    std::vector<TailCopy> copies;     // One for each run that needs it.
    PieceStream pieces;
  };

  bool MayPut(const Stream& stream) const { return stream.active && stream.pieces.MayPut(); }
  absl::Status TakeInt8(const Lane& lane, Stream& stream);
  absl::Status PutPart(Lane& lane, Stream& stream);
  absl::Status PutSome(Lane& lane, Stream& stream);

  const NodeEpoch& epoch_;
  StepFeed& feed_;
  const Stored stored_;
  std::vector<Stream> streams_;  // [lanes]
  uint32_t next_lane_ = 0;       // Lanes take turns.
};

}  // namespace lamina::memory_node
