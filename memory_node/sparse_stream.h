// SPDX-License-Identifier: Apache-2.0
//
// SparseStream: the source that puts K and V of chosen tokens into the windows of the compute node
// where rows attend to them (path sparse). When a step begins the compute node says for every layer
// and sequence which tokens it wants (plan/token_sets.h); from then on the stream runs by itself,
// layer by layer (ahead_stream.h).
//
// The pieces are those of plan/fetch_pieces.h, as if the chosen tokens were all that there are: K
// and V of these lie one behind the other, and so plain attention reads them. Their form is that of
// the slots (chosen_tokens.h): where these are INT8, chosen tokens of closed blocks come as they
// are, with scales of K of each block that has one (docs/adr/0204-chosen-tokens-come-as-int8.md).
//
// Sets come from a peer: bits of tokens that the sequence does not have before the step end the
// epoch, and nothing is sent of the step. So do, with INT8, consecutive rows that do not attend to
// all tokens before them.
//
// Threading: the data thread. Allocation: in Open(), when a step begins, and when a layer's runs
// are cut more often than any before.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv_form.h"
#include "kernels/kv_device.h"
#include "memory_node/ahead_stream.h"
#include "memory_node/chosen_tokens.h"
#include "memory_node/node_epoch.h"
#include "memory_node/query_checks.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

class SparseStream final : public AheadStream {
 public:
  // `form`: that of the slots. References must outlive this.
  SparseStream(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed, UnitMeter& meter,
               kernels::KvReads& kv, KvForm form);

 private:
  // What a lane's step sends.
  struct Step {
    std::unique_ptr<ChosenTokens> chosen;  // The lane's.
    bool has_sets = false;                 // They have come from the compute node.
    std::vector<plan::FetchRun> rows;      // The step's.
    std::vector<uint64_t> sets;            // All layers', as they came.
    // The layer's rows with as many tokens before them as are chosen.
    std::vector<plan::FetchRun> runs;
  };

  bool Serves(plan::AttentionPath path) const override {
    return path == plan::AttentionPath::kSparse;
  }
  absl::Status Begin(const Lane& lane) override;
  absl::Status KeepTails(const Lane& lane, uint32_t layer) override {
    return steps_[lane.index].chosen->KeepTails(layer);
  }
  void BeginLayer(const Lane& lane, uint32_t layer) override;
  // The token sets, as long as there are none; then credits.
  transport::SignalCondition Awaited(const Lane& lane) const override;
  absl::StatusOr<bool> GoOn(Lane& lane) override;
  absl::Status TakeSets(const Lane& lane, Step& step);

  const QueryChecks& checks_;
  std::vector<Step> steps_;  // [lanes]
};

}  // namespace lamina::memory_node
