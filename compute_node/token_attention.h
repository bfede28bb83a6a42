// SPDX-License-Identifier: Apache-2.0
//
// TokenAttention: path recompute, where K and V of the first tokens of each sequence are made again
// from their numbers in every step, while those of the others come: as many as the step's plan
// says. Else as FetchAttention.
//
// While token_rows.h runs, pieces come: memory nodes send as far ahead as windows go. So a layer
// takes as long as the longer of both.
//
// Threading: as AttentionPath. Allocation: per epoch; per step for who has which rows.

#pragma once

#include <memory>
#include <vector>

#include "compute_node/attention_path.h"
#include "compute_node/fetched_kv.h"
#include "compute_node/kv_sender.h"
#include "compute_node/resident_activations.h"
#include "compute_node/scratch_attention.h"
#include "compute_node/token_rows.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"

namespace lamina::compute_node {

class TokenAttention final : public AttentionPath {
 public:
  // `chunks` attends prompt chunks, `kernel` the other rows, and tokens whose K and V are made.
  // References must outlive this.
  TokenAttention(const WorkerContext& context, const ScratchAttention& chunks,
                 const kernels::AttentionKernel& kernel)
      : context_(context),
        chunks_(chunks),
        sender_(context, plan::AttentionPath::kRecompute),
        none_resident_(context, /*arena=*/nullptr),
        tokens_(context, kernel),
        fetched_(MakeFetchedKv(context, plan::AttentionPath::kRecompute, kernel, none_resident_,
                               &tokens_)) {}

  absl::Status Prepare() override;
  uint64_t buffer_bytes() const override {
    return sender_.bytes() + tokens_.bytes() + fetched_->buffer_bytes();
  }
  absl::Status Open() override { return sender_.Open(); }
  absl::Status Apply(const plan::StepPlan& plan) override { return fetched_->Apply(plan); }
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override { return sender_.Await(lane); }
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;

 private:
  const WorkerContext& context_;
  ScratchAttention chunks_;
  KvSender sender_;
  const ResidentActivations none_resident_;
  TokenRows tokens_;
  const std::unique_ptr<FetchedKv> fetched_;
  std::vector<RowRun> runs_;  // Runs of the step that begins.
};

}  // namespace lamina::compute_node
