// SPDX-License-Identifier: Apache-2.0
//
// RowPieces: how the rows of one attention layer of a step, for one memory node, are cut into
// pieces that travel one after the other, and which signal value announces which piece. Both ends
// cut the same way.
//
// Determinism: pure functions.

#pragma once

#include <algorithm>
#include <cstdint>

#include "common/attention_descriptor.h"

namespace lamina::plan {

// The most sub-batches of one unit for one memory node. Signal values leave room for so many.
inline constexpr uint32_t kSubBatchesMax = 16;

// How a step's rows are cut, for each memory node. With `query_first` the queries of the first
// chunk leave by themselves, ahead of their k and v: attention over blocks that are full starts
// with them.
struct Chunking {
  uint32_t chunks = 1;  // At most.
  bool by_heads = false;
  bool query_first = false;
  friend bool operator==(const Chunking&, const Chunking&) = default;
};

// The first row, or head, of a chunk; of chunk `chunks` their number. Requires: chunk <= chunks.
inline uint32_t FirstOf(uint32_t chunk, uint32_t chunks, uint32_t count) {
  return static_cast<uint32_t>(uint64_t{count} * chunk / chunks);
}

// The pieces of one unit for one memory node: one, with a signal value, for each chunk, and with
// `query_first` one for these queries.
struct RowPieces {
  uint32_t rows = 0;
  uint32_t kv_heads = 1;
  uint32_t chunks = 1;
  bool by_heads = false;
  bool query_first = false;

  uint32_t count() const { return chunks + (query_first ? 1 : 0); }
  // How often rows come, each time with other heads.
  uint32_t head_groups() const { return by_heads ? chunks : 1; }
  // The rows and KV heads of a chunk. Requires: chunk <= chunks.
  uint32_t FirstRow(uint32_t chunk) const { return by_heads ? 0 : FirstOf(chunk, chunks, rows); }
  uint32_t RowsEnd(uint32_t chunk) const { return by_heads ? rows : FirstRow(chunk + 1); }
  HeadRange Heads(uint32_t chunk) const {
    const uint32_t first = by_heads ? FirstOf(chunk, chunks, kv_heads) : 0;
    const uint32_t end = by_heads ? FirstOf(chunk + 1, chunks, kv_heads) : kv_heads;
    return {.first = first, .count = end - first};
  }
};

// So many rows of so many KV heads, in no more chunks than planned, none of them empty. No rows are
// one chunk.
inline RowPieces PiecesOf(const Chunking& planned, uint32_t rows, uint32_t kv_heads) {
  const bool ahead = planned.query_first && rows > 0;
  const bool by_heads = planned.by_heads && rows > 0;
  const uint32_t most = kSubBatchesMax - (ahead ? 1 : 0);
  return {.rows = rows,
          .kv_heads = kv_heads,
          .chunks = std::clamp(std::min(planned.chunks, by_heads ? kv_heads : rows), 1u, most),
          .by_heads = by_heads,
          .query_first = ahead};
}

// Signal values. Unit u has (u - 1) * kSubBatchesMax + 1 to u * kSubBatchesMax; 0 is before all.
inline uint64_t UnitOf(uint64_t value) { return (value + kSubBatchesMax - 1) / kSubBatchesMax; }

// The signal value that announces piece `piece` of `pieces` of the unit whose last value is `last`.
inline uint64_t PieceValue(uint64_t last, uint32_t piece, uint32_t pieces) {
  return piece + 1 == pieces ? last : last - kSubBatchesMax + piece + 1;
}

// How many pieces of its unit are there when a word shows `value`. Requires: value > 0.
inline uint32_t PiecesHere(uint64_t value, uint32_t pieces) {
  const auto shown = static_cast<uint32_t>((value - 1) % kSubBatchesMax + 1);
  return shown == kSubBatchesMax ? pieces : std::min(shown, pieces);
}

}  // namespace lamina::plan
