// SPDX-License-Identifier: Apache-2.0
//
// StreamingAttention: rows attend here, over K and V that lie at memory nodes and come here layer
// by layer, where a file names KV heads that stream (headinfer.txt, Appendix D): of these the first
// and the last tokens come, of the others all. Own k and v go to the memory nodes, of all heads.
// Prompt chunks attend over the scratch KV.
//
// Answers are lossy, and follow from tokens and positions alone.
//
// Threading: as AttentionPath. Allocation: per epoch, when a step begins, and some words a layer.

#pragma once

#include <vector>

#include "compute_node/attention_path.h"
#include "compute_node/kv_sender.h"
#include "compute_node/streaming_kv.h"
#include "compute_node/streaming_prompts.h"
#include "compute_node/streaming_rows.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {

class StreamingAttention final : public AttentionPath {
 public:
  // References must outlive this.
  StreamingAttention(const WorkerContext& context, kernels::KvArena& scratch,
                     const kernels::AttentionKernel& kernel);

  uint64_t buffer_bytes() const override { return sender_.bytes(); }
  absl::Status Open() override { return sender_.Open(); }
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override { return sender_.Await(lane); }
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;

 private:
  const WorkerContext& context_;
  StreamingRows rows_;
  KvSender sender_;
  StreamingPrompts prompts_;
  StreamingKv kv_;
  std::vector<RowRun> runs_;  // Runs of the step that begins.
};

}  // namespace lamina::compute_node
