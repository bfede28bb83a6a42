// SPDX-License-Identifier: Apache-2.0
//
// KvStream: the source that puts K and V of a step's sequences into the windows of the compute node
// where they are attended (paths fetch and recompute), layer by layer, in the pieces of
// plan/fetch_pieces.h.
//
// What a layer needs from here is the tokens before the step, all of which are stored when the step
// begins (ahead_stream.h). Tokens that come as activations (plan/fetch_split.h) go ahead of the K
// and V of the others.
//
// Threading: the data thread. Allocation: in Open(), when a step begins, and for tails that rows
// are stored over before they have been sent.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kv_device.h"
#include "memory_node/ahead_stream.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "plan/attention_paths.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

class KvStream final : public AheadStream {
 public:
  // What is sent: of an epoch that keeps no activations K and V alone.
  struct Stored {
    kernels::KvReads& kv;
    kernels::KvActivations* activations = nullptr;
    bool int8 = false;  // Slots are.
  };

  // References must outlive this.
  KvStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, const Stored& stored);

 private:
  // What a lane's step sends.
  struct Step {
    std::vector<plan::FetchRun> runs;
    std::vector<RunTokens> kv;  // By run.
    std::vector<RunTokens> activations;
    std::vector<Int8RunTokens> int8;  // In place of both.
    std::vector<Extent> tails;        // By run.
    std::vector<TailCopy> copies;     // One for each run that passes its tail.
  };

  bool Serves(plan::AttentionPath path) const override {
    return path == plan::AttentionPath::kFetch || path == plan::AttentionPath::kRecompute ||
           path == plan::AttentionPath::kHybrid;
  }
  absl::Status Begin(const Lane& lane) override;
  void BeginLayer(const Lane& lane, uint32_t layer) override;
  absl::StatusOr<bool> GoOn(Lane& lane) override;
  absl::Status KeepTails(const Lane& lane, uint32_t layer) override;
  static void TakeInt8(const Lane& lane, Step& step);
  absl::Status PutPart(Lane& lane);

  const Stored stored_;
  std::vector<Step> steps_;  // [lanes]
};

}  // namespace lamina::memory_node
