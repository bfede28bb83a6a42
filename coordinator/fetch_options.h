// SPDX-License-Identifier: Apache-2.0
//
// FetchOptions: what a policy that fetches K and V asks of an epoch: windows at the compute node,
// and what memory nodes keep in addition. Without any it attends elsewhere.
//
// Threading: plain values.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/dtype.h"
#include "common/sparse_tokens.h"
#include "common/streaming_heads.h"
#include "plan/attention_paths.h"
#include "plan/slot_kinds.h"

namespace lamina::coordinator {

// Policy fetch_hybrid: which share of a memory node's slots holds activations, in
// plan::SlotKinds::kUnit-ths.
struct HybridOptions {
  uint32_t share = 0;      // As configured, or the first epoch's.
  bool automatic = false;  // By measured times, once there are any.
  // There are bytes for activations on the compute node, and K and V would take no more.
  bool keeps_nothing = false;
  // Among several policies: of a memory node's bytes so many per cent are for its slots, and the
  // rest for those of the others. 0: it has all.
  uint32_t percent = 0;
  friend bool operator==(const HybridOptions&, const HybridOptions&) = default;
};

struct FetchOptions {
  // Rows attend at the compute node, over K and V that memory nodes send into windows of so many
  // bytes in all. 0: no policy fetches.
  uint64_t bytes = 0;
  uint32_t heads = 0;  // EpochConfig::fetch_heads
  // Policies fetch_recompute and fetch_hybrid: elements of a token's activation. Else 0.
  uint32_t activation_width = 0;
  // Policies fetch_recompute and fetch_hybrid: EpochConfig::resident_tokens. Else 0.
  uint32_t resident_tokens = 0;
  // Policy fetch_recompute from token numbers: EpochConfig::made_tokens_max. Else 0.
  uint32_t made_tokens_max = 0;
  // Policy fetch_sparse: of EpochConfig; fetch_heads with tokens that stay: all of them. Else 0.
  SparseTokens sparse_tokens = SparseTokens::kWindowSums;
  double sparse_ratio = 0;
  StreamingHeads streaming = {};  // Policy fetch_heads: the heads that stream. Else none.
  std::optional<HybridOptions> hybrid = {};  // Policy fetch_hybrid.
};

// The path of rows in epochs of one such policy whose K and V are on memory nodes.
inline plan::AttentionPath PathOnMemoryNodes(const FetchOptions& fetch) {
  if (fetch.hybrid.has_value()) {
    return plan::AttentionPath::kHybrid;
  }
  if (fetch.activation_width > 0 || fetch.made_tokens_max > 0) {
    return plan::AttentionPath::kRecompute;
  }
  return fetch.sparse_ratio > 0     ? plan::AttentionPath::kSparse
         : !fetch.streaming.empty() ? plan::AttentionPath::kStreaming
         : fetch.bytes > 0          ? plan::AttentionPath::kFetch
                                    : plan::AttentionPath::kRemote;
}

// Bytes of the activations of one token, in all layers; 0 where none are kept.
inline uint64_t ActivationBytesPerToken(const FetchOptions& fetch, size_t layers) {
  return layers * uint64_t{fetch.activation_width} * sizeof(BFloat16);
}

// Bytes that a memory node has room for in a token's slot, of whose K and V are `kv` bytes: those,
// and where policy fetch_recompute is the only one, or one of several, the activations that they
// were made from; under fetch_hybrid one of them.
inline uint64_t SlotBytes(const FetchOptions& fetch, size_t layers, uint64_t kv) {
  const uint64_t activations = ActivationBytesPerToken(fetch, layers);
  return fetch.hybrid.has_value() ? std::max(kv, activations) : kv + activations;
}

// So many slots or more that a node may have: those of two kinds are whole blocks.
inline uint32_t WholeSlots(const FetchOptions& fetch, uint32_t slots) {
  const uint32_t block = fetch.hybrid.has_value() ? plan::SlotKinds::kBlockSlots : 1;
  return (slots + block - 1) / block * block;
}

// Partition head: what of that one KV head of `kv_heads` takes besides its K and V: its part of an
// activation (plan/activation_part.h), or by how much that is more than they are. At most: parts
// are whole elements.
inline uint64_t HeadBytesBesidesKv(const FetchOptions& fetch, size_t layers, uint64_t kv,
                                   uint32_t kv_heads) {
  const uint64_t elements = (uint64_t{fetch.activation_width} + kv_heads - 1) / kv_heads;
  const uint64_t activations = layers * elements * sizeof(BFloat16);
  return fetch.hybrid.has_value() ? activations - std::min(activations, kv / kv_heads)
                                  : activations;
}

}  // namespace lamina::coordinator
