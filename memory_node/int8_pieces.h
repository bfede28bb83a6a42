// SPDX-License-Identifier: Apache-2.0
//
// Int8Pieces: what path fetch sends of sequences whose slots are INT8: closed blocks as they are,
// and bf16 of the open one (plan/fetch_pieces.h has where they lie in a piece).
//
// Threading: the data thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "kernels/kv_device.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_tables.h"

namespace lamina::memory_node {

// The slots of a sequence's tail.
inline Extent TailOf(const plan::SlotTables::Sequence& sequence) {
  return {.first_slot = sequence.tail * kInt8BlockTokens, .tokens = kInt8BlockTokens};
}

// Whether the run's rows fill the open block that they found, and go on: what was in it may be
// overwritten before it is sent.
inline bool PassesTail(const plan::FetchRun& run) {
  const uint32_t open = run.tail_fetched();
  return open > 0 && open + run.tokens > kInt8BlockTokens;
}

// The open block of a sequence as it was when a step began, in those layers whose rows of the step
// came before it had been sent: they fill it and go on in the same tail.
class TailCopy {
 public:
  // A step begins, with so many tokens in the tail. No layer is copied.
  void Begin(uint32_t tail_slot, uint32_t tokens);

  // Copies a layer, over the heads that are here, unless it has been. Errors: the device's.
  absl::Status Take(uint32_t layer, const AttentionDescriptor& part, kernels::KvReads& reads);
  bool Has(uint32_t layer) const { return layer < layers_.size() && layers_[layer].taken; }

  // Copies tokens of the tail, as KvReads::Load() does. Requires: Has(layer).
  void Load(uint32_t layer, uint32_t head, uint32_t first, uint32_t tokens, BFloat16* k,
            BFloat16* v) const;

 private:
  // Shapes: [kv_heads, 2, kInt8BlockTokens, head_dim], K in tiles
  struct Layer {
    bool taken = false;
    uint32_t head_dim = 0;
    std::vector<BFloat16> data;
  };
  uint32_t tail_slot_ = 0;
  uint32_t tokens_ = 0;
  std::vector<Layer> layers_;  // Up to the last one that has been taken in any step.
};

// Where a run has the tokens that come, in order.
struct Int8RunTokens {
  absl::Span<const Extent> slots;        // INT8.
  absl::Span<const Extent> scale_slots;  // All slots of the blocks of these.
  uint32_t hidden = 0;             // The first ones, which lie nowhere any more: no row sees them.
  absl::Span<const Extent> open;   // bf16, in the tail.
  const TailCopy* copy = nullptr;  // In place of the tail, in layers that it has.
};

// Gathers one piece of a layer. References must outlive this.
class Int8Gather {
 public:
  struct Runs {
    absl::Span<const plan::FetchRun> runs;
    absl::Span<const Int8RunTokens> tokens;  // By run.
  };
  // `data`: behind the header.
  Int8Gather(const plan::FetchPiece& piece, uint32_t layer, uint32_t head_dim, const Runs& runs,
             std::byte* data);

  // Tiles of slots that are sent, over the piece's heads: those behind the ones that the compute
  // node fills.
  size_t closed_tiles() const { return piece_.heads.count * (closed_slots() / kTile); }
  size_t scale_tiles() const { return piece_.heads.count * (scale_slots() / kTile); }
  size_t tail_tiles() const { return piece_.heads.count * (tail_slots() / kTile); }

  // INT8 of tiles [first, end), with scales of V. Slots without a token that lies here are zero:
  // what an earlier piece left there is another sequence's. Errors: the device's.
  absl::Status Closed(kernels::KvReads& reads, size_t first, size_t end) const;
  // Scales of K of tiles [first, end), the same.
  absl::Status Scales(kernels::KvReads& reads, size_t first, size_t end) const;
  // bf16 of tiles [first, end), the same.
  absl::Status Tails(kernels::KvReads& reads, size_t first, size_t end) const;

 private:
  static constexpr size_t kTile = plan::kFetchTile;

  // Slots of a head that are sent.
  size_t closed_slots() const { return piece_.int8_slots - piece_.filled; }
  size_t scale_slots() const { return piece_.scale_slots - piece_.filled_scales; }
  size_t tail_slots() const { return piece_.slots - piece_.filled_open; }
  // Where slot 0 of those that are sent would lie in the planes of the head, counted over the heads
  // as they are, had no head `filled` slots that the compute node fills.
  static size_t Skipped(uint32_t head, uint32_t filled) { return (head + size_t{1}) * filled; }

  const plan::FetchPiece& piece_;
  const uint32_t layer_;
  const size_t head_dim_;
  const Runs runs_;
  std::byte* const data_;
  const plan::FetchPlanes planes_;
};

}  // namespace lamina::memory_node
