// SPDX-License-Identifier: Apache-2.0
//
// Scores of one block: q.k for every row of a tile and every token that it sees.
//
// Four tokens at a time for up to kRows rows: their accumulators live in registers, K is converted
// once for all of these rows, and a transposing reduction turns four accumulators into four scores.

// Included once for each instruction set, which is Highway's pattern.
#if defined(LAMINA_ATTENTION_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_ATTENTION_SCORES_INL_H
#undef LAMINA_ATTENTION_SCORES_INL_H
#else
#define LAMINA_ATTENTION_SCORES_INL_H
#endif

#include "hwy/highway.h"
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
  using W = typename Words<D>::W;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr size_t kParts = canonical::kLanes / kN;
  static constexpr uint32_t kRows = 4;
  // Tokens whose accumulators are in registers at once: 16 accumulators of 32 registers with
  // AVX-512; of 16 registers 8 at most, beside which two tokens of K and a query find room.
  template <int kCount>
  static constexpr int kTokensAtOnce = kN == 16 || kCount <= 2 ? 4 : 2;
  // Tokens between changes of row group, where there are several: their K stays in the first-level
  // cache.
  static constexpr uint32_t kStretch = 16;

  static void Run(const Tile& tile, const Block& block, Workspace& work) {
    const auto* k = reinterpret_cast<const uint16_t*>(tile.k);
    const Ahead ahead = Ahead::OfScores(tile, block);
    const uint32_t rows = tile.rows();
    const uint32_t passes = (rows + kRows - 1) / kRows;
    for (uint32_t t = block.begin / 4 * 4; t < block.end;) {
      const bool run = IsRun(block, t);
      uint32_t stretch_end = std::min(block.end, t / kStretch * kStretch + kStretch);
      // What one pass does alone may be as long as the tokens are of one kind.
      while (passes == 1 && stretch_end < block.end && IsRun(block, stretch_end) == run) {
        stretch_end = std::min(block.end, stretch_end + kStretch);
      }
      uint32_t row = 0;
      for (uint32_t pass = 0; pass < passes; ++pass) {
        // Rows spread evenly: 5 as 3 and 2.
        const uint32_t count = (rows - row) / (passes - pass);
        const uint32_t begin = std::max(t, SeenInBlock(tile, block, row).begin / 4 * 4);
        const uint32_t end = std::min(stretch_end, SeenInBlock(tile, block, row + count - 1).end);
        const Pass p = {.tile = tile,
                        .k = k,
                        .offsets = block.offsets,
                        .ahead = ahead,
                        .q = work.q + size_t{row} * tile.padded_dim,
                        .scores = work.scores + size_t{row} * kScoreStride,
                        .run = run};
        RunRows(count, p, begin, end, pass == 0);
        row += count;
      }
      t = stretch_end;
    }
  }

 private:
  struct Pass {
    const Tile& tile;
    const uint16_t* k;
    const size_t* offsets;
    const Ahead& ahead;
    const float* q;
    float* scores;
    bool run;
  };

  static constexpr size_t kLine = 32;  // Elements.

  // Lines to ask for, in the order of each stream: one that skips about is read a third slower.
  struct Lines {
    const uint16_t* own;
    const uint16_t* other;
    HWY_INLINE void Ask(size_t index) const {
      PrefetchLine((index % 2 == 0 ? own : other) + index / 2 * kLine);
    }
  };

  static HWY_INLINE void RunRows(uint32_t count, const Pass& p, uint32_t begin, uint32_t end,
                                 bool first) {
    switch (count) {
      case 1:
        return RunSize<1>(p, begin, end, first);
      case 2:
        return RunSize<2>(p, begin, end, first);
      case 3:
        return RunSize<3>(p, begin, end, first);
      default:
        return RunSize<4>(p, begin, end, first);
    }
  }

  // The two commonest head sizes have loops of their own, unrolled: the address arithmetic of a
  // loop costs up to a fifth.
  template <int kCount>
  static HWY_INLINE void RunSize(const Pass& p, uint32_t begin, uint32_t end, bool first) {
    switch (p.tile.head_dim) {
      case 64:
        return RunFirst<kCount, 64>(p, begin, end, first);
      case 128:
        return RunFirst<kCount, 128>(p, begin, end, first);
      default:
        return RunFirst<kCount, 0>(p, begin, end, first);
    }
  }

  template <int kCount, uint32_t kDim>
  static HWY_INLINE void RunFirst(const Pass& p, uint32_t begin, uint32_t end, bool first) {
    // Later passes find K in the cache, and have nothing to ask for.
    if (kDim != 0 && p.run) {
      return first ? StretchOfRun<kCount, kDim, true>(p, begin, end)
                   : StretchOfRun<kCount, kDim, false>(p, begin, end);
    }
    return first ? Stretch<kCount, kDim, true>(p, begin, end)
                 : Stretch<kCount, kDim, false>(p, begin, end);
  }

  // The tokens of every group follow each other, so that one address serves them.
  template <int kCount, uint32_t kDim, bool kPrefetch>
  static HWY_NOINLINE void StretchOfRun(const Pass& p, uint32_t begin, uint32_t end) {
    const float* const q = p.q;
    float* scores = p.scores + begin;
    for (uint32_t t = begin; t < end;) {
      const uint32_t group = t / kRunTokens;
      const uint32_t group_end = std::min(end, (group + 1) * kRunTokens);
      const uint16_t* k = p.k + p.offsets[t];
      const uint16_t* own = p.ahead.own[group];
      const uint16_t* other = p.ahead.other[group];
      for (; t < group_end; t += 4, k += 4 * kDim, own += 2 * kDim, other += 2 * kDim) {
        const uint16_t* const tokens[4] = {k, k + kDim, k + 2 * kDim, k + 3 * kDim};
        FourTokens<kCount, kDim, kPrefetch>(kDim, tokens, own, other, q, scores);
        scores += 4;
      }
    }
  }

  // kDim: the head size if the compiler is to know it, else 0.
  template <int kCount, uint32_t kDim, bool kPrefetch>
  static HWY_NOINLINE void Stretch(const Pass& p, uint32_t begin, uint32_t end) {
    const uint32_t head_dim = kDim != 0 ? kDim : p.tile.head_dim;
    const uint16_t* const k = p.k;
    const float* const q = p.q;
    float* const scores = p.scores;
    const size_t* offsets = p.offsets + begin;
    for (uint32_t t = begin; t < end;) {
      const uint32_t group = t / kRunTokens;
      const uint32_t group_end = std::min(end, (group + 1) * kRunTokens);
      const uint16_t* own = p.ahead.own[group];
      const uint16_t* other = p.ahead.other[group];
      for (; t < group_end; t += 4, offsets += 4, own += 2 * head_dim, other += 2 * head_dim) {
        const uint16_t* const tokens[4] = {k + offsets[0], k + offsets[1], k + offsets[2],
                                           k + offsets[3]};
        FourTokens<kCount, kDim, kPrefetch>(head_dim, tokens, own, other, q, scores + t);
      }
    }
  }

  template <int kCount, uint32_t kDim, bool kPrefetch>
  static HWY_INLINE void FourTokens(uint32_t head_dim, const uint16_t* const (&tokens)[4],
                                    const uint16_t* own, const uint16_t* other, const float* q,
                                    float* scores) {
    constexpr int kAtOnce = kTokensAtOnce<kCount>;
    V quads[kCount][kParts];
#pragma GCC unroll 4
    for (size_t part = 0; part < kParts; ++part) {
      V pairs[kCount][2];
#pragma GCC unroll 2
      for (int first = 0; first < 4; first += kAtOnce) {
        V acc[kCount][kAtOnce];
        const size_t lines = first * ((head_dim + 31) / 32);
        const Lines ahead = {own + lines / 2 * kLine, other + lines / 2 * kLine};
        Dot<kCount, kAtOnce, kPrefetch>(head_dim, part, tokens + first, ahead, q, acc);
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 2
          for (int i = 0; i < kAtOnce; i += 2) {
            pairs[r][(first + i) / 2] = Pair(acc[r][i], acc[r][i + 1]);
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        quads[r][part] = Quads(pairs[r][0], pairs[r][1]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      StoreScores(quads[r], scores + r * kScoreStride);
    }
  }

  // The lanes of one part of q.k, for kAtOnce tokens.
  template <int kCount, int kAtOnce, bool kPrefetch>
  static HWY_INLINE void Dot(uint32_t head_dim, size_t part, const uint16_t* const* tokens,
                             const Lines& ahead, const float* q, V (&acc)[kCount][kAtOnce]) {
    const D d;
    const size_t full = head_dim / 32;
    const size_t padded_dim = (head_dim + 31) / 32 * 32;
    if (full == 0) {
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < kAtOnce; ++i) {
          acc[r][i] = Zero(d);
        }
      }
    } else {
      Chunk<kCount, kAtOnce, kPrefetch, true>(0, part, tokens, ahead, q, padded_dim, acc);
    }
#pragma GCC unroll 4
    for (size_t chunk = 1; chunk < full; ++chunk) {
      Chunk<kCount, kAtOnce, kPrefetch, false>(chunk, part, tokens, ahead, q, padded_dim, acc);
    }
    // The last 16 elements of heads of 16, 48, 80, ...: lanes 0 to 7.
    if (head_dim % 32 != 0 && part * kN < 8) {
      W words[kAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) {
        const uint16_t* at = tokens[i] + full * 32 + part * 2 * kN;
        words[i] = kN == 16 ? Words<D>::LoadHalf(at) : Words<D>::Load(at);
        if (kPrefetch && part == 0) {
          ahead.Ask(full * kAtOnce + i);
        }
      }
      MultiplyAdd<kCount, kAtOnce, false>(words, q + full * 32 + part * kN, padded_dim, acc);
    }
  }

  template <int kCount, int kAtOnce, bool kPrefetch, bool kFirst>
  static HWY_INLINE void Chunk(size_t chunk, size_t part, const uint16_t* const* tokens,
                               const Lines& ahead, const float* q, size_t padded_dim,
                               V (&acc)[kCount][kAtOnce]) {
    W words[kAtOnce];
#pragma GCC unroll 4
    for (int i = 0; i < kAtOnce; ++i) {
      words[i] = Words<D>::Load(tokens[i] + chunk * 32 + part * 2 * kN);
      if (kPrefetch && part == 0) {
        ahead.Ask(chunk * kAtOnce + i);
      }
    }
    MultiplyAdd<kCount, kAtOnce, kFirst>(words, q + chunk * 32 + part * kN, padded_dim, acc);
  }

  // kFirst: the accumulators are new. Then they become the product, which may be -0 where 0 plus it
  // is +0: the sign of a zero does not reach a result (docs/design/attention_numerics.md).
  template <int kCount, int kAtOnce, bool kFirst>
  static HWY_INLINE void MultiplyAdd(const W (&words)[kAtOnce], const float* q, size_t q_stride,
                                     V (&acc)[kCount][kAtOnce]) {
    const D d;
    // AVX2 takes tokens in pairs, so that each query is loaded once for both; more than two
    // tokens' K would not find room beside the accumulators.
    constexpr int kBeside = kAtOnce == 2 ? 2 : 1;
#pragma GCC unroll 4
    for (int first = 0; first < kAtOnce; first += kBeside) {
      V even[kBeside];
      V odd[kBeside];
#pragma GCC unroll 2
      for (int i = 0; i < kBeside; ++i) {
        even[i] = Words<D>::Even(words[first + i]);
        odd[i] = Words<D>::Odd(words[first + i]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        const V q_even = Load(d, q + r * q_stride);
#pragma GCC unroll 2
        for (int i = 0; i < kBeside; ++i) {
          V& sum = acc[r][first + i];
          sum = kFirst ? Mul(q_even, even[i]) : MulAdd(q_even, even[i], sum);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        const V q_odd = Load(d, q + r * q_stride + canonical::kLanes);
#pragma GCC unroll 2
        for (int i = 0; i < kBeside; ++i) {
          acc[r][first + i] = MulAdd(q_odd, odd[i], acc[r][first + i]);
        }
      }
    }
  }

  // From the lanes of four tokens to the sums of their quads, in two steps: block b of the result
  // holds quad b of the four tokens in order. (l0 + l2) + (l1 + l3), as canonical::SumLanes.
  static HWY_INLINE V Pair(V a, V b) {
    const D d;
    return Add(InterleaveLower(d, a, b), InterleaveUpper(d, a, b));
  }
  // One shuffle and a blend, which more of a processor's ports can do than a second shuffle.
  static HWY_INLINE V Quads(V first, V second) {
    const D d;
    const hwy::HWY_NAMESPACE::Repartition<double, D> d64;
    const auto x64 = BitCast(d64, first);
    const auto y64 = BitCast(d64, second);
    return Add(BitCast(d, OddEven(y64, x64)), BitCast(d, CombineShiftRightBytes<8>(d64, y64, x64)));
  }

  // (Q0 + Q2) + (Q1 + Q3).
  static HWY_INLINE void StoreScores(const V (&quads)[kParts], float* to) {
    if constexpr (kN == 16) {
      const hwy::HWY_NAMESPACE::Half<D> d8;
      StoreHalves(d8, Add(LowerHalf(d8, quads[0]), UpperHalf(d8, quads[0])), to);
    } else if constexpr (kN == 8) {
      StoreHalves(D(), Add(quads[0], quads[1]), to);
    } else {
      StoreU(Add(Add(quads[0], quads[2]), Add(quads[1], quads[3])), D(), to);
    }
  }

  template <class D8, class V8>
  static HWY_INLINE void StoreHalves(D8, V8 v, float* to) {
    const hwy::HWY_NAMESPACE::Half<D8> d4;
    StoreU(Add(LowerHalf(d4, v), UpperHalf(d4, v)), d4, to);
  }
};

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
