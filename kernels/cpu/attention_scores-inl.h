// SPDX-License-Identifier: Apache-2.0
//
// Scores of one block: q.k for every row of a tile and every token that it sees.
//
// A tile of K at a time, sixteen tokens, for up to kRows rows: a vector holds one element of as
// many tokens, the accumulators live in registers, K is widened once for all of these rows, and
// scores come out in the order of tokens.

// Included once for each instruction set, which is Highway's pattern.
#if defined(LAMINA_ATTENTION_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_ATTENTION_SCORES_INL_H
#undef LAMINA_ATTENTION_SCORES_INL_H
#else
#define LAMINA_ATTENTION_SCORES_INL_H
#endif

#include "hwy/highway.h"
#include "kernels/canonical_math.h"
#include "kernels/cpu/attention_ahead.h"
#include "kernels/cpu/attention_internal.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

// Two bf16 lie in a 32-bit word: the even element below, the odd one above.
template <class D>
struct Words {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  using D32 = hwy::HWY_NAMESPACE::RebindToUnsigned<D>;
  using D16 = hwy::HWY_NAMESPACE::Repartition<uint16_t, D>;
  using W = hwy::HWY_NAMESPACE::Vec<D32>;

  static HWY_INLINE W Load(const uint16_t* p) { return BitCast(D32(), LoadU(D16(), p)); }
  // The first half of a vector of words; zeros above.
  static HWY_INLINE W LoadHalf(const uint16_t* p) {
    const D16 d;
    return BitCast(D32(), MaskedLoad(FirstN(d, MaxLanes(d) / 2), d, p));
  }
  static HWY_INLINE V Even(W w) { return BitCast(D(), ShiftLeft<16>(w)); }
  static HWY_INLINE V Odd(W w) { return BitCast(D(), And(w, Set(D32(), 0xffff0000u))); }
};

template <class D>
struct Scores {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr size_t kVectors = kRunTokens / kN;  // Of a tile's tokens.
  static constexpr uint32_t kRows = 4;

  static void Run(const Tile& tile, const Block& block, Workspace& work) {
    const Ahead ahead = Ahead::OfScores(tile, block);
    const uint32_t rows = tile.rows();
    const uint32_t passes = (rows + kRows - 1) / kRows;
    for (uint32_t t = block.begin / kRunTokens * kRunTokens; t < block.end; t += kRunTokens) {
      const uint16_t* k = TileOf(tile, block, t, work);
      uint32_t row = 0;
      for (uint32_t pass = 0; pass < passes; ++pass) {
        // Rows spread evenly: 5 as 3 and 2.
        const uint32_t count = (rows - row) / (passes - pass);
        if (t + kRunTokens > SeenInBlock(tile, block, row).begin &&
            t < SeenInBlock(tile, block, row + count - 1).end) {
          const Pass p = {.k = k,
                          .own = ahead.own[t / kRunTokens],
                          .other = ahead.other[t / kRunTokens],
                          .q = work.q + size_t{row} * tile.padded_dim,
                          .scores = work.scores + size_t{row} * kScoreStride + t};
          RunRows(count, tile.head_dim, p, pass == 0);
        }
        row += count;
      }
    }
  }

 private:
  // One tile's tokens for a few rows.
  struct Pass {
    const uint16_t* k;
    const uint16_t* own;
    const uint16_t* other;
    const float* q;
    float* scores;
  };

  static constexpr size_t kLine = 32;  // Elements: those of one pair in a tile.

  // K of tokens t to t + 15 as one tile; those that the block has not may be anything.
  static const uint16_t* TileOf(const Tile& tile, const Block& block, uint32_t t, Workspace& work) {
    const auto* k = reinterpret_cast<const uint16_t*>(tile.k);
    const uint32_t begin = std::max(block.begin, t);
    if (IsTile(block, t)) {
      return k + block.offsets[begin] - size_t{begin % kRunTokens} * tile.head_dim;
    }
    auto* to = reinterpret_cast<uint16_t*>(work.k_tile);
    const uint32_t end = std::min(block.end, t + kRunTokens);
    for (uint32_t token = begin; token < end; ++token) {
      const size_t slot = block.offsets[token] / tile.head_dim;
      const uint16_t* from = k + OffsetInTiles(slot, 0, tile.head_dim);
      for (size_t place = 0; place < tile.head_dim / 2; ++place) {
        const size_t at = place * kLine + token % kRunTokens * 2;
        to[at] = from[place * kLine];
        to[at + 1] = from[place * kLine + 1];
      }
    }
    return to;
  }

  static HWY_INLINE void RunRows(uint32_t count, uint32_t head_dim, const Pass& p, bool first) {
    switch (count) {
      case 1:
        return RunSize<1>(head_dim, p, first);
      case 2:
        return RunSize<2>(head_dim, p, first);
      case 3:
        return RunSize<3>(head_dim, p, first);
      default:
        return RunSize<4>(head_dim, p, first);
    }
  }

  // The two commonest head sizes have loops of their own, unrolled. Later passes find K in the
  // cache, and have nothing to ask for.
  template <int kCount>
  static HWY_INLINE void RunSize(uint32_t head_dim, const Pass& p, bool first) {
    switch (head_dim) {
      case 64:
        return first ? RunTile<kCount, 64, true>(64, p) : RunTile<kCount, 64, false>(64, p);
      case 128:
        return first ? RunTile<kCount, 128, true>(128, p) : RunTile<kCount, 128, false>(128, p);
      default:
        return first ? RunTile<kCount, 0, true>(head_dim, p)
                     : RunTile<kCount, 0, false>(head_dim, p);
    }
  }

  // kDim: the head size if the compiler is to know it, else 0.
  template <int kCount, uint32_t kDim, bool kPrefetch>
  static HWY_NOINLINE void RunTile(uint32_t head_dim, const Pass& p) {
    const uint32_t dim = kDim != 0 ? kDim : head_dim;
    // (l0 + l2) + (l1 + l3), as canonical::SumScoreLanes.
    HWY_ALIGN float even_lanes[kCount * kRunTokens];
    HWY_ALIGN float odd_lanes[kCount * kRunTokens];
    Walk walk = {p.k, p.own, p.other};
    V sums[kCount][kVectors];
    Lane<kCount, kDim, kPrefetch>(dim, 0, p.q, walk, sums);
    Put(sums, even_lanes, kRunTokens);
    Lane<kCount, kDim, kPrefetch>(dim, 1, p.q, walk, sums);
    Put(sums, odd_lanes, kRunTokens);
    Lane<kCount, kDim, kPrefetch>(dim, 2, p.q, walk, sums);
    AddTo(sums, even_lanes);
    Put(sums, even_lanes, kRunTokens);
    Lane<kCount, kDim, kPrefetch>(dim, 3, p.q, walk, sums);
    AddTo(sums, odd_lanes);
    AddTo(sums, even_lanes);
    Put(sums, p.scores, kScoreStride);
  }

  struct Walk {
    const uint16_t* k;
    const uint16_t* next;  // Lines to ask for, in the order of each stream.
    const uint16_t* then;
  };

  // One lane of the scores of a tile's tokens. `walk` stands at the lane's first pair.
  template <int kCount, uint32_t kDim, bool kPrefetch>
  static HWY_INLINE void Lane(uint32_t head_dim, uint32_t lane, const float* q, Walk& walk,
                              V (&sums)[kCount][kVectors]) {
    const uint32_t dim = kDim != 0 ? kDim : head_dim;
    const size_t q_stride = (dim + 31) / 32 * 32;
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = Zero(D());
      }
    }
    const size_t chunks = dim / 32 + (dim % 32 != 0 && lane < 2 ? 1 : 0);
    q += 4 * lane;
#pragma GCC unroll 4
    for (size_t chunk = 0; chunk < chunks; ++chunk, q += 32) {
#pragma GCC unroll 4
      for (size_t pair = 0; pair < 4; ++pair) {
        if (kPrefetch) {
          // Else compilers ask for all lines at the front.
          __asm__ volatile("" : "+r"(walk.k), "+r"(walk.next));
          PrefetchLine(walk.next);
          const uint16_t* const after = walk.next + kLine;
          walk.next = walk.then;
          walk.then = after;
        }
        MultiplyAdd<kCount, false>(walk.k, q + pair, q_stride, sums);
        MultiplyAdd<kCount, true>(walk.k, q + pair + canonical::kLanes, q_stride, sums);
        walk.k += kLine;
      }
    }
  }

  // Adds the products of one element, the even or the odd one of a pair.
  template <int kCount, bool kOdd>
  static HWY_INLINE void MultiplyAdd(const uint16_t* words, const float* q, size_t q_stride,
                                     V (&sums)[kCount][kVectors]) {
    const D d;
    V k[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const auto pairs = Words<D>::Load(words + v * 2 * kN);
      k[v] = kOdd ? Words<D>::Odd(pairs) : Words<D>::Even(pairs);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const V query = Set(d, q[r * q_stride]);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = MulAdd(query, k[v], sums[r][v]);
      }
    }
  }

  template <int kCount>
  static HWY_INLINE void Put(const V (&sums)[kCount][kVectors], float* to, size_t stride) {
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        Store(sums[r][v], D(), to + r * stride + v * kN);
      }
    }
  }

  // sums = what was put at `from` + sums.
  template <int kCount>
  static HWY_INLINE void AddTo(V (&sums)[kCount][kVectors], const float* from) {
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = Add(Load(D(), from + r * kRunTokens + v * kN), sums[r][v]);
      }
    }
  }
};

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
