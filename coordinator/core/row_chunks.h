// SPDX-License-Identifier: Apache-2.0
//
// Row chunks: the rows of a lane that go to one memory node leave in several chunks, one signal
// step each, so that attention starts on the first while the others are on their way, and outputs
// leave chunk by chunk. The plan of a step says how many; both ends cut the rows the same way.
// Which chunk a row is in changes none of its bits.
//
// How many: each chunk beyond the first costs a message each way; C chunks hide all but a C-th of
// the shorter of transfer and attention behind the other.
//
// Determinism: pure functions.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/query_first.h"

namespace lamina::core {

// Of the rows of one unit for one memory node. Signal values leave room for so many.
inline constexpr uint32_t kRowChunksMax = 16;

// How the rows of one unit for one memory node are cut. With `query_first` the queries of the first
// chunk leave by themselves, ahead of their k and v: attention over blocks that are full starts
// with them. So there is a piece, with a signal value, for each chunk, and one for these queries.
struct RowPieces {
  uint32_t chunks = 1;
  bool query_first = false;

  uint32_t count() const { return chunks + (query_first ? 1 : 0); }
};

// At most `planned` chunks, none of them empty. No rows are one chunk.
inline RowPieces PiecesOf(uint32_t planned, bool query_first, uint32_t rows) {
  const bool ahead = query_first && rows > 0;
  return {.chunks = std::clamp(std::min(planned, rows), 1u, kRowChunksMax - (ahead ? 1 : 0)),
          .query_first = ahead};
}

// The first row of a chunk; of chunk `chunks` the number of rows. Requires: chunk <= chunks.
inline uint32_t FirstRowOf(uint32_t chunk, uint32_t chunks, uint32_t rows) {
  return static_cast<uint32_t>(uint64_t{rows} * chunk / chunks);
}

// Signal values. Unit u has (u - 1) * kRowChunksMax + 1 to u * kRowChunksMax; 0 is before all.
inline uint64_t UnitOf(uint64_t value) { return (value + kRowChunksMax - 1) / kRowChunksMax; }

// That announces piece `piece` of `pieces` of the unit whose last value is `last`.
inline uint64_t PieceValue(uint64_t last, uint32_t piece, uint32_t pieces) {
  return piece + 1 == pieces ? last : last - kRowChunksMax + piece + 1;
}

// How many pieces of its unit are there when a word shows `value`. Requires: value > 0.
inline uint32_t PiecesHere(uint64_t value, uint32_t pieces) {
  const auto shown = static_cast<uint32_t>((value - 1) % kRowChunksMax + 1);
  return shown == kRowChunksMax ? pieces : std::min(shown, pieces);
}

// What is known of the way between compute and memory nodes.
struct LinkCosts {
  double seconds_per_row = 0;      // q, k, v out and the output back, at the slowest link.
  double seconds_per_message = 0;  // One way, of an empty one.
  bool measured = false;           // Else the others mean nothing.
};

struct RowChunkOptions {
  uint32_t chunks = 1;     // As configured.
  bool automatic = false;  // Any number up to kRowChunksMax.
  QueryFirst query_first = QueryFirst::kNever;
};

// One layer of a lane: what its rows need of the link, the memory nodes and the replica.
struct RowChunkWork {
  uint32_t rows = 0;
  double attention_seconds = 0;
  double slice_seconds = 0;
};

struct RowChunkCount {
  uint32_t chunks = 1;
  bool query_first = false;
  std::string why;  // "8 chunks: 16 rows, 1.27 ms of link beside 1.90 ms of attention a layer,
                    // queries first"
};

// The number with the shortest layer; 1 while nothing is measured, and where the link takes less
// than a twentieth of a layer: there kAuto keeps k and v beside their queries, too.
RowChunkCount ChooseRowChunks(const RowChunkOptions& options, const LinkCosts& link,
                              const RowChunkWork& work);

}  // namespace lamina::core
