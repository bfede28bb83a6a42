// SPDX-License-Identifier: Apache-2.0
//
// SparseSums: what path sparse knows of each sequence: by layer, the sums of its last rows' weights
// (policy/fetch_sparse.h). A sequence that leaves, or is preempted, takes its sums along; when it
// joins again its prompt, and what it had generated, is a prompt whose last rows make new ones.
//
// A fork has its parent's sums, of the rows of the common prompt that the parent still has. Who has
// none (a prompt whose K and V were there already) begins with sums of 0: the earliest tokens
// besides the local ones.
//
// Threading: the data thread. Memory: grows with sequences; bounded by BytesMax().

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "compute_node/sequence_table.h"
#include "compute_node/step_layout.h"
#include "plan/epoch_config.h"
#include "plan/step_plan.h"
#include "policy/fetch_sparse.h"

namespace lamina::compute_node {

class SparseSums {
 public:
  // The configuration must outlive this. Requires: path sparse.
  explicit SparseSums(const plan::EpochConfig& config);

  const policy::SparsePattern& pattern() const { return pattern_; }
  // Whether weights are wanted at all.
  bool weighs() const { return pattern_.tokens == SparseTokens::kWindowSums; }

  void Apply(const plan::StepPlan& plan);

  // Before the first row of a run: a fork takes over what its parent has.
  void BeginRun(const Sequence& sequence, uint32_t first_token);

  // Requires: BeginRun(), or a chunk of the sequence.
  policy::WindowSums& Of(plan::SequenceId id, uint32_t layer);

  // The rows of a prompt attend to all tokens before them: those at positions below this one.
  static uint32_t DenseEnd(const Sequence& sequence);
  static bool IsDense(const Sequence& sequence, const RowRun& run) {
    return run.tokens > 1 || run.first_token < DenseEnd(sequence);
  }
  // How many of the run's rows, the last ones, have weights that a later row is chosen by.
  uint32_t Weighed(const Sequence& sequence, const RowRun& run) const;

  size_t sequences() const { return sequences_.size(); }
  uint64_t bytes() const;
  // The most that the epoch's sequences take, forks among them.
  static uint64_t BytesMax(const plan::EpochConfig& config);

 private:
  std::vector<policy::WindowSums>& Layers(plan::SequenceId id);

  const plan::EpochConfig& config_;
  const policy::SparsePattern pattern_;
  std::unordered_map<plan::SequenceId, std::vector<policy::WindowSums>> sequences_;
};

}  // namespace lamina::compute_node
