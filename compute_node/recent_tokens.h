// SPDX-License-Identifier: Apache-2.0
//
// RecentTokens: which of the most recent tokens of each sequence stay on the compute node, so that
// their K and V need not come from memory nodes again (path sparse; alisa.txt V-A, phases I and
// II). Memory nodes have all tokens too: a lost compute node loses nothing. A class for each form
// of K and V: resident_kv.h and resident_int8.h.
//
//   Apply(plan)            who leaves, or joins, has none
//   BeginStep(lane, runs)  room for the rows of the step
//   First(), WordOf()      what is here of the tokens before them, until the lane's next step
//   Store(lane, ...)       once a layer
//
// Threading: the data thread.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "compute_node/step_layout.h"
#include "kernels/matrix_view.h"
#include "plan/fetch_pieces.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class RecentTokens {
 public:
  virtual ~RecentTokens() = default;

  virtual void Apply(const plan::StepPlan& plan) = 0;

  // These runs of the lane's step are next, each of one sequence; those of one sequence follow each
  // other, in any order.
  virtual void BeginStep(uint32_t lane, absl::Span<const RowRun> runs) = 0;

  // The tokens of the sequence from this one on, up to the first row of its run, are here. No less
  // than `before`, the tokens in front of that, where none is.
  virtual uint32_t First(plan::SequenceId id, uint32_t before) const = 0;

  // How memory nodes are told of these tokens of the run, all from First() on that are attended
  // (plan/token_sets.h).
  virtual uint64_t WordOf(const plan::FetchRun& run, absl::Span<const uint64_t> kept) const = 0;

  // Keeps k and v of the rows of the lane's step.
  // Shapes: qkv  [rows of the step, q | k | v], of the layer
  virtual void Store(uint32_t lane, uint32_t layer, const kernels::MatrixView<BFloat16>& qkv) = 0;
};

}  // namespace lamina::compute_node
