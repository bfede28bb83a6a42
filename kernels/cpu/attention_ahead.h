// SPDX-License-Identifier: Apache-2.0
//
// What a worker of attention asks for ahead of its reads
// (docs/adr/0082-two-streams-of-requests.md).

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/cpu/attention_internal.h"

namespace lamina::kernels::internal {

// Asks for a line into the second-level cache. On Zen 4 asking for the first level instead costs a
// third of the bandwidth (13.5 against 18.7 GB/s a core): its few miss buffers are then held for as
// long as DRAM takes. Highway's Prefetch cannot name a level.
inline __attribute__((always_inline)) void PrefetchLine(const void* line) {
  constexpr int kRead = 0;
  constexpr int kSecondLevel = 2;
  __builtin_prefetch(line, kRead, kSecondLevel);
}

// Asks for a line that will be added to: one request where another core has changed it, in place of
// one for its content and another to be the only one that has it. Compilers take that instruction
// on x86-64 in files of which kernels/CMakeLists.txt says so.
inline __attribute__((always_inline)) void PrefetchLineToWrite(const void* line) {
  constexpr int kWrite = 1;
  constexpr int kFirstLevel = 3;
  __builtin_prefetch(line, kWrite, kFirstLevel);
}

// Asks for every line, or for one of every two that are side by side.
enum class AskedLines : uint8_t { kAll, kFirstOfTwo };

// The processor brings the second of two lines by itself where tokens are read in one stream
// without pause. On Zen 4 one query row for each KV head then reads 4 to 16% more; several rows
// gain nothing, and those that take two tiles together lose a tenth and more (docs/lab/2026-11.md,
// attention).
template <AskedLines kAsked>
HWY_INLINE void PrefetchLineOf(const void* line) {
  constexpr uintptr_t kLineBytes = 64;
  if (kAsked == AskedLines::kAll || (reinterpret_cast<uintptr_t>(line) & kLineBytes) == 0) {
    PrefetchLine(line);
  }
}

// What to ask for while a phase of a block (scores, which read K; then values, which read V) walks
// its tokens.
//
// A worker reads K of a block, its V, K of its next block: one stream. It asks for lines in two:
// two tokens of either phase pay for one row of K and one of V. One stream of requests uses only
// part of what DRAM has; two overlap reading with arithmetic better
// (docs/performance.md#attention).
//
// With n tokens in the block, of which s have passed, the row asked for is (n + s + kLead) / 2 of
// the phase's own matrix and (s + kLead) / 2 of the other; behind the block's end, as far into the
// next block.
struct Ahead {
  // Tokens of a phase between the request of a block's last row and its use; that of the first row
  // comes up to a block earlier. 32 to 256 are alike on AVX2 (ADR 0082) and on Zen 4; the only
  // place that says it, for canonical attention and pairs.
  static constexpr uint32_t kLead = 64;
  static_assert(kLead % kRunTokens == 0, "rows are asked for in whole halves of groups");
  static constexpr uint32_t kGroups = kBlockTokens / kRunTokens;

  // By group of kRunTokens tokens: the first of kRunTokens / 2 rows, which are taken to follow each
  // other. Where they don't, some lines are asked for in vain.
  const uint16_t* own[kGroups];
  const uint16_t* other[kGroups];

  static Ahead OfScores(const Tile& tile, const Block& block) {
    return Ahead(block, Stream(block, tile.k, block.next_k), Stream(block, tile.v, block.next_v));
  }
  static Ahead OfValues(const Tile& tile, const Block& block) {
    // This block's K has all been asked for.
    Stream k(block, tile.k, block.next_k);
    k.passed = k.end - block.begin;
    return Ahead(block, Stream(block, tile.v, block.next_v), k);
  }

 private:
  // A matrix in this block and in the next.
  struct Stream {
    Stream(const Block& block, const BFloat16* matrix, const BFloat16* next_matrix)
        : rows(reinterpret_cast<const uint16_t*>(matrix)),
          offsets(block.offsets),
          end(block.end),
          next_rows(reinterpret_cast<const uint16_t*>(next_matrix)),
          next_offsets(block.next_offsets + block.next_begin),
          next_tokens(kBlockTokens - block.next_begin) {}

    const uint16_t* Row(uint32_t token) const {
      token += passed;
      return token < end ? rows + offsets[token]
                         : next_rows + next_offsets[std::min(token - end, next_tokens)];
    }

    const uint16_t* rows;
    const size_t* offsets;
    uint32_t end;
    const uint16_t* next_rows;
    const size_t* next_offsets;
    uint32_t next_tokens;
    uint32_t passed = 0;
  };

  Ahead(const Block& block, const Stream& mine, const Stream& others) {
    const uint32_t half = (block.end - block.begin) / 2;
    for (uint32_t group = block.begin / kRunTokens; group * kRunTokens < block.end; ++group) {
      const uint32_t passed = std::max(group * kRunTokens, block.begin) - block.begin;
      const uint32_t row = block.begin + (passed + kLead) / 2;
      own[group] = mine.Row(row + half);
      other[group] = others.Row(row);
    }
  }
};

}  // namespace lamina::kernels::internal
