// SPDX-License-Identifier: Apache-2.0
#include "compute_node/remote_path_maker.h"

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "compute_node/device_remote_attention.h"
#include "compute_node/remote_attention.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {

absl::Status RemotePathMaker::Reserve(const plan::EpochConfig& config, const plan::Stage& stage) {
  first_layer_ = stage.first_layer;
  // Where prompts have nodes of their own, the others need no scratch.
  const bool prompts = config.prefill_nodes == 0 || plan::IsPrefillNode(config, node_);
  const auto layers = absl::MakeConstSpan(config.layers).subspan(stage.first_layer, stage.layers);
  const kernels::ChunkAttentionOptions options = {
      .layers = {layers.begin(), layers.end()},
      .arithmetic = config.attention.prefill,
      .slots = prompts ? config.scratch_tokens : 1,
      .context_tokens_max = prompts ? config.sequence_tokens_max : 1,
      .query_tokens_max = prompts ? config.chunk_tokens_max : 1};
  if (chunks_ != nullptr && options_ == options) {
    return absl::OkStatus();
  }
  chunks_.reset();
  LAMINA_ASSIGN_OR_RETURN(chunks_, device_.MakeChunkAttention(options));
  options_ = options;
  return absl::OkStatus();
}

std::string RemotePathMaker::Describe() const {
  return absl::StrCat("scratch ", FormatBytes(chunks_->bytes()));
}

std::unique_ptr<AttentionPath> RemotePathMaker::Make(const WorkerContext& context) {
  auto by_host = std::make_unique<RemoteAttention>(context, *chunks_, first_layer_);
  if (device_.is_host()) {
    return by_host;
  }
  return std::make_unique<DeviceRemoteAttention>(context, std::move(by_host));
}

}  // namespace lamina::compute_node
