// SPDX-License-Identifier: Apache-2.0
//
// SpannedAttention: path fetch with partition token_range: rows attend here, over K and V of the
// spans of their sequences, which come from the memory nodes that have them, layer by layer. Their
// own k and v go to those that have the spans of their tokens, so that a lost compute node loses
// nothing, and windows without any to the others that send. Prompt chunks attend over the scratch
// KV.
//
// Threading: as AttentionPath. Allocation: per epoch; per step for who has which rows.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute_node/attention_path.h"
#include "compute_node/kv_sender.h"
#include "compute_node/scratch_attention.h"
#include "compute_node/spanned_kv.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"

namespace lamina::compute_node {

class SpannedAttention final : public AttentionPath {
 public:
  // `chunks` attends prompt chunks, `kernel` the other rows. References must outlive this.
  SpannedAttention(const WorkerContext& context, const ScratchAttention& chunks,
                   const kernels::AttentionKernel& kernel);

  uint64_t buffer_bytes() const override { return sender_.bytes() + kv_.buffer_bytes(); }
  absl::Status Open() override { return sender_.Open(); }
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status Attend(Lane& lane) override;
  // Every row's k and v have gone out, so somebody's reply is missing if anything is.
  bool Await(Lane& lane) override { return sender_.Await(lane); }
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;

 private:
  const WorkerContext& context_;
  ScratchAttention chunks_;
  KvSender sender_;
  SpannedKv kv_;
};

}  // namespace lamina::compute_node
