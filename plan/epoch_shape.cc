// SPDX-License-Identifier: Apache-2.0
#include "plan/epoch_shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lamina::plan {

bool IsPrefillNode(const EpochConfig& config, const std::string& name) {
  const auto& nodes = config.compute_nodes;
  return std::find(nodes.end() - static_cast<std::ptrdiff_t>(config.prefill_nodes), nodes.end(),
                   name) != nodes.end();
}

EpochConfig OfShard(EpochConfig config, const ShardPart& shard) {
  if (shard.count == 1) {
    return config;
  }
  const HeadRange own{.first = shard.first_head, .count = shard.heads};
  for (AttentionDescriptor& layer : config.layers) {
    layer = PartOf(layer, own);
  }
  for (HeadRange& heads : config.heads) {
    heads = CommonHeads(heads, own);
    heads.first -= heads.count == 0 ? heads.first : own.first;
  }
  return config;
}

uint32_t KvWidthMax(const std::vector<AttentionDescriptor>& layers) {
  uint32_t widest = 0;
  for (const AttentionDescriptor& layer : layers) {
    widest = std::max(widest, static_cast<uint32_t>(layer.kv_width()));
  }
  return widest;
}

uint32_t QkvWidthMax(const std::vector<AttentionDescriptor>& layers) {
  uint32_t widest = 0;
  for (const AttentionDescriptor& layer : layers) {
    widest = std::max(widest, layer.qkv_width());
  }
  return widest;
}

std::string TransportUri(const EpochConfig& config, const std::string& verbs_uri) {
  absl::string_view in_front = config.transport;
  return absl::ConsumeSuffix(&in_front, "verbs://") ? absl::StrCat(in_front, verbs_uri)
                                                    : config.transport;
}

}  // namespace lamina::plan
