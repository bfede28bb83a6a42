// SPDX-License-Identifier: Apache-2.0
//
// Values of a block whose first tokens are INT8 and whose others are bf16: for every row the sum of
// weight times v over the tokens that it sees, in their order, times the inverse of the weights'
// sum.
//
// A pass keeps `rows x chunks` accumulators in registers while it walks the tokens; a chunk is one
// vector of floats, and elements stay in their order. Masked tokens are left out: rows that see
// different tokens go in different passes. Meanwhile K of the next block is asked for.

// Included once for each instruction set, which is Highway's pattern.
#if defined(LAMINA_INT8_VALUES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_INT8_VALUES_INL_H
#undef LAMINA_INT8_VALUES_INL_H
#else
#define LAMINA_INT8_VALUES_INL_H
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/int8_attention_internal.h"
#include "kernels/cpu/int8_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

template <class D>
struct Int8Values {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr uint32_t kRows = 4;
  static constexpr uint32_t kAccumulators = kN == 16 ? 24 : 8;
  // Tokens between changes of pass: their V stays in the first-level cache.
  static constexpr uint32_t kStretch = 64;
  static constexpr size_t kLineBytes = 64;

  static void Run(const Int8Tile& tile, const Int8Block& block, Int8Workspace& work) {
    ExpandScales(tile, block, work);
    const uint32_t begin = block.all.begin;
    const uint32_t end = block.all.end;
    const Int8Source int8 = {.v = tile.int8.v,
                             .slots = block.slots,
                             .head_dim = tile.tile.head_dim,
                             .steps = work.v_steps,
                             .bases = work.v_bases};
    const TailSource tail = {.v = reinterpret_cast<const uint16_t*>(tile.tile.v),
                             .offsets = block.all.offsets};
    for (uint32_t t = begin, stretch_end = 0; t < end; t = stretch_end) {
      // A stretch is of one kind.
      stretch_end =
          std::min(t < block.int8_end ? block.int8_end : end, t / kStretch * kStretch + kStretch);
      for (uint32_t row = 0; row < tile.tile.rows();) {
        const TokenRange range = SeenInBlock(tile.tile, block.all, row);
        const uint32_t count = RowsAlike(tile.tile, block.all, row, range);
        Pass p = {.weights = work.work.scores + size_t{row} * kScoreStride,
                  .out = Top(tile.tile, work.work, row),
                  .out_stride = tile.tile.padded_dim,
                  .begin = std::max(t, range.begin),
                  .end = std::min(stretch_end, range.end),
                  .head_dim = tile.tile.head_dim};
        p.fresh = p.begin == range.begin;
        const bool part = t == begin || t % kStretch == 0;  // One stretch of a part asks.
        p.ahead = row == 0 && part ? block.next_k[t / kInt8BlockTokens] : nullptr;
        if (p.begin < p.end) {
          t < block.int8_end ? RunRows(count, p, int8) : RunRows(count, p, tail);
        }
        row += count;
      }
    }
    Normalise(tile.tile, work.work);
  }

 private:
  struct Int8Source {
    const uint8_t* v;
    const uint32_t* slots;
    size_t head_dim;
    const float* steps;
    const float* bases;

    struct Token {
      const uint8_t* row;
      V step;
      V base;
      HWY_INLINE V Load(size_t element) const {
        return MulAdd(Int8s<D>::Load(row + element), step, base);
      }
    };
    HWY_INLINE Token At(uint32_t t) const {
      return {
          .row = v + slots[t] * head_dim, .step = Set(D(), steps[t]), .base = Set(D(), bases[t])};
    }
  };

  struct TailSource {
    const uint16_t* v;
    const size_t* offsets;

    struct Token {
      const uint16_t* row;
      HWY_INLINE V Load(size_t element) const {
        const hwy::HWY_NAMESPACE::RebindToUnsigned<D> d32;
        const hwy::HWY_NAMESPACE::Rebind<uint16_t, D> d16;
        return BitCast(D(), ShiftLeft<16>(PromoteTo(d32, LoadU(d16, row + element))));
      }
    };
    HWY_INLINE Token At(uint32_t t) const { return {.row = v + offsets[t]}; }
  };

  struct Pass {
    const float* weights;
    float* out;
    size_t out_stride;
    uint32_t begin;
    uint32_t end;
    uint32_t head_dim;
    bool fresh = false;              // Accumulators start from 0, not from `out`.
    const uint8_t* ahead = nullptr;  // Or not: a row is asked for by each token.
  };

  static void ExpandScales(const Int8Tile& tile, const Int8Block& block, Int8Workspace& work) {
    for (uint32_t t = block.all.begin / kInt8BlockTokens * kInt8BlockTokens; t < block.int8_end;
         t += kInt8BlockTokens) {
      const Int8Scale* scales = tile.int8.v_scales + block.slots[t];
      const auto tokens =
          static_cast<uint32_t>(std::min<size_t>(kInt8BlockTokens, WholeTiles(block.int8_end - t)));
      Int8Scale gathered[kInt8BlockTokens];
      if ((block.runs >> (t / kInt8BlockTokens) & 1) == 0) {
        for (uint32_t i = 0; i < tokens; ++i) {
          gathered[i] = tile.int8.v_scales[block.slots[t + i]];
        }
        scales = gathered;
      }
      Int8s<D>::Expand(scales, tokens, work.v_steps + t, work.v_bases + t);
    }
  }

  static float* Top(const Tile& tile, const Workspace& work, uint32_t row) {
    return work.stack + (work.depth * work.rows_max + row) * tile.padded_dim;
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

  template <class Source>
  static HWY_INLINE void RunRows(uint32_t rows, const Pass& p, const Source& source) {
    switch (rows) {
      case 1:
        return RunSize<1>(p, source);
      case 2:
        return RunSize<2>(p, source);
      case 3:
        return RunSize<3>(p, source);
      default:
        return RunSize<4>(p, source);
    }
  }

  static constexpr uint32_t ChunksAtOnce(uint32_t rows) {
    const uint32_t fit = kAccumulators / rows;
    return fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
  }

  template <int kCount, class Source>
  static HWY_INLINE void RunSize(const Pass& p, const Source& source) {
    const uint32_t chunks = p.head_dim / kN;
    uint32_t chunk = 0;
    Columns<kCount, 8>(p, source, chunks, chunk);
    Columns<kCount, 4>(p, source, chunks, chunk);
    Columns<kCount, 2>(p, source, chunks, chunk);
    Columns<kCount, 1>(p, source, chunks, chunk);
  }

  template <int kCount, int kChunks, class Source>
  static HWY_INLINE void Columns(const Pass& p, const Source& source, uint32_t chunks,
                                 uint32_t& chunk) {
    if constexpr (kChunks <= ChunksAtOnce(kCount)) {
      for (; chunk + kChunks <= chunks; chunk += kChunks) {
        Walk<kCount, kChunks>(p, source, chunk * kN);
      }
    }
  }

  template <int kCount, int kChunks, class Source>
  static HWY_NOINLINE void Walk(const Pass& p, const Source& from, size_t element) {
    const D d;
    const Source source = from;  // Stores cannot change a copy.
    const float* const all_weights = p.weights;
    const uint32_t head_dim = p.head_dim;
    const uint32_t end = p.end;
    V sums[kCount][kChunks];
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kChunks; ++c) {
        sums[r][c] = p.fresh ? Zero(d) : Load(d, p.out + r * p.out_stride + element + c * kN);
      }
    }
    const uint8_t* ahead = element == 0 ? p.ahead : nullptr;
#pragma GCC unroll 1
    for (uint32_t t = p.begin; t < end; ++t) {
      if (ahead != nullptr) {
        for (size_t line = 0; line < head_dim; line += kLineBytes) {
          PrefetchLine(ahead + line);
        }
        ahead += head_dim;
      }
      const auto token = source.At(t);
      V weights[kCount];
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) {
        weights[r] = Set(d, all_weights[t + r * kScoreStride]);
      }
#pragma GCC unroll 8
      for (int c = 0; c < kChunks; ++c) {
        const V v = token.Load(element + c * kN);
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) {
          sums[r][c] = MulAdd(weights[r], v, sums[r][c]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kChunks; ++c) {
        Store(sums[r][c], d, p.out + r * p.out_stride + element + c * kN);
      }
    }
  }

  // What pads a row stays as it is: it must be ordinary numbers.
  static void Normalise(const Tile& tile, Workspace& work) {
    const D d;
    for (uint32_t row = 0; row < tile.rows(); ++row) {
      const V inverse = Set(d, work.sum[row]);
      float* out = Top(tile, work, row);
      for (uint32_t i = 0; i < tile.head_dim; i += kN) {
        Store(Mul(Load(d, out + i), inverse), d, out + i);
      }
    }
  }
};

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
