// SPDX-License-Identifier: Apache-2.0
//
// Values of one block: for every row the sum of weight times v over the tokens that it sees, in
// their order, times the inverse of the weights' sum.
//
// A pass keeps `rows x chunks` accumulators in registers while it walks the tokens; a chunk is one
// vector of words, that is two accumulators. Masked tokens are not multiplied by zero but left out:
// rows that see different tokens go in different passes.

// Included once for each instruction set, which is Highway's pattern.
#if defined(LAMINA_ATTENTION_VALUES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_ATTENTION_VALUES_INL_H
#undef LAMINA_ATTENTION_VALUES_INL_H
#else
#define LAMINA_ATTENTION_VALUES_INL_H
#endif

#include "hwy/highway.h"
#include "kernels/cpu/attention_ahead.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

template <class D>
struct Values {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  using W = typename Words<D>::W;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr size_t kParts = canonical::kLanes / kN;
  static constexpr uint32_t kRows = 4;
  // Accumulators: 24 of 32 registers, or 12 of 16.
  static constexpr uint32_t kAccumulators = kN == 16 ? 24 : 12;
  // Tokens between changes of pass, when there are several: V stays in the first-level cache, and
  // saving the accumulators costs a few per cent.
  static constexpr uint32_t kStretch = 64;

  static void Run(const Tile& tile, const Block& block, Workspace& work) {
    const auto* v = reinterpret_cast<const uint16_t*>(tile.v);
    const Ahead ahead = Ahead::OfValues(tile, block);
    const uint32_t rows = tile.rows();
    const bool one_pass = rows <= kRows && ChunksAtOnce(rows) * 2 * kN >= tile.head_dim;
    const uint32_t stretch = one_pass || rows > 4 * kRows ? kBlockTokens : kStretch;
    for (uint32_t t = block.begin; t < block.end; t = t / stretch * stretch + stretch) {
      const uint32_t end = std::min(block.end, t / stretch * stretch + stretch);
      for (uint32_t row = 0; row < rows;) {
        const TokenRange range = SeenInBlock(tile, block, row);
        const uint32_t count = RowsAlike(tile, block, row, range);
        Pass p = {.block = block,
                  .v = v,
                  .offsets = block.offsets,
                  .ahead = ahead,
                  .weights = work.scores + size_t{row} * kScoreStride,
                  .out = Top(tile, work, row),
                  .out_stride = tile.padded_dim,
                  .begin = std::max(t, range.begin),
                  .end = std::min(end, range.end),
                  .head_dim = tile.head_dim};
        p.fresh = p.begin == range.begin;
        p.prefetch = row == 0;
        if (p.begin < p.end) {
          RunColumns(count, tile.head_dim, p);
        }
        row += count;
      }
    }
    Normalise(tile, work);
  }

 private:
  struct Pass {
    const Block& block;
    const uint16_t* v;
    const size_t* offsets;
    const Ahead& ahead;
    const float* weights;
    float* out;
    size_t out_stride;
    uint32_t begin;
    uint32_t end;
    uint32_t head_dim;
    bool fresh = false;     // Accumulators start from 0, not from `out`.
    bool prefetch = false;  // This pass is the first to see its tokens.
  };

  static float* Top(const Tile& tile, const Workspace& work, uint32_t row) {
    return work.stack + (work.depth * work.rows_max + row) * tile.padded_dim;
  }

  static constexpr uint32_t ChunksAtOnce(uint32_t rows) {
    const uint32_t fit = kAccumulators / (2 * rows);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
  }

  // How many rows from `row` on see the same tokens, at most kRows, spread evenly.
  static uint32_t RowsAlike(const Tile& tile, const Block& block, uint32_t row, TokenRange range) {
    uint32_t alike = 1;
    while (alike < 2 * kRows && row + alike < tile.rows() &&
           SeenInBlock(tile, block, row + alike) == range) {
      ++alike;
    }
    return alike <= kRows ? alike : alike < 2 * kRows ? (alike + 1) / 2 : kRows;
  }

  static HWY_INLINE void RunColumns(uint32_t rows, uint32_t head_dim, const Pass& p) {
    switch (rows) {
      case 1:
        return Columns<1>(head_dim, p);
      case 2:
        return Columns<2>(head_dim, p);
      case 3:
        return Columns<3>(head_dim, p);
      default:
        return Columns<4>(head_dim, p);
    }
  }

  template <int kCount>
  static void Columns(uint32_t head_dim, const Pass& p) {
    constexpr uint32_t kMost = ChunksAtOnce(kCount);
    const uint32_t chunks = head_dim / (2 * kN);
    uint32_t chunk = 0;
    for (; chunk + kMost <= chunks; chunk += kMost) {
      Walk<kCount, kMost, false>(p, chunk);
    }
    if (kMost > 2 && chunk + 2 <= chunks) {
      Walk < kCount, kMost<2 ? 1 : 2, false>(p, chunk);
      chunk += 2;
    }
    if (chunk < chunks) {
      Walk<kCount, 1, false>(p, chunk);
      ++chunk;
    }
    if (head_dim % (2 * kN) != 0) {
      Walk<kCount, 1, true>(p, chunk);
    }
  }

  // Where chunk c of a split head begins.
  static constexpr size_t ChunkAt(size_t c) { return c / kParts * 32 + c % kParts * kN; }

  template <int kCount, int kChunks, bool kHalf>
  static HWY_NOINLINE void Walk(const Pass& p, uint32_t chunk) {
    const D d;
    V even[kCount][kChunks];
    V odd[kCount][kChunks];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        const float* out = p.out + r * p.out_stride + ChunkAt(chunk + c);
        even[r][c] = p.fresh ? Zero(d) : Load(d, out);
        odd[r][c] = p.fresh ? Zero(d) : Load(d, out + canonical::kLanes);
      }
    }
    const uint16_t* v = p.v + chunk * 2 * kN;
    // A walk over some of the columns asks for as large a part of the lines, in their order.
    const uint32_t chunks = std::max<uint32_t>(1, p.head_dim / (2 * kN));
    const uint32_t first_group = p.begin / kRunTokens;
    const uint32_t last_group = (p.end - 1) / kRunTokens;
    const uint32_t before = chunk * (last_group - first_group + 1);
    uint32_t asked_group = std::min(first_group + before / chunks, last_group);
    uint32_t asked_chunk = before % chunks;
    for (uint32_t t = p.begin; t < p.end;) {
      const uint32_t end = std::min(p.end, t / kRunTokens * kRunTokens + kRunTokens);
      const uint16_t* next = p.ahead.own[asked_group] + asked_chunk * kN * kRunTokens;
      const uint16_t* then = p.ahead.other[asked_group] + asked_chunk * kN * kRunTokens;
      asked_chunk += kChunks;
      if (asked_chunk >= chunks) {
        asked_chunk -= chunks;
        asked_group = std::min(asked_group + 1, last_group);
      }
      if (end - t == kRunTokens && IsRun(p.block, t)) {
        const uint16_t* row = v + p.offsets[t];
        const float* weights = p.weights + t;
        const bool prefetch = p.prefetch;
#pragma GCC unroll 2
        for (uint32_t i = 0; i < kRunTokens; ++i) {
          if (prefetch) {
            Ask<kChunks>(next, then);
          }
          Token<kCount, kChunks, kHalf>(row, weights + i, even, odd);
          row += p.head_dim;
        }
        t = end;
        continue;
      }
      for (; t < end; ++t) {
        if (p.prefetch) {
          Ask<kChunks>(next, then);
        }
        Token<kCount, kChunks, kHalf>(v + p.offsets[t], p.weights + t, even, odd);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        float* out = p.out + r * p.out_stride + ChunkAt(chunk + c);
        Store(even[r][c], d, out);
        Store(odd[r][c], d, out + canonical::kLanes);
      }
    }
  }

  // Asks for kChunks vectors of words at `next`, and goes on to the other stream.
  template <int kChunks>
  static HWY_INLINE void Ask(const uint16_t*& next, const uint16_t*& then) {
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) {
      if (kN == 16 || c % 2 == 0) {  // A line is one vector of AVX-512 or two of AVX2.
        PrefetchLine(next + c * 2 * kN);
      }
    }
    const uint16_t* const after = next + kChunks * 2 * kN;
    next = then;
    then = after;
  }

  template <int kCount, int kChunks, bool kHalf>
  static HWY_INLINE void Token(const uint16_t* row, const float* weights,
                               V (&even)[kCount][kChunks], V (&odd)[kCount][kChunks]) {
    const D d;
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) {
      const W words =
          kHalf ? Words<D>::LoadHalf(row + c * 2 * kN) : Words<D>::Load(row + c * 2 * kN);
      const V v_even = Words<D>::Even(words);
      const V v_odd = Words<D>::Odd(words);
      if (kN < 16) {
        // Weights are loaded again for each chunk: keeping them would push accumulators to memory.
        __asm__("" : "+r"(weights));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        const V weight = Set(d, weights[r * kScoreStride]);
        even[r][c] = MulAdd(weight, v_even, even[r][c]);
        odd[r][c] = MulAdd(weight, v_odd, odd[r][c]);
      }
    }
  }

  static void Normalise(const Tile& tile, Workspace& work) {
    const D d;
    const uint32_t rows = tile.rows();
    for (uint32_t row = 0; row < rows; ++row) {
      const V inverse = Set(d, work.sum[row]);
      float* out = Top(tile, work, row);
      for (uint32_t i = 0; i < tile.padded_dim; i += kN) {
        Store(Mul(Load(d, out + i), inverse), d, out + i);
      }
    }
  }
};

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
