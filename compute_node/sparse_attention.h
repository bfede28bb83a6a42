// SPDX-License-Identifier: Apache-2.0
//
// SparseAttention: rows attend here, over K and V of some tokens, which are chosen layer by layer
// (policy fetch_sparse, ALISA; with policy fetch_heads and tokens that stay all of them are: ADR
// 0210) and come here from memory nodes. Rows of prompts attend to all tokens before them. k and v
// of all rows go to the memory nodes, so that a lost compute node loses nothing that answers are
// made of; sums of weights are made anew.
//
//   BeginStep   RecentTokens: room for rows;  TokenChoice: sets of tokens go out, for all layers
//   Attend      KvSender: k and v go out;  RecentTokens keeps them;  SparsePrompts: chunks attend
//   Poll        SparseKv: pieces come, rows attend, sums grow
//
// Threading: as AttentionPath. Allocation: as its parts.

#pragma once

#include <vector>

#include "compute_node/attention_path.h"
#include "compute_node/kv_sender.h"
#include "compute_node/sparse_form.h"
#include "compute_node/sparse_kv.h"
#include "compute_node/sparse_prompts.h"
#include "compute_node/sparse_sums.h"
#include "compute_node/token_choice.h"
#include "compute_node/weighed_attention.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"

namespace lamina::compute_node {

class SparseAttention final : public AttentionPath {
 public:
  // `kernel` attends the form that K and V have. References must outlive this.
  SparseAttention(const WorkerContext& context, const SparseMemory& memory,
                  const kernels::AttentionKernel& kernel);

  uint64_t buffer_bytes() const override { return sender_.bytes() + choice_.bytes(); }
  absl::Status Open() override;
  absl::Status Apply(const plan::StepPlan& plan) override;
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override { return sender_.Await(lane); }
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;

 private:
  const WorkerContext& context_;
  SparseSums sums_;
  WeighedAttention attention_;
  KvSender sender_;
  SparseForm form_;
  TokenChoice choice_;
  SparsePrompts prompts_;
  SparseKv kv_;
  std::vector<RowRun> runs_;  // Runs of the step that begins.
};

}  // namespace lamina::compute_node
