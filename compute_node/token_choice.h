// SPDX-License-Identifier: Apache-2.0
//
// TokenChoice: path sparse: when a step begins, chooses for each run of rows and each layer of
// which tokens K and V come, and says so to the memory nodes (plan/token_sets.h). Rows of prompts
// attend to all tokens; others to those that the pattern names, of which window sums know the rows
// up to the step before.
//
// Threading: the data thread. Allocation: per epoch, and per step for who has which runs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compute_node/lane.h"
#include "compute_node/sparse_sums.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class TokenChoice {
 public:
  // References must outlive this.
  TokenChoice(const WorkerContext& context, SparseSums& sums);

  // Registers what puts are made from. Errors: the transport's, marked as its.
  absl::Status Open();

  // These runs of the lane's step attend here, each of one sequence. Errors: as Peers::Put().
  absl::Status BeginStep(const Lane& lane, absl::Span<const RowRun> runs);

  // What comes from one memory node in the lane's step.
  struct Part {
    std::vector<RowRun> rows;
    std::vector<plan::FetchRun> runs;  // One for each of `rows`, with all tokens before them.
    size_t first_word = 0;             // Where its sets begin.
    size_t words = 0;                  // Words of one set.
  };
  const Part& part(const Lane& lane, uint32_t node) const { return lanes_[lane.index].nodes[node]; }
  // The tokens of one of its runs in a layer.
  absl::Span<const uint64_t> Set(const Lane& lane, uint32_t node, uint32_t layer,
                                 uint32_t run) const;

 private:
  struct LaneState {
    std::vector<Part> nodes;  // [memory nodes]
    // Windows as they are put, one behind the other. Sources of puts until the step's pieces come.
    std::vector<uint64_t> staged;
  };

  void Choose(uint32_t layer, const RowRun& run, absl::Span<uint64_t> set);
  absl::Status Put(const Lane& lane, uint32_t node);

  const WorkerContext& context_;
  SparseSums& sums_;
  std::vector<LaneState> lanes_;
  std::vector<uint32_t> order_;  // Working memory of a choice.
};

}  // namespace lamina::compute_node
