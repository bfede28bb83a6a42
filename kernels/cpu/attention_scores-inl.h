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
#include "kernels/cpu/attention_gather.h"
#include "kernels/cpu/attention_internal.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

// bf16 to floats: each gets zeros below. Of every eight, the first four go to one vector and the
// others to another, which takes one instruction each.
template <class D>
struct Halfwords {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  using D16 = hwy::HWY_NAMESPACE::Repartition<uint16_t, D>;
  using H = hwy::HWY_NAMESPACE::Vec<D16>;

  static HWY_INLINE H Load(const uint16_t* p) { return LoadU(D16(), p); }
  // The first half of a vector; zeros above.
  static HWY_INLINE H LoadHalf(const uint16_t* p) {
    const D16 d;
    return MaskedLoad(FirstN(d, MaxLanes(d) / 2), d, p);
  }
  static HWY_INLINE V First(H h) { return BitCast(D(), InterleaveLower(D16(), Zero(D16()), h)); }
  static HWY_INLINE V Second(H h) { return BitCast(D(), InterleaveUpper(D16(), Zero(D16()), h)); }
};

template <class D>
struct Scores {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr size_t kVectors = kRunTokens / kN;  // Vectors of a tile's tokens.
  static constexpr uint32_t kRows = 4;

  // Tokens between changes of rows, where those go in several passes: their K stays in the
  // first-level cache.
  static constexpr uint32_t kStretch = 64;

  static void Run(const Tile& tile, const Block& block, Workspace& work) {
    const Ahead ahead = Ahead::OfScores(tile, block);
    const uint32_t rows = tile.rows();
    const uint32_t passes = (rows + kRows - 1) / kRows;
    const uint32_t stretch = passes == 1 ? kBlockTokens : kStretch;
    for (uint32_t t = block.begin; t < block.end; t = t / stretch * stretch + stretch) {
      const uint32_t end = std::min(block.end, t / stretch * stretch + stretch);
      uint32_t row = 0;
      for (uint32_t pass = 0; pass < passes; ++pass) {
        // Rows spread evenly: 5 as 3 and 2.
        const uint32_t count = (rows - row) / (passes - pass);
        const Pass p = {
            .tile = tile,
            .block = block,
            .ahead = ahead,
            .work = work,
            .q = work.q + size_t{row} * tile.padded_dim,
            .scores = work.scores + size_t{row} * kScoreStride,
            .begin = std::max(t, SeenInBlock(tile, block, row).begin) / kRunTokens * kRunTokens,
            .end = std::min(end, SeenInBlock(tile, block, row + count - 1).end)};
        RunRows(count, p, pass == 0);
        row += count;
      }
    }
  }

 private:
  // A few rows, and whole tiles of tokens.
  struct Pass {
    const Tile& tile;
    const Block& block;
    const Ahead& ahead;
    Workspace& work;
    const float* q;
    float* scores;
    uint32_t begin;
    uint32_t end;
  };

  static HWY_INLINE void RunRows(uint32_t count, const Pass& p, bool first) {
    switch (count) {
      case 1:
        return RunSize<1>(p, first);
      case 2:
        return RunSize<2>(p, first);
      case 3:
        return RunSize<3>(p, first);
      default:
        return RunSize<4>(p, first);
    }
  }

  // The two commonest head sizes have loops of their own. Later passes find K in the cache, and
  // have nothing to ask for.
  template <int kCount>
  static HWY_INLINE void RunSize(const Pass& p, bool first) {
    switch (p.tile.head_dim) {
      case 64:
        return first ? RunTiles<kCount, 64, true>(p) : RunTiles<kCount, 64, false>(p);
      case 128:
        return first ? RunTiles<kCount, 128, true>(p) : RunTiles<kCount, 128, false>(p);
      default:
        return first ? RunTiles<kCount, 0, true>(p) : RunTiles<kCount, 0, false>(p);
    }
  }

  // kDim: the head size if the compiler is to know it, else 0.
  template <int kCount, uint32_t kDim, bool kPrefetch>
  static HWY_NOINLINE void RunTiles(const Pass& p) {
    const uint32_t dim = kDim != 0 ? kDim : p.tile.head_dim;
    for (uint32_t t = p.begin; t < p.end; t += kRunTokens) {
      Streams streams = {TileOf(p.tile, p.block, t, p.work), p.ahead.own[t / kRunTokens],
                         p.ahead.other[t / kRunTokens]};
      // (l0 + l2) + (l1 + l3), as canonical::SumScoreLanes.
      HWY_ALIGN float halves[2][kCount * kRunTokens];
      V sums[kCount][kVectors];
#pragma GCC unroll 1
      for (uint32_t lane = 0; lane < 4; ++lane) {
        const uint32_t chunks = dim / 32 + (dim % 32 != 0 && lane < 2 ? 1 : 0);
        Lane<kCount, kDim, kPrefetch>(dim, chunks, p.q + 8 * lane, streams, sums);
        if (lane >= 2) {
          AddTo(sums, halves[lane - 2]);
        }
        if (lane < 3) {
          Put(sums, halves[lane % 2], kRunTokens);
        }
      }
      AddTo(sums, halves[0]);
      Put(sums, p.scores + t, kScoreStride);
    }
  }

  // What a tile reads, and the lines that it asks for, in the order of each stream.
  struct Streams {
    const uint16_t* k;
    const uint16_t* own;
    const uint16_t* other;
  };

  // One lane of the scores of a tile's tokens. A loop of few instructions: the whole tile would not
  // stay in the cache of decoded ones when a core does two things.
  template <int kCount, uint32_t kDim, bool kPrefetch>
  static HWY_INLINE void Lane(uint32_t head_dim, uint32_t chunks, const float* q, Streams& streams,
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
#pragma GCC unroll 1
    for (uint32_t chunk = 0; chunk < chunks; ++chunk, q += 32) {
#pragma GCC unroll 4
      for (size_t pair = 0; pair < 4; ++pair) {
        // Else compilers move all requests to the front.
        __asm__ volatile("" : "+r"(streams.k), "+r"(streams.own), "+r"(streams.other));
        if (kPrefetch) {
          PrefetchLine((pair % 2 == 0 ? streams.own : streams.other) + pair / 2 * kTileLine);
        }
        const uint16_t* const line = streams.k + pair * kTileLine;
        MultiplyAdd<kCount, false>(line, q + 2 * pair, q_stride, sums);
        MultiplyAdd<kCount, true>(line, q + 2 * pair + 1, q_stride, sums);
      }
      streams.k += 4 * kTileLine;
      streams.own += 2 * kTileLine;
      streams.other += 2 * kTileLine;
    }
  }

  // Adds the products of one element, the even or the odd one of a pair.
  template <int kCount, bool kOdd>
  static HWY_INLINE void MultiplyAdd(const uint16_t* line, const float* q, size_t q_stride,
                                     V (&sums)[kCount][kVectors]) {
    const D d;
    V k[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const auto pairs = Halfwords<D>::Load(line + v * 2 * kN);
      k[v] = kOdd ? Halfwords<D>::Second(pairs) : Halfwords<D>::First(pairs);
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
