// SPDX-License-Identifier: Apache-2.0
//
// Int8Arena: memory for K and V of closed blocks as INT8, in slots of its own, in all layers.
//
// Threading: the owner's. Memory: reserved and touched in Create(); nothing is allocated later.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/extent.h"
#include "kernels/arena_memory.h"
#include "kernels/attention.h"
#include "kernels/int8_kv.h"

namespace lamina::kernels {

class Int8Arena {
 public:
  // Errors: as KvArena::Create().
  static absl::StatusOr<Int8Arena> Create(absl::Span<const AttentionDescriptor> layers,
                                          uint32_t slots);

  uint32_t slots() const { return slots_; }
  uint64_t bytes() const { return memory_.bytes(); }

  // From KV head `head` on.
  Int8View View(uint32_t layer, uint32_t head = 0);

 private:
  struct Plane {  // Bytes from the memory's beginning.
    size_t k = 0;
    size_t v = 0;
    size_t k_scales = 0;
    size_t v_scales = 0;
    uint32_t head_dim = 0;
  };
  Int8Arena() = default;

  ArenaMemory memory_;
  uint32_t slots_ = 0;
  std::vector<Plane> planes_;
};

// Quantises one block of all heads of the attention: bf16 of its 64 tokens, in slots from
// `tail_slot` on, into the INT8 slots that `extents` name from their token `first` on.
// Requires: they name first + 64 tokens (CHECKed).
// Cost: some 2 ns an element.
void CloseInt8Block(const AttentionDescriptor& descriptor, const KvView& tail, size_t tail_slot,
                    absl::Span<const Extent> extents, uint32_t first, const Int8View& to);

// Copies INT8 and scales of tokens [first, first + tokens) of one KV head to slots of these numbers
// of `to`: k, v and v_scales where it has k, and k_scales where it has these. `extents` name the
// slots of the tokens. Whole tiles that lie alike are copied as they are.
// Requires: they name first + tokens tokens (CHECKed); views of the head.
void LoadInt8(uint32_t head_dim, const Int8View& from, absl::Span<const Extent> extents,
              uint32_t first, uint32_t tokens, const Int8View& to);

// The reverse: copies slots [first, first + tokens) of `from`, which has all four arrays, to those
// that `extents` name for tokens of these numbers. Cost: as UnloadKv().
void UnloadInt8(uint32_t head_dim, const Int8View& from, absl::Span<const Extent> extents,
                uint32_t first, uint32_t tokens, const Int8View& to);

}  // namespace lamina::kernels
