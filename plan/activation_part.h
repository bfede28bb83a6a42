// SPDX-License-Identifier: Apache-2.0
//
// ActivationPart: which elements of a token's activation a memory node keeps and sends
// (docs/adr/0225-activations-are-spread-as-heads-are.md). Where its heads are some of a layer's
// (partition head) it has as large a part of the activation: links and memory share both alike.
//
// Threading: plain values, pure functions.

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/attention_descriptor.h"
#include "plan/epoch_config.h"

namespace lamina::plan {

// Elements [first, first + count).
struct ActivationPart {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const ActivationPart&, const ActivationPart&) = default;
};

// Those of `width` that go with these of a layer's KV heads. Parts of heads that follow each other
// do so too, and all of them together are the activation.   Requires: kv_heads > 0.
inline ActivationPart ActivationPartOf(uint32_t width, HeadRange heads, uint32_t kv_heads) {
  const auto before = [&](uint32_t head) {
    return static_cast<uint32_t>(uint64_t{width} * head / kv_heads);
  };
  const uint32_t first = before(heads.first);
  return {.first = first, .count = before(heads.first + heads.count) - first};
}

// The memory node's.
inline ActivationPart ActivationPartOf(const EpochConfig& config, uint32_t node) {
  return config.heads.empty() ? ActivationPart{.count = config.activation_width}
                              : ActivationPartOf(config.activation_width, config.heads[node],
                                                 config.layers[0].kv_heads);
}

// The largest of all memory nodes'.
inline uint32_t ActivationPartMost(const EpochConfig& config) {
  uint32_t most = 0;
  for (uint32_t node = 0; node < config.memory_nodes.size(); ++node) {
    most = std::max(most, ActivationPartOf(config, node).count);
  }
  return most;
}

}  // namespace lamina::plan
