// SPDX-License-Identifier: Apache-2.0
//
// FetchAttention: rows attend here, over K and V that lie at memory nodes and come here layer by
// layer (HeadInfer: groups of KV heads through windows; KVPR, with path recompute, and HybridServe,
// with path hybrid: some tokens as activations, or made here from those that stay). Their
// own k and v go to the memory nodes, so that a lost compute node loses nothing: with partition
// token_range to those that have the spans of their tokens, and windows without any to the others
// that send. Prompt chunks attend over the scratch KV.
//
// The pieces of a layer may have come long before its slice runs: memory nodes send as far ahead
// as windows go.
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
#include "compute_node/worker_context.h"
#include "kernels/activation_arena.h"
#include "kernels/attention.h"

namespace lamina::compute_node {

class FetchAttention final : public AttentionPath {
 public:
  // The path `kind`, fetch or recompute. `chunks` attends prompt chunks, `kernel` the other rows.
  // `resident` is for activations that stay, or null. References must outlive this.
  FetchAttention(const WorkerContext& context, plan::AttentionPath kind,
                 const ScratchAttention& chunks, const kernels::AttentionKernel& kernel,
                 kernels::ActivationArena* resident)
      : context_(context),
        chunks_(chunks),
        sender_(context, kind),
        resident_(context, resident),
        fetched_(MakeFetchedKv(context, kind, kernel, resident_, /*kept=*/nullptr)) {}

  absl::Status Prepare() override { return fetched_->Prepare(); }
  uint64_t buffer_bytes() const override { return sender_.bytes() + fetched_->buffer_bytes(); }
  absl::Status Open() override { return sender_.Open(); }
  absl::Status Apply(const plan::StepPlan& plan) override { return fetched_->Apply(plan); }
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status WhileWeightsCome(Lane& lane) override { return fetched_->MakeAhead(lane); }
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override;
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;

 private:
  const WorkerContext& context_;
  ScratchAttention chunks_;
  KvSender sender_;
  ResidentActivations resident_;
  const std::unique_ptr<FetchedKv> fetched_;
  std::vector<RowRun> runs_;  // Runs of the step that begins.
};

}  // namespace lamina::compute_node
