// SPDX-License-Identifier: Apache-2.0
//
// ActivationArena: memory for the activations of tokens in all layers, in slots of its own.
//
// Layout: [layers, slots, width] bf16.
//
// Threading: the owner's. Memory: reserved and touched in Create(); nothing is allocated later.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "kernels/arena_memory.h"
#include "kernels/kv_device.h"

namespace lamina::kernels {

class ActivationArena final : public KvActivations {
 public:
  // Errors: as KvArena::Create().   Requires: width > 0.
  static absl::StatusOr<ActivationArena> Create(uint32_t layers, uint32_t slots, uint32_t width);

  uint64_t bytes() const { return memory_.bytes(); }
  uint32_t slots() const { return slots_; }

  // The activation that was stored last.
  const BFloat16* Row(uint32_t layer, uint32_t slot) const { return At(layer, slot); }

  absl::Status Store(uint32_t layer, absl::Span<const ActivationRows> rows) override;
  absl::Status Load(uint32_t layer, absl::Span<const Extent> extents, uint32_t first,
                    uint32_t tokens, BFloat16* to) override;

 private:
  ActivationArena(ArenaMemory memory, uint32_t slots, uint32_t width)
      : memory_(std::move(memory)), slots_(slots), width_(width) {}
  BFloat16* At(uint32_t layer, uint32_t slot) const {
    return reinterpret_cast<BFloat16*>(memory_.data()) + (size_t{layer} * slots_ + slot) * width_;
  }

  ArenaMemory memory_;
  uint32_t slots_;
  uint32_t width_;
};

}  // namespace lamina::kernels
