// SPDX-License-Identifier: Apache-2.0
#include "compute_node/scratch_kv.h"

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {

absl::Status ScratchKv::Reserve(const plan::EpochConfig& config, const plan::Stage& stage,
                                KvForm form) {
  first_layer_ = stage.first_layer;
  // Where prompts have nodes of their own, the others need no scratch.
  const bool prompts = config.prefill_nodes == 0 || plan::IsPrefillNode(config, node_);
  const auto layers = absl::MakeConstSpan(config.layers).subspan(stage.first_layer, stage.layers);
  const kernels::ChunkAttentionOptions options = {
      .layers = {layers.begin(), layers.end()},
      .arithmetic = config.attention.prefill,
      .slots = prompts ? config.scratch_tokens : 1,
      .context_tokens_max = prompts ? config.sequence_tokens_max : 1,
      .query_tokens_max = prompts ? config.chunk_tokens_max : 1,
      .int8 = form == KvForm::kInt8};
  if (kernel_ != nullptr && options_ == options) {
    return absl::OkStatus();
  }
  kernel_.reset();
  LAMINA_ASSIGN_OR_RETURN(kernel_, device_.MakeChunkAttention(options));
  options_ = options;
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
