// SPDX-License-Identifier: Apache-2.0
//
// AttentionArithmetic: in which arithmetic attention is computed. In each a row's bits depend on
// that row alone; they are not each other's (docs/design/attention_numerics.md).

#pragma once

#include <cstdint>

namespace lamina {

enum class AttentionArithmetic : uint8_t {
  kCanonical,  // Gives the same bits everywhere.
  // Products run on tensor cores, with weights of values in bf16. Only CUDA devices have it.
  kTensor,
  // Products of pairs of bf16, with weights of values in bf16. Only processors have it, all with
  // the same bits.
  kPairs,
  // As kPairs, with sums in the order of AMX's tiles.
  kTiles,
  // Only a configuration has it, an epoch never: pairs or tiles where all nodes are fast at them.
  kAuto,
};

// Whether products are of bf16, on processors, with the same bits on all.
constexpr bool IsOfBf16(AttentionArithmetic arithmetic) {
  return arithmetic == AttentionArithmetic::kPairs || arithmetic == AttentionArithmetic::kTiles;
}

// The arithmetic of a cluster: for rows that decode, over the KV of memory nodes, and for chunks of
// prompts, over the scratch KV of compute nodes.
struct ClusterAttention {
  AttentionArithmetic decode = AttentionArithmetic::kCanonical;
  AttentionArithmetic prefill = AttentionArithmetic::kCanonical;

  // Whether the arithmetic of both is still to be chosen, for both together.
  bool automatic() const {
    return decode == AttentionArithmetic::kAuto && prefill == AttentionArithmetic::kAuto;
  }
  bool HasBf16() const { return IsOfBf16(decode) || IsOfBf16(prefill); }
  // Where one is named the other is canonical unless it is named, too.
  ClusterAttention Named() const {
    const auto named = [](AttentionArithmetic arithmetic) {
      return arithmetic == AttentionArithmetic::kAuto ? AttentionArithmetic::kCanonical
                                                      : arithmetic;
    };
    return automatic() ? *this
                       : ClusterAttention{.decode = named(decode), .prefill = named(prefill)};
  }

  friend bool operator==(const ClusterAttention&, const ClusterAttention&) = default;
};

}  // namespace lamina
