// SPDX-License-Identifier: Apache-2.0
#include "compute_node/heads_formula.h"

#include <algorithm>

#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/kv_form.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_pieces.h"
#include "policy/fetch_heads.h"

namespace lamina::compute_node {
namespace {

// The most KV heads of the layer that may come together from one memory node.
uint32_t HeadsOfAPiece(const plan::EpochConfig& config, const AttentionDescriptor& layer) {
  uint32_t heads = 0;
  for (uint32_t node = 0; node < config.memory_nodes.size(); ++node) {
    heads = std::max(heads, plan::HeadsOf(config, layer, node).count);
  }
  return config.fetch_heads == 0 ? heads : std::min(heads, config.fetch_heads);
}

uint64_t PaperActivationBytes(const model::ModelConfig& model) {
  return policy::ActivationBytes(
      {.row = model.width,
       .hidden = uint64_t{model.ffn_width} * std::max(1u, model.experts_per_token),
       .element_bytes = sizeof(BFloat16)});
}

}  // namespace

telemetry::FormulaMemory FormulaOf(const plan::EpochConfig& config, const model::ModelConfig& model,
                                   uint64_t weights) {
  if (!config.attention_paths.fetch() || config.activation_width > 0 || config.int8_tails > 0 ||
      config.made_tokens_max > 0) {
    return {};
  }
  const auto nodes = static_cast<uint32_t>(config.memory_nodes.size());
  telemetry::FormulaMemory most;
  for (const AttentionDescriptor& layer : config.layers) {
    const policy::HeadsProfile profile{.weights = weights,
                                       .kv_heads = HeadsOfAPiece(config, layer),
                                       .head_token = KvHeadBytes(layer.head_dim, KvForm::kBF16),
                                       .chunk_token = PaperActivationBytes(model),
                                       .buffers = 2 * config.lanes * nodes};
    policy::HeadsUse use{.tokens = plan::FetchRun::WholeTiles(plan::RunTokensMax(config))};
    // Windows hold K and V alone.
    const uint64_t windows = profile.buffers * plan::FetchWindowBytes(config);
    use.group = policy::LargestGroup(profile, weights + windows, use);
    use.chunk_tokens = uint64_t{config.lanes} * plan::StepRowsMax(config);
    const policy::HeadsMemory memory = policy::MemoryOf(profile, use);
    // Layers take turns in the windows: the one that takes most of them counts.
    if (memory.kv > most.windows) {
      most = {.weights = memory.weights,
              .windows = memory.kv,
              .activations = memory.activations,
              .heads = use.group};
    }
  }
  return most;
}

}  // namespace lamina::compute_node
