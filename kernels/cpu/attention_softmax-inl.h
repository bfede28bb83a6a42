// SPDX-License-Identifier: Apache-2.0
//
// From scores to weights, and the merge tree: what attention does besides reading K and V.
//
// Exp, Log and Tanh repeat kernels/canonical_math.h operation by operation.

// Included once for each instruction set, which is Highway's pattern.
#if defined(LAMINA_ATTENTION_SOFTMAX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_ATTENTION_SOFTMAX_INL_H
#undef LAMINA_ATTENTION_SOFTMAX_INL_H
#else
#define LAMINA_ATTENTION_SOFTMAX_INL_H
#endif

#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "kernels/canonical_math.h"
#include "kernels/cpu/attention_ahead.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_kept.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

template <class D>
struct Math {
  using V = hwy::HWY_NAMESPACE::Vec<D>;

  static HWY_INLINE V Exp(V x) {
    V one[1] = {x};
    Exp(one);
    return one[0];
  }

  // Interleaves several vectors: with a single one, each step would wait for the last.
  template <int kCount>
  static HWY_INLINE void Exp(V (&x)[kCount]) {
    const D d;
    const hwy::HWY_NAMESPACE::RebindToUnsigned<D> d32;
    const V floor = Set(d, canonical::kExpFloor);
    V r[kCount];
    V power[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const V clamped = Max(floor, x[i]);  // On x86 the second operand if one is NaN.
      const V t = MulAdd(clamped, Set(d, canonical::kLog2E), Set(d, canonical::kRoundMagic));
      const V n = Sub(t, Set(d, canonical::kRoundMagic));
      r[i] = MulAdd(n, Set(d, -canonical::kLn2High), clamped);
      r[i] = MulAdd(n, Set(d, -canonical::kLn2Low), r[i]);
      power[i] = BitCast(d, Add(ShiftLeft<23>(BitCast(d32, t)), Set(d32, 0x3f800000u)));
      power[i] = IfThenZeroElse(Lt(x[i], floor), power[i]);
    }
    V y[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      y[i] = MulAdd(Set(d, canonical::kExpQ[0]), r[i], Set(d, canonical::kExpQ[1]));
    }
#pragma GCC unroll 8
    for (int power_of_r = 2; power_of_r < 7; ++power_of_r) {
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        y[i] = MulAdd(y[i], r[i], Set(d, power_of_r < 5 ? canonical::kExpQ[power_of_r] : 1.0f));
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      x[i] = Mul(y[i], power[i]);
    }
  }

  static HWY_INLINE V Log(V x) {
    const D d;
    const hwy::HWY_NAMESPACE::RebindToUnsigned<D> d32;
    const hwy::HWY_NAMESPACE::RebindToSigned<D> di32;
    const auto bits = BitCast(d32, x);
    const auto exponent =
        ShiftRight<23>(BitCast(di32, Sub(bits, Set(d32, canonical::kSqrtHalfBits))));
    const V f = Sub(BitCast(d, Sub(bits, ShiftLeft<23>(BitCast(d32, exponent)))), Set(d, 1.0f));
    const V e = ConvertTo(d, exponent);
    V r = Set(d, canonical::kLogR[0]);
    for (int i = 1; i < 7; ++i) {
      r = MulAdd(r, f, Set(d, canonical::kLogR[i]));
    }
    V y = Mul(Mul(f, f), MulAdd(f, r, Set(d, -0.5f)));
    y = MulAdd(e, Set(d, canonical::kLn2Low), y);
    y = Add(f, y);
    y = MulAdd(e, Set(d, canonical::kLn2High), y);
    return IfThenElse(Eq(x, x), y, x);
  }

  static HWY_INLINE V Tanh(V y) {
    const D d;
    const V one = Set(d, 1.0f);
    const V a = Abs(y);
    const V z = Mul(y, y);
    V t = Set(d, canonical::kTanhT[0]);
    for (int i = 1; i < 5; ++i) {
      t = MulAdd(t, z, Set(d, canonical::kTanhT[i]));
    }
    const V small = MulAdd(Mul(y, z), t, y);
    const V e = Exp(Mul(Set(d, -2.0f), a));
    const V large = CopySign(Div(Sub(one, e), Add(one, e)), y);
    return IfThenElse(Lt(a, Set(d, canonical::kTanhSmall)), small, large);
  }
};

template <class D>
struct Softmax {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr size_t kParts = canonical::kLanes / kN;
  // Vectors of weights at once; see Math::Exp.
  static constexpr size_t kAtOnce = 4;
  static constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

  // Turns each row's scores into weights, and copies those that are wanted; leaves the largest
  // score in work.peak, and the weights' sum. Rows that see nothing of the block get the peak -inf.
  static void Run(const Tile& tile, const Block& block, Workspace& work) {
    const uint32_t rows = tile.rows();
    for (uint32_t row = 0; row < rows; ++row) {
      const TokenRange range = SeenInBlock(tile, block, row);
      if (range.empty()) {
        work.sum[row] = 1.0f;
        work.peak[row] = kEmptyLse;
      } else {
        RunRow(tile, range, row, work);
        KeepWeights(tile, block, range, row, work);
      }
    }
  }

  // Puts the block's lse on the stack, and 1 / sum into work.sum.
  static void FindLse(const Tile& tile, Workspace& work) {
    const uint32_t rows = tile.rows();
    const D d;
    float* lse = work.stack_lse + work.depth * work.rows16;
    for (uint32_t row = 0; row < rows; row += kN) {
      const V sum = Load(d, work.sum + row);
      Store(Add(Load(d, work.peak + row), Math<D>::Log(sum)), d, lse + row);
      Store(Div(Set(d, 1.0f), sum), d, work.sum + row);
    }
  }

  // MergeOps::cap.
  static void Cap(float soft_cap, float* s, size_t count) {
    const D d;
    const V cap = Set(d, soft_cap);
    for (size_t i = 0; i < count; i += kN) {
      Store(Mul(cap, Math<D>::Tanh(Div(Load(d, s + i), cap))), d, s + i);
    }
  }

  // Makes the partial above the stack its top, and merges what the block index says.
  static void Push(const Tile& tile, const Block& block, Workspace& work) {
    ++work.depth;
    for (uint32_t b = block.index; (b & 1) != 0 && work.depth > 1; b >>= 1) {
      MergeTopTwo(tile, work);
    }
  }

  // kernels/partial.cc: MergePartials, for all rows.
  static void MergeTopTwo(const Tile& tile, Workspace& work) {
    --work.depth;
    const size_t stride = work.rows_max * tile.padded_dim;
    float* out_a = work.stack + (work.depth - 1) * stride;
    const float* out_b = out_a + stride;
    float* lse_a = work.stack_lse + (work.depth - 1) * work.rows16;
    const float* lse_b = lse_a + work.rows16;
    const uint32_t rows = tile.rows();
    for (uint32_t row = 0; row < rows; row += kN) {
      Shares(lse_a + row, lse_b + row, work.share_a + row, work.share_b + row);
    }
    const D d;
    for (uint32_t row = 0; row < rows; ++row) {
      if (lse_b[row] == kEmptyLse) {
        continue;
      }
      // An empty side a has share 0 and an `out` of any age: copied over, not multiplied.
      const bool copy = work.share_a[row] < 0.0f;
      const V share_a = Set(d, work.share_a[row]);
      const V share_b = Set(d, work.share_b[row]);
      float* a = out_a + size_t{row} * tile.padded_dim;
      const float* b = out_b + size_t{row} * tile.padded_dim;
      for (uint32_t i = 0; i < tile.padded_dim; i += kN) {
        const V from_b = Load(d, b + i);
        const V merged = MulAdd(share_a, Load(d, a + i), Mul(share_b, from_b));
        Store(copy ? from_b : merged, d, a + i);
      }
    }
  }

 private:
  // Weights of the two sides, and the merged lse in place of lse_a. share_a < 0: side a is empty.
  static HWY_INLINE void Shares(float* lse_a, const float* lse_b, float* share_a, float* share_b) {
    const D d;
    const V a = Load(d, lse_a);
    const V b = Load(d, lse_b);
    const V m = IfThenElse(Gt(a, b), a, b);
    const V weight_a = Math<D>::Exp(Sub(a, m));
    const V weight_b = Math<D>::Exp(Sub(b, m));
    const V sum = Add(weight_a, weight_b);
    const V lse = Add(m, Math<D>::Log(sum));
    const V empty = Set(d, kEmptyLse);
    const auto a_empty = Eq(a, empty);
    Store(IfThenElse(a_empty, Set(d, -1.0f), Div(weight_a, sum)), d, share_a);
    Store(Div(weight_b, sum), d, share_b);
    Store(IfThenElse(Eq(b, empty), a, IfThenElse(a_empty, b, lse)), d, lse_a);
  }

  static HWY_INLINE void RunRow(const Tile& tile, TokenRange range, uint32_t row, Workspace& work) {
    float* s = work.scores + size_t{row} * kScoreStride;
    const uint32_t from = range.begin / 16 * 16;
    const uint32_t to = (range.end + 15) / 16 * 16;
    work.peak[row] = ScaleAndMask(tile, range, from, to, s);
    const V m = Set(D(), work.peak[row]);
    V lanes[kParts];
    for (size_t part = 0; part < kParts; ++part) {
      lanes[part] = Zero(D());
    }
    if (work.scores_ahead != 0) {
      WeightsOf<true>(m, from, to, s, work.scores_ahead, lanes);
    } else {
      WeightsOf<false>(m, from, to, s, 0, lanes);
    }
    HWY_ALIGN float sums[canonical::kLanes];
    for (size_t part = 0; part < kParts; ++part) {
      Store(lanes[part], D(), sums + part * kN);
    }
    work.sum[row] = canonical::SumLanes(sums);
  }

  // Scores of tokens [from, to) from dot products, -inf outside `range`. Returns the largest.
  static HWY_INLINE float ScaleAndMask(const Tile& tile, TokenRange range, uint32_t from,
                                       uint32_t to, float* s) {
    const D d;
    const V scale = Set(d, tile.scale);
    const V masked = Set(d, kEmptyLse);
    V peaks[kParts];
    for (size_t part = 0; part < kParts; ++part) {
      peaks[part] = masked;
    }
    for (uint32_t t = from; t < to; t += canonical::kLanes) {
      const bool whole = t >= range.begin && t + canonical::kLanes <= range.end;
#pragma GCC unroll 4
      for (size_t part = 0; part < kParts; ++part) {
        const uint32_t at = t + static_cast<uint32_t>(part * kN);
        V x = Mul(scale, Load(d, s + at));
        if (tile.soft_cap > 0.0f) {
          const V cap = Set(d, tile.soft_cap);
          x = Mul(cap, Math<D>::Tanh(Div(x, cap)));
        }
        if (!whole) {
          const V token = Iota(d, static_cast<float>(at));
          const V begin = Set(d, static_cast<float>(range.begin));
          const V end = Set(d, static_cast<float>(range.end));
          x = IfThenElse(And(Ge(token, begin), Lt(token, end)), x, masked);
        }
        peaks[part] = Max(x, peaks[part]);
        Store(x, d, s + at);
      }
    }
    for (size_t part = 1; part < kParts; ++part) {
      peaks[0] = Max(peaks[0], peaks[part]);
    }
    return GetLane(MaxOfLanes(d, peaks[0]));
  }

  // Scores of tokens [from, to), whole groups of kLanes, to their weights.
  template <bool kAsk>
  static HWY_INLINE void WeightsOf(V m, uint32_t from, uint32_t to, float* s, size_t ahead,
                                   V (&lanes)[kParts]) {
    constexpr uint32_t kStep = std::max<size_t>(canonical::kLanes, kAtOnce * kN);
    uint32_t t = from;
    for (; t + kStep <= to; t += kStep) {
      Weights<kStep / kN, kAsk>(m, s + t, ahead, lanes);
    }
    for (; t < to; t += canonical::kLanes) {
      Weights<kParts, kAsk>(m, s + t, ahead, lanes);
    }
  }

  // Scores of kCount vectors of tokens to their weights, which are added to the lanes. kAsk: asks
  // for the lines `ahead` floats on, where scores of the next block will be.
  template <int kCount, bool kAsk>
  static HWY_INLINE void Weights(V m, float* s, size_t ahead, V (&lanes)[kParts]) {
    const D d;
    V p[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      p[i] = Sub(Load(d, s + i * kN), m);
    }
    Math<D>::Exp(p);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      lanes[i % kParts] = Add(lanes[i % kParts], p[i]);
      Store(p[i], d, s + i * kN);
      if (kAsk && i % kParts == 0) {
        PrefetchLine(s + ahead + i * kN);
      }
    }
  }
};

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
