// SPDX-License-Identifier: Apache-2.0
//
// ScratchSpace: which part of the compute node's scratch KV belongs to which prompt in prefill, or
// of its places for activations that stay to which sequence. First fit, one contiguous range for
// each.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "common/extent.h"

namespace lamina::core {

class ScratchSpace {
 public:
  explicit ScratchSpace(uint32_t tokens) : tokens_(tokens) {}

  // Offsets are multiples of it: kernels hold K in tiles of so many places.
  static constexpr uint32_t kAlignment = 16;

  // The offset of `tokens` consecutive places; nothing when no gap is wide enough.
  // Requires: tokens > 0.
  std::optional<uint32_t> Take(uint32_t tokens);

  // Requires: the range was taken at this offset.
  void Free(uint32_t offset);

  bool empty() const { return taken_.empty(); }
  const std::map<uint32_t, uint32_t>& taken() const { return taken_; }  // offset -> tokens

 private:
  uint32_t tokens_;
  std::map<uint32_t, uint32_t> taken_;
};

}  // namespace lamina::core
