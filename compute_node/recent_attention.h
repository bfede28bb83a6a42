// SPDX-License-Identifier: Apache-2.0
//
// RecentAttention: policy fetch_heads with tokens that stay (path sparse where all tokens are
// attended, docs/adr/0210-fetched-heads-stay-as-named-tokens.md), in partition token_range: rows
// attend here, span by span, over K and V that come from the memory nodes of the spans, and over
// those of the most recent tokens, which are here. Rows of prompts attend over the scratch KV. k
// and v of all rows go to the memory nodes of their tokens' spans.
//
//   BeginStep   ResidentKv: room for rows;  SpannedKv: what comes;  RecentSets says so
//   Attend      KvSender: k and v go out;  ResidentKv keeps them;  SparsePrompts: chunks attend
//   Poll        SpannedKv: pieces come, rows attend
//
// Threading: as AttentionPath. Allocation: as its parts.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute_node/attention_path.h"
#include "compute_node/kv_sender.h"
#include "compute_node/recent_sets.h"
#include "compute_node/resident_activations.h"
#include "compute_node/resident_kv.h"
#include "compute_node/spanned_kv.h"
#include "compute_node/sparse_prompts.h"
#include "compute_node/sparse_sums.h"
#include "compute_node/step_layout.h"
#include "compute_node/weighed_attention.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {

class RecentAttention final : public AttentionPath {
 public:
  // `scratch` is for prompts, `resident` for tokens that stay, or null. References must outlive
  // this.  Requires: partition token_range, and a pattern that takes all tokens.
  RecentAttention(const WorkerContext& context, kernels::KvArena& scratch,
                  kernels::KvArena* resident, const kernels::AttentionKernel& kernel);

  absl::Status Prepare() override { return kv_.Prepare(); }
  uint64_t buffer_bytes() const override {
    return sender_.bytes() + sets_.bytes() + kv_.buffer_bytes();
  }
  absl::Status Open() override;
  absl::Status Apply(const plan::StepPlan& plan) override;
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override { return sender_.Await(lane); }
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;

 private:
  const WorkerContext& context_;
  SparseSums sums_;  // None are made: prompts are attended as on path sparse.
  WeighedAttention attention_;
  KvSender sender_;
  const ResidentActivations none_made_;
  ResidentKv recent_;
  SparsePrompts prompts_;
  SpannedKv kv_;
  RecentSets sets_;
  std::vector<RowRun> runs_;  // Runs of the step that begins.
};

}  // namespace lamina::compute_node
