// SPDX-License-Identifier: Apache-2.0
#include "compute_node/memory_formula.h"

#include <algorithm>

#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/kv_form.h"
#include "plan/activation_part.h"
#include "plan/epoch_shape.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_kinds.h"
#include "policy/fetch_heads.h"
#include "policy/fetch_hybrid.h"
#include "policy/layer_buffers.h"

namespace lamina::compute_node {
namespace {

// KV heads of the layer that come from the memory node with most of them.
uint32_t HeadsMost(const plan::EpochConfig& config, const AttentionDescriptor& layer) {
  uint32_t heads = 0;
  for (uint32_t node = 0; node < config.memory_nodes.size(); ++node) {
    heads = std::max(heads, plan::HeadsOf(config, layer, node).count);
  }
  return heads;
}

// Two for each lane and memory node.
uint32_t BuffersOf(const plan::EpochConfig& config) {
  return 2 * config.lanes * static_cast<uint32_t>(config.memory_nodes.size());
}

uint64_t PaperActivationBytes(const model::ModelConfig& model) {
  return policy::ActivationBytes(
      {.row = model.width,
       .hidden = uint64_t{model.ffn_width} * std::max(1u, model.experts_per_token),
       .element_bytes = sizeof(BFloat16)});
}

// What K and V of a layer's longest sequence take in one head, and how many heads there are.
policy::HeadsProfile ProfileOf(const plan::EpochConfig& config, const AttentionDescriptor& layer) {
  const bool int8 = config.int8_tails > 0;
  const uint64_t bf16_bytes = KvHeadBytes(layer.head_dim, KvForm::kBF16);
  const uint32_t most = HeadsMost(config, layer);
  return {.kv_heads = config.fetch_heads == 0 ? most : std::min(most, config.fetch_heads),
          .head_token = int8 ? KvHeadBytes(layer.head_dim, KvForm::kInt8) : bf16_bytes,
          .head_open = int8 ? kInt8BlockTokens * bf16_bytes : 0,
          .buffers = BuffersOf(config)};
}

// Tokens of the longest sequence in whole tiles, or with INT8 in blocks that are closed once its
// next block is.
uint64_t ContextOf(const plan::EpochConfig& config) {
  const uint32_t tokens = plan::RunTokensMax(config);
  return config.int8_tails > 0 ? Int8TokensOf(tokens + kInt8BlockTokens - 1)
                               : plan::FetchRun::WholeTiles(tokens);
}

telemetry::FormulaMemory HeadInfer(const plan::EpochConfig& config, const model::ModelConfig& model,
                                   uint64_t weights) {
  telemetry::FormulaMemory formula;
  for (const AttentionDescriptor& layer : config.layers) {
    policy::HeadsProfile profile = ProfileOf(config, layer);
    profile.weights = weights;
    profile.chunk_token = PaperActivationBytes(model);
    policy::HeadsUse use{.tokens = ContextOf(config)};
    // Windows hold K and V alone.
    const uint64_t windows = profile.buffers * plan::FetchWindowBytes(config);
    use.group = policy::LargestGroup(profile, weights + windows, use);
    use.chunk_tokens = uint64_t{config.lanes} * plan::StepRowsMax(config);
    const policy::HeadsMemory memory = policy::MemoryOf(profile, use);
    // Layers take turns in the windows: the one that takes most of them counts.
    if (memory.kv > formula.windows) {
      formula = {.paper = telemetry::MemoryPaper::kHeadInfer,
                 .weights = memory.weights,
                 .windows = memory.kv,
                 .activations = memory.activations,
                 .heads = use.group};
    }
  }
  return formula;
}

// KVPR's where rows of path recompute are served, else HybridServe's.
telemetry::FormulaMemory WholeLayers(const plan::EpochConfig& config, uint64_t weights) {
  const bool splits = config.attention_paths.Has(plan::AttentionPath::kRecompute);
  const uint64_t tokens = ContextOf(config);
  const policy::HybridTokens kinds =
      policy::WithShare({}, static_cast<double>(tokens),
                        static_cast<double>(config.activation_share) / plan::SlotKinds::kUnit);
  uint64_t most = 0;
  for (const AttentionDescriptor& layer : config.layers) {
    const policy::LayerToken token{
        .activation = plan::ActivationPartMost(config) * sizeof(BFloat16),
        .kv = HeadsMost(config, layer) * KvHeadBytes(layer.head_dim, KvForm::kBF16)};
    most = std::max(
        most, splits ? policy::MostSplitBytes(token, tokens) : policy::HybridBytes(token, kinds));
  }
  return {.paper = splits ? telemetry::MemoryPaper::kKvpr : telemetry::MemoryPaper::kHybridServe,
          .weights = weights,
          .windows = BuffersOf(config) * most,
          .resident = uint64_t{config.resident_tokens} * config.layers.size() *
                      config.activation_width * sizeof(BFloat16)};
}

}  // namespace

telemetry::FormulaMemory FormulaOf(const plan::EpochConfig& config, const model::ModelConfig& model,
                                   uint64_t weights) {
  if (!config.attention_paths.fetch() || config.made_tokens_max > 0) {
    return {};
  }
  return config.activation_width > 0 ? WholeLayers(config, weights)
                                     : HeadInfer(config, model, weights);
}

}  // namespace lamina::compute_node
