// SPDX-License-Identifier: Apache-2.0
//
// Values of one block: for every row the sum of weight times v over the tokens that it sees, in
// their order. And the division by the weights' sum.
//
// A pass keeps `rows x chunks` accumulators in registers while it walks the tokens; a chunk is one
// vector of bf16, that is two of floats. Masked tokens are not multiplied by zero but left out:
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
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr uint32_t kRows = 4;
  // Accumulators: 24 of 32 registers, or 12 of 16.
  static constexpr uint32_t kAccumulators = kN == 16 ? 24 : 12;
  // Tokens between changes of pass, when there are several: V stays in the first-level cache, and
  // saving the accumulators costs a few per cent.
  static constexpr uint32_t Stretch(uint32_t head_dim) { return head_dim <= 64 ? 128 : 64; }
  // Tokens of a run that an iteration takes: more, and a processor's prefetcher sees no stride.
  static constexpr uint32_t kStep = kN >= 8 ? 4 : 8;

  static void Run(const Tile& tile, const Block& block, Workspace& work) {
    const Ahead ahead = Ahead::OfValues(tile, block);
    const uint32_t rows = tile.rows();
    const bool one_pass = rows <= kRows && ChunksAtOnce(rows) * 2 * kN >= tile.head_dim;
    const uint32_t one = Stretch(tile.head_dim);
    const uint32_t stretch = one_pass || rows > 4 * kRows ? kBlockTokens : one;
    const uint32_t consecutive = ConsecutiveStretches(block, tile.head_dim, one);
    for (uint32_t t = block.begin; t < block.end; t = t / stretch * stretch + stretch) {
      const uint32_t end = std::min(block.end, t / stretch * stretch + stretch);
      for (uint32_t row = 0; row < rows;) {
        const TokenRange range = SeenInBlock(tile, block, row);
        const uint32_t count = RowsAlike(tile, block, row, range);
        Pass p = {.v = reinterpret_cast<const uint16_t*>(tile.v),
                  .offsets = block.offsets,
                  .ahead = ahead,
                  .weights = work.scores + size_t{row} * kScoreStride,
                  .out = Top(tile, work, row),
                  .out_stride = tile.padded_dim,
                  .begin = std::max(t, range.begin),
                  .end = std::min(end, range.end),
                  .head_dim = tile.head_dim,
                  .consecutive = consecutive};
        p.fresh = p.begin == range.begin;
        if (p.begin < p.end) {
          row == 0 ? RunColumns<true>(count, p) : RunColumns<false>(count, p);
        }
        row += count;
      }
    }
  }

  // Multiplies the top of the stack by work.sum, which has the inverses.
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

 private:
  struct Pass {
    const uint16_t* v;
    const size_t* offsets;
    const Ahead& ahead;
    const float* weights;
    float* out;
    size_t out_stride;
    uint32_t begin;
    uint32_t end;
    uint32_t head_dim;
    uint32_t consecutive;
    bool fresh = false;  // Accumulators start from 0, not from `out`.
  };

  // Bit s: those of stretch s that the block has lie in consecutive slots.
  static uint32_t ConsecutiveStretches(const Block& block, size_t head_dim, uint32_t stretch) {
    uint32_t stretches = 0;
    for (uint32_t t = block.begin; t < block.end;) {
      const uint32_t index = t / stretch;
      const uint32_t end = std::min(block.end, (index + 1) * stretch);
      bool consecutive = true;
      for (++t; t < end;) {
        // The first token of a run speaks for all of it.
        consecutive = consecutive && block.offsets[t] == block.offsets[t - 1] + head_dim;
        t += t % kRunTokens == 0 && IsRun(block, t) ? kRunTokens : 1;
      }
      t = end;
      stretches |= (consecutive ? 1u : 0u) << index;
    }
    return stretches;
  }

  static float* Top(const Tile& tile, const Workspace& work, uint32_t row) {
    return work.stack + (work.depth * work.rows_max + row) * tile.padded_dim;
  }

  static constexpr uint32_t ChunksAtOnce(uint32_t rows) {
    const uint32_t fit = kAccumulators / (2 * rows);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
  }

  // How many rows from `row` on see the same tokens, at most kRows, spread evenly.
  static uint32_t RowsAlike(const Tile& tile, const Block& block, uint32_t row, TokenRange range) {
    uint32_t alike = tile.query_tokens == 1 ? std::min(2 * kRows, tile.rows() - row) : 1;
    while (alike < 2 * kRows && row + alike < tile.rows() &&
           SeenInBlock(tile, block, row + alike) == range) {
      ++alike;
    }
    return alike <= kRows ? alike : alike < 2 * kRows ? (alike + 1) / 2 : kRows;
  }

  // kPrefetch: this pass is the first to see its tokens.
  template <bool kPrefetch>
  static HWY_INLINE void RunColumns(uint32_t rows, const Pass& p) {
    switch (rows) {
      case 1:
        return RunSize<1, kPrefetch>(p);
      case 2:
        return RunSize<2, kPrefetch>(p);
      case 3:
        return RunSize<3, kPrefetch>(p);
      default:
        return RunSize<4, kPrefetch>(p);
    }
  }

  // The two commonest head sizes have loops of their own: then where a token of a run lies is known
  // when they are compiled.
  template <int kCount, bool kPrefetch>
  static HWY_INLINE void RunSize(const Pass& p) {
    switch (p.head_dim) {
      case 64:
        return Columns<kCount, 64, kPrefetch>(p);
      case 128:
        return Columns<kCount, 128, kPrefetch>(p);
      default:
        return Columns<kCount, 0, kPrefetch>(p);
    }
  }

  template <int kCount, uint32_t kDim, bool kPrefetch>
  static void Columns(const Pass& p) {
    constexpr uint32_t kAll = kDim / (2 * kN);  // 0: not known here.
    constexpr uint32_t kMost =
        kDim == 0 ? ChunksAtOnce(kCount) : std::min(ChunksAtOnce(kCount), kAll);
    static_assert(kDim == 0 || (kMost > 0 && kDim % (kMost * 2 * kN) == 0), "no rest");
    const uint32_t chunks = p.head_dim / (2 * kN);
    uint32_t chunk = 0;
    for (; chunk + kMost <= chunks; chunk += kMost) {
      Walk<kCount, kMost, kDim, kPrefetch, false>(p, chunk);
    }
    if constexpr (kDim == 0) {
      if (kMost > 2 && chunk + 2 <= chunks) {
        Walk<kCount, 2, kDim, kPrefetch, false>(p, chunk);
        chunk += 2;
      }
      if (kMost > 1 && chunk < chunks) {
        Walk<kCount, 1, kDim, kPrefetch, false>(p, chunk);
        ++chunk;
      }
      if (p.head_dim % (2 * kN) != 0) {
        Walk<kCount, 1, kDim, kPrefetch, true>(p, chunk);
      }
    }
  }

  // The lines that a walk over some of the columns asks for while it passes a stretch of tokens: as
  // large a part of all, in their order.
  template <int kChunks>
  struct Requests {
    static constexpr uint32_t kLines = kChunks * kN * kStep / kRunTokens;  // Lines of a step.
    static_assert(kLines % 2 == 0, "both streams");

    HWY_INLINE Requests(const Ahead& ahead, uint32_t begin, uint32_t end, uint32_t chunk,
                        uint32_t chunks) {
      const uint32_t first = begin / kRunTokens;
      const uint32_t last = (end - 1) / kRunTokens;
      const uint32_t before = chunk * (last - first + 1);
      const uint32_t group = std::min(first + before / chunks, last);
      own = ahead.own[group] + before % chunks * kN * kRunTokens;
      other = ahead.other[group] + before % chunks * kN * kRunTokens;
    }

    // The share of token `token` of a step.
    HWY_INLINE void Ask(uint32_t token) {
      __asm__ volatile("" : "+r"(own), "+r"(other));  // Not all at the front.
#pragma GCC unroll 4
      for (uint32_t line = (token * kLines + kStep - 1) / kStep;
           line < ((token + 1) * kLines + kStep - 1) / kStep; ++line) {
        PrefetchLine((line % 2 == 0 ? own : other) + line / 2 * kTileLine);
      }
    }

    HWY_INLINE void NextStep() {
      own += kLines / 2 * kTileLine;
      other += kLines / 2 * kTileLine;
    }

    const uint16_t* own;
    const uint16_t* other;
  };

  template <int kCount, int kChunks, uint32_t kDim, bool kPrefetch, bool kHalf>
  static HWY_NOINLINE void Walk(const Pass& p, uint32_t chunk) {
    const D d;
    V first[kCount][kChunks];
    V second[kCount][kChunks];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        const float* out = p.out + r * p.out_stride + (chunk + c) * 2 * kN;
        first[r][c] = p.fresh ? Zero(d) : Load(d, out);
        second[r][c] = p.fresh ? Zero(d) : Load(d, out + kN);
      }
    }
    const uint32_t head_dim = kDim != 0 ? kDim : p.head_dim;
    const uint32_t chunks = std::max<uint32_t>(1, head_dim / (2 * kN));
    const uint32_t stretch = Stretch(head_dim);
    const uint16_t* const v = p.v + chunk * 2 * kN;
    for (uint32_t t = p.begin; t < p.end;) {
      const uint32_t end = std::min(p.end, t / stretch * stretch + stretch);
      Requests<kChunks> requests(p.ahead, t, end, chunk, chunks);
      const float* weights = p.weights + t;
      if ((p.consecutive >> (t / stretch) & 1) != 0) {
        const uint16_t* row = v + p.offsets[t];
#pragma GCC unroll 1
        for (; t + kStep <= end; t += kStep, weights += kStep) {
#pragma GCC unroll 8
          for (uint32_t i = 0; i < kStep; ++i, row += head_dim) {
            if (kPrefetch) {
              requests.Ask(i);
            }
            Token<kCount, kChunks, kHalf>(row, weights, i, first, second);
          }
          requests.NextStep();
        }
      }
      for (uint32_t i = 0; t < end; ++t, ++weights) {
        if (kPrefetch && i++ % kStep == 0) {
          for (uint32_t token = 0; token < kStep; ++token) {
            requests.Ask(token);
          }
          requests.NextStep();
        }
        Token<kCount, kChunks, kHalf>(v + p.offsets[t], weights, 0, first, second);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        float* out = p.out + r * p.out_stride + (chunk + c) * 2 * kN;
        Store(first[r][c], d, out);
        Store(second[r][c], d, out + kN);
      }
    }
  }

  template <int kCount, int kChunks, bool kHalf>
  static HWY_INLINE void Token(const uint16_t* row, const float*& weights, size_t token,
                               V (&first)[kCount][kChunks], V (&second)[kCount][kChunks]) {
    const D d;
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) {
      const uint16_t* const at = row + c * 2 * kN;
      const auto halfwords = kHalf ? Halfwords<D>::LoadHalf(at) : Halfwords<D>::Load(at);
      const V v_first = Halfwords<D>::First(halfwords);
      const V v_second = Halfwords<D>::Second(halfwords);
      if (kN < 16) {
        // Weights are loaded again for each chunk: keeping them would push accumulators to memory.
        __asm__("" : "+r"(weights));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        const V weight = Set(d, weights[token + r * kScoreStride]);
        first[r][c] = MulAdd(weight, v_first, first[r][c]);
        second[r][c] = MulAdd(weight, v_second, second[r][c]);
      }
    }
  }
};

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
