// SPDX-License-Identifier: Apache-2.0
#include "policy/layer_buffers.h"

#include <algorithm>
#include <cmath>

namespace lamina::policy {

uint64_t SplitBytes(const LayerToken& token, uint64_t tokens, uint64_t recomputed) {
  return recomputed * token.activation + (tokens - recomputed) * token.kv;
}

uint64_t MostSplitBytes(const LayerToken& token, uint64_t tokens) {
  return std::max(SplitBytes(token, tokens, 0), SplitBytes(token, tokens, tokens));
}

uint64_t HybridBytes(const LayerToken& token, const HybridTokens& tokens) {
  return static_cast<uint64_t>(
      std::ceil(tokens.activations * static_cast<double>(token.activation) +
                tokens.kv * static_cast<double>(token.kv)));
}

}  // namespace lamina::policy
