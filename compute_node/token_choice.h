// SPDX-License-Identifier: Apache-2.0
//
// TokenChoice: path sparse: when a step begins, chooses for each run of rows and each layer of
// which tokens K and V come, and says so to the memory nodes (plan/token_sets.h). Rows of prompts
// attend to all tokens; others to those that the pattern names, of which window sums know the rows
// up to the step before.
//
// Where heads are spread over memory nodes each of them is told the same.
//
// Tokens that are chosen and stay here (recent_tokens.h) are in no set: memory nodes are told how
// many these are.
//
// Threading: the data thread. Allocation: per epoch, and per step for who has which runs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compute_node/lane.h"
#include "compute_node/recent_tokens.h"
#include "compute_node/sparse_sums.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "plan/fetch_pieces.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {

class TokenChoice {
 public:
  // References must outlive this.
  TokenChoice(const WorkerContext& context, SparseSums& sums, const RecentTokens& resident);

  // Sets of tokens of all lanes.
  uint64_t bytes() const;

  // Registers what puts are made from. Errors: the transport's, marked as its.
  absl::Status Open();

  // These runs of the lane's step attend here, each of one sequence, and there is room for them
  // (RecentTokens::BeginStep()).
  // Errors: as Peers::Put(); kInternal  more of them than sequences may have rows.
  absl::Status BeginStep(const Lane& lane, absl::Span<const RowRun> runs);

  // What comes from one memory node in the lane's step.
  struct Part {
    std::vector<RowRun> rows;
    std::vector<plan::FetchRun> runs;  // One for each of `rows`, with all tokens before them.
    size_t first_word = 0;             // Where its sets begin,
    plan::TokenSets sets;              // and lie.
  };
  const Part& part(const Lane& lane, uint32_t node) const { return lanes_[lane.index].nodes[node]; }
  // The tokens of one of its runs in a layer: those that come, and those behind them that stay
  // here, with the word that tells of these (RecentTokens::WordOf()).
  absl::Span<const uint64_t> Set(const Lane& lane, uint32_t node, uint32_t layer,
                                 uint32_t run) const {
    return In(lanes_[lane.index].staged, lane, node, layer, run);
  }
  absl::Span<const uint64_t> KeptSet(const Lane& lane, uint32_t node, uint32_t layer,
                                     uint32_t run) const {
    return In(lanes_[lane.index].kept, lane, node, layer, run);
  }
  uint64_t Kept(const Lane& lane, uint32_t node, uint32_t layer, uint32_t run) const {
    const Part& of = part(lane, node);
    return lanes_[lane.index].staged[of.first_word + of.sets.KeptOf(layer, run)];
  }

 private:
  struct LaneState {
    std::vector<Part> nodes;  // [memory nodes]
    // Windows as they are put, one behind the other. Sources of puts until the step's pieces come.
    std::vector<uint64_t> staged;
    std::vector<uint64_t> kept;  // As `staged`, of the tokens that stay here.
  };

  absl::Span<const uint64_t> In(const std::vector<uint64_t>& words, const Lane& lane, uint32_t node,
                                uint32_t layer, uint32_t run) const {
    const Part& of = part(lane, node);
    return absl::MakeConstSpan(words).subspan(of.first_word + of.sets.SetOf(layer, run),
                                              of.sets.words());
  }
  void Choose(uint32_t layer, const RowRun& run, absl::Span<uint64_t> set);
  // Sets of all layers of the runs of one of the lane's parts.
  void ChooseAll(const Part& part, LaneState& state);
  absl::Status Put(const Lane& lane, uint32_t node);

  const WorkerContext& context_;
  SparseSums& sums_;
  const RecentTokens& resident_;
  std::vector<LaneState> lanes_;
  std::vector<uint32_t> order_;  // Working memory of a choice.
};

}  // namespace lamina::compute_node
