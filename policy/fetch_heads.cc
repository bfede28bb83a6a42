// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_heads.h"

#include <algorithm>
#include <bit>

namespace lamina::policy {
namespace {

// What one head more takes: S_on (11) in each buffer.
uint64_t BytesOfAHead(const HeadsProfile& profile, uint64_t tokens) {
  return profile.buffers * (tokens * profile.head_token + profile.head_open);
}

// What is left of so many bytes.
uint64_t Rest(const HeadsProfile& profile, uint64_t budget, const HeadsUse& use) {
  const uint64_t taken = MemoryOf(profile, use).total();
  return budget > taken ? budget - taken : 0;
}

}  // namespace

uint64_t ActivationBytes(const ActivationWidths& widths) {
  return (widths.row + 2 * widths.hidden) * widths.element_bytes;
}

HeadsMemory MemoryOf(const HeadsProfile& profile, const HeadsUse& use) {
  return {.weights = profile.weights,
          .kv = use.group * BytesOfAHead(profile, use.tokens),
          .activations = use.chunk_tokens * profile.chunk_token};  // (A.3)
}

uint32_t LargestGroup(const HeadsProfile& profile, uint64_t budget, const HeadsUse& use) {
  const uint64_t rest =
      Rest(profile, budget, {.tokens = use.tokens, .chunk_tokens = use.chunk_tokens});
  return static_cast<uint32_t>(
      std::min<uint64_t>(profile.kv_heads, rest / BytesOfAHead(profile, use.tokens)));
}

uint64_t LargestChunk(const HeadsProfile& profile, uint64_t budget, const HeadsUse& use) {
  const uint64_t rest = Rest(profile, budget, {.tokens = use.tokens, .group = use.group});
  return std::bit_floor(rest / profile.chunk_token);
}

}  // namespace lamina::policy
