// SPDX-License-Identifier: Apache-2.0
//
// FetchSplits: which of the tokens before a run of rows come, as K and V or as activations, and
// which are here (plan/fetch_split.h), as the compute node knows it from plans, or of K and V that
// it keeps by itself.
//
// Threading: the data thread. Allocation: when sequences join or get slots, and the answers.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute_node/sequence_table.h"
#include "compute_node/step_layout.h"
#include "plan/attention_paths.h"
#include "plan/epoch_config.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class ResidentKv;

class FetchSplits {
 public:
  virtual ~FetchSplits() = default;

  // A plan whose step begins. Errors: kInternal  it does not follow from the tables.
  virtual absl::Status Apply(const plan::StepPlan& plan) = 0;

  // Errors: kInternal  the plan does not fit the epoch, or the run not the tables.
  virtual absl::StatusOr<plan::FetchSplit> Of(const RowRun& run,
                                              const plan::StepPlan& plan) const = 0;

  // The split of those tokens that lie in the sequence's span of this number (plan::SplitBySpan()).
  // Requires: partition token_range.
  virtual absl::StatusOr<plan::FetchSplit> OfSpan(const RowRun& run, const plan::StepPlan& plan,
                                                  uint32_t span) const = 0;
};

// Path recompute: by the step's plan, of activations or of token numbers. Path hybrid: by the
// tokens' slots where some of these hold activations. Else all tokens come as K and V. The epoch's
// configuration and the table of the node's sequences must outlive it.
std::unique_ptr<FetchSplits> MakeFetchSplits(const plan::EpochConfig& config,
                                             plan::AttentionPath path, SequenceTable& sequences);

// Path sparse where all tokens are attended: those come that are not in `recent` once the step's
// rows have their room there. References must outlive it.
std::unique_ptr<FetchSplits> MakeRecentSplits(const plan::EpochConfig& config,
                                              const ResidentKv& recent);

}  // namespace lamina::compute_node
