// SPDX-License-Identifier: Apache-2.0
//
// StreamingStream: the source that puts K and V into the windows of the compute node where some
// heads stream (path streaming): of these the first and the last tokens before a run of rows, of
// the others all (plan/streaming_tokens.h). Heads that are alike and follow each other are sent
// like a layer of their own, one range after the other.
//
// What comes is known when the step begins (ahead_stream.h).
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
#include "memory_node/ahead_stream.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "plan/fetch_pieces.h"
#include "plan/streaming_tokens.h"

namespace lamina::memory_node {

class StreamingStream final : public AheadStream {
 public:
  // References must outlive this.
  StreamingStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, kernels::KvReads& kv);

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
  // What a lane's step sends.
  struct Step {
    Sent whole;                              // What heads send that see all tokens,
    Sent streamed;                           // and those that stream.
    std::vector<std::vector<Extent>> slots;  // The slots of the latter's tokens, by run.
    std::vector<plan::AlikeHeads> ranges;    // The layer's.
    size_t range = 0;                        // The one of these that is being sent.

    const Sent& sent() const { return ranges[range].streams ? streamed : whole; }
  };

  bool Serves(plan::AttentionPath path) const override {
    return path == plan::AttentionPath::kStreaming;
  }
  absl::Status Begin(const Lane& lane) override;
  void BeginLayer(const Lane& lane, uint32_t layer) override;
  absl::StatusOr<bool> GoOn(Lane& lane) override;
  void BeginRange(const Lane& lane, uint32_t layer);

  kernels::KvReads& kv_;
  std::vector<Step> steps_;  // [lanes]
};

}  // namespace lamina::memory_node
