// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/logit_passes.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/logit_passes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using V = hn::Vec<Floats>;
using M = hn::Mask<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());

// A group has one element of each partial sum.
constexpr size_t kGroup = 16;
constexpr size_t kVectors = kGroup / kLanes;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

HWY_INLINE V Constant(float value) { return hn::Set(Floats(), value); }

// Holds sixteen partial sums.
struct Partials {
  V lanes[kVectors];

  HWY_INLINE void Clear() {
    for (V& lane : lanes) {
      lane = hn::Zero(Floats());
    }
  }

  // The partials in f64, halves added to halves.
  HWY_INLINE double Sum() const {
    HWY_ALIGN float values[kGroup];
    for (size_t v = 0; v < kVectors; ++v) {
      hn::Store(lanes[v], Floats(), values + v * kLanes);
    }
    double sums[kGroup];
    for (size_t i = 0; i < kGroup; ++i) {
      sums[i] = double{values[i]};
    }
    for (size_t half = kGroup / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) {
        sums[i] += sums[i + half];
      }
    }
    return sums[0];
  }
};

// Copies what is left of a row, less than a group, and fills the group up.
HWY_INLINE void FillGroup(const float* from, size_t count, float pad, float* group) {
  for (size_t i = 0; i < kGroup; ++i) {
    group[i] = i < count ? from[i] : pad;
  }
}

// NaN never replaces what was there.
HWY_INLINE V MaxOf(V best, V candidate) {
  return hn::IfThenElse(hn::Gt(candidate, best), candidate, best);
}

float Largest(absl::Span<const float> logits) {
  V best[kVectors];
  for (V& lane : best) {
    lane = Constant(kLowest);
  }
  const auto take = [&](const float* group) {
    for (size_t v = 0; v < kVectors; ++v) {
      best[v] = MaxOf(best[v], hn::LoadU(Floats(), group + v * kLanes));
    }
  };
  size_t i = 0;
  for (; i + kGroup <= logits.size(); i += kGroup) {
    take(logits.data() + i);
  }
  HWY_ALIGN float last[kGroup];
  FillGroup(logits.data() + i, logits.size() - i, kLowest, last);
  take(last);
  for (size_t v = 0; v < kVectors; ++v) {
    hn::Store(best[v], Floats(), last + v * kLanes);
  }
  float largest = kLowest;
  for (const float value : last) {
    largest = value > largest ? value : largest;
  }
  return largest;
}

size_t FirstAbove(absl::Span<const float> logits, size_t first, float bound) {
  size_t i = first;
  const V limit = Constant(bound);
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const M above = hn::Gt(hn::LoadU(Floats(), logits.data() + i), limit);
    if (!hn::AllFalse(Floats(), above)) {
      break;
    }
  }
  while (i < logits.size() && !(logits[i] > bound)) {
    ++i;
  }
  return i;
}

size_t Count(absl::Span<const float> logits, float bound, size_t ties_end) {
  const V limit = Constant(bound);
  size_t count = 0;
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const V values = hn::LoadU(Floats(), logits.data() + i);
    count += hn::CountTrue(Floats(), hn::Gt(values, limit));
    if (i + kLanes <= ties_end) {
      count += hn::CountTrue(Floats(), hn::Eq(values, limit));
    } else if (i < ties_end) {
      for (size_t j = i; j < ties_end; ++j) {
        count += logits[j] == bound ? 1 : 0;
      }
    }
  }
  for (; i < logits.size(); ++i) {
    count += logits[i] > bound || (logits[i] == bound && i < ties_end) ? 1 : 0;
  }
  return count;
}

size_t TiesEnd(absl::Span<const float> logits, float value, size_t ties) {
  const V wanted = Constant(value);
  size_t found = 0;
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const M equal = hn::Eq(hn::LoadU(Floats(), logits.data() + i), wanted);
    const size_t here = hn::CountTrue(Floats(), equal);
    if (found + here >= ties) {
      break;
    }
    found += here;
  }
  for (; i < logits.size() && found < ties; ++i) {
    found += logits[i] == value ? 1 : 0;
  }
  return i;
}

// See WeighLogits(). 2^t = 2^n 2^f with n = round(t), |f| <= 1/2, 2^f = 1 + f P(f), P of degree 5
// through Chebyshev nodes: with the roundings within 9e-8.
HWY_INLINE V WeightOf(V logit, V largest, V scale) {
  const Floats d;
  const Words words;
  const V low = Constant(-125.0f);      // 2^n and the product stay normal.
  const V shift = Constant(0x1.8p23f);  // Adding it rounds to an integer, in the low bits.
  const V raw = hn::Mul(hn::Sub(logit, largest), scale);
  const M live = hn::Ge(raw, low);  // Not NaN.
  const V t = hn::IfThenElse(live, raw, low);
  const V shifted = hn::Add(t, shift);
  const V f = hn::Sub(t, hn::Sub(shifted, shift));
  V p = Constant(0x1.44138ap-13f);
  p = hn::Add(hn::Mul(p, f), Constant(0x1.5f089p-10f));
  p = hn::Add(hn::Mul(p, f), Constant(0x1.3b2a54p-7f));
  p = hn::Add(hn::Mul(p, f), Constant(0x1.c6af6cp-5f));
  p = hn::Add(hn::Mul(p, f), Constant(0x1.ebfbep-3f));
  p = hn::Add(hn::Mul(p, f), Constant(0x1.62e43p-1f));
  p = hn::Add(hn::Mul(p, f), Constant(1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(words, shifted));
  const V power = hn::BitCast(d, hn::Add(exponent, hn::BitCast(words, Constant(1.0f))));
  const V weight = hn::IfThenElseZero(live, hn::Mul(p, power));
  return hn::IfThenElse(hn::Eq(logit, largest), Constant(1.0f), weight);
}

// Runs over a row in blocks and writes the sum of each: `step(logits, at, count)` returns the
// weights of a vector of logits, the first of index `at`, of which `count` are there.
template <class Step>
HWY_INLINE void SumBlocks(absl::Span<const float> logits, double* sums, const Step& step) {
  for (size_t first = 0; first < logits.size(); first += kWeightBlock) {
    const size_t end = HWY_MIN(first + kWeightBlock, logits.size());
    Partials partials;
    partials.Clear();
    size_t i = first;
    for (; i + kGroup <= end; i += kGroup) {
      for (size_t v = 0; v < kVectors; ++v) {
        const size_t at = i + v * kLanes;
        const V weights = step(hn::LoadU(Floats(), logits.data() + at), at, kLanes);
        partials.lanes[v] = hn::Add(partials.lanes[v], weights);
      }
    }
    if (i < end) {
      HWY_ALIGN float last[kGroup];
      FillGroup(logits.data() + i, end - i, kLowest, last);
      for (size_t v = 0; v < kVectors && i + v * kLanes < end; ++v) {
        const size_t at = i + v * kLanes;
        const V weights =
            step(hn::Load(Floats(), last + v * kLanes), at, HWY_MIN(kLanes, end - at));
        partials.lanes[v] = hn::Add(partials.lanes[v], weights);
      }
    }
    sums[first / kWeightBlock] = partials.Sum();
  }
}

// The first `count` lanes, at most kLanes, and 0 behind them.
HWY_INLINE V LoadFirst(const float* from, size_t count) {
  if (count == kLanes) {
    return hn::LoadU(Floats(), from);
  }
  HWY_ALIGN float group[kGroup];
  FillGroup(from, count, 0.0f, group);
  return hn::Load(Floats(), group);
}

HWY_INLINE void StoreFirst(V values, size_t count, float* to) {
  if (count == kLanes) {
    hn::StoreU(values, Floats(), to);
    return;
  }
  HWY_ALIGN float group[kLanes];
  hn::Store(values, Floats(), group);
  for (size_t i = 0; i < count; ++i) {
    to[i] = group[i];
  }
}

void Weigh(const WeighTask& task) {
  const V largest = Constant(task.largest);
  const V scale = Constant(task.scale);
  SumBlocks(task.logits, task.sums, [&](V logits, size_t at, size_t count) {
    const V weights = WeightOf(logits, largest, scale);
    if (task.weights != nullptr) {
      StoreFirst(weights, count, task.weights + at);
    }
    return weights;
  });
}

// Which of the logits from index `at` on are in the cut.
HWY_INLINE M KeptOf(V logit, size_t at, const LogitCut& cut) {
  const V bound = Constant(cut.bound);
  if (at + kLanes <= cut.ties_end) {
    return hn::Ge(logit, bound);
  }
  if (at >= cut.ties_end) {
    return hn::Gt(logit, bound);
  }
  const hn::RebindToSigned<Floats> signed_words;
  const auto early = hn::Lt(hn::Iota(signed_words, 0),
                            hn::Set(signed_words, static_cast<int32_t>(cut.ties_end - at)));
  const M tied = hn::And(hn::Eq(logit, bound), hn::RebindMask(Floats(), early));
  return hn::Or(hn::Gt(logit, bound), tied);
}

void Sum(const SumTask& task) {
  const V smallest = Constant(task.smallest);
  SumBlocks(task.logits, task.sums, [&](V logits, size_t at, size_t count) {
    const M kept = KeptOf(logits, at, task.cut);
    const V weights = LoadFirst(task.weights + at, count);
    return hn::IfThenElseZero(hn::And(kept, hn::Ge(weights, smallest)), weights);
  });
}

size_t List(absl::Span<const float> logits, const LogitCut& cut, uint32_t* ids) {
  const Words words;
  size_t count = 0;
  const auto take = [&](const float* from, size_t at) {
    const M kept = KeptOf(hn::LoadU(Floats(), from), at, cut);
    if (hn::AllFalse(Floats(), kept)) {
      return;
    }
    const auto mask = hn::RebindMask(words, kept);
    const auto indices = hn::Iota(words, static_cast<uint32_t>(at));
    hn::StoreU(hn::Compress(indices, mask), words, ids + count);
    count += hn::CountTrue(words, mask);
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    take(logits.data() + i, i);
  }
  HWY_ALIGN float last[kGroup];
  FillGroup(logits.data() + i, logits.size() - i, std::numeric_limits<float>::quiet_NaN(), last);
  take(last, i);
  return count;
}

// Compresses pairs, in their order, to where they started or before it.
class PairWriter {
 public:
  explicit PairWriter(const WeightedLogits& out) : out_(out) {}

  HWY_INLINE void Write(V logits, V weights, M kept) {
    hn::StoreU(hn::Compress(logits, kept), Floats(), out_.logits + count_);
    hn::StoreU(hn::Compress(weights, kept), Floats(), out_.weights + count_);
    count_ += hn::CountTrue(Floats(), kept);
  }
  HWY_INLINE size_t count() const { return count_; }

 private:
  const WeightedLogits out_;
  size_t count_ = 0;
};

size_t CollectPairs(absl::Span<const float> logits, const float* weights, float smallest,
                    const WeightedLogits& out) {
  PairWriter writer(out);
  const V least = Constant(smallest);
  const V ones = Constant(1.0f);
  const auto take = [&](size_t at, size_t count) {
    const V weight = weights != nullptr ? LoadFirst(weights + at, count) : ones;
    if (hn::AllFalse(Floats(), hn::Ge(weight, least))) {
      return;
    }
    HWY_ALIGN float group[kGroup];
    const float* from = logits.data() + at;
    if (count < kLanes) {
      FillGroup(from, count, kLowest, group);
      from = group;
    }
    const V logit = hn::LoadU(Floats(), from);
    writer.Write(logit, weight, hn::And(hn::Gt(logit, Constant(kLowest)), hn::Ge(weight, least)));
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    take(i, kLanes);
  }
  if (i < logits.size()) {
    take(i, logits.size() - i);
  }
  return writer.count();
}

LogitRange Range(absl::Span<const float> logits) {
  V low = Constant(logits[0]);
  V high = low;
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const V values = hn::LoadU(Floats(), logits.data() + i);
    low = hn::Min(low, values);
    high = hn::Max(high, values);
  }
  HWY_ALIGN float lows[kLanes];
  HWY_ALIGN float highs[kLanes];
  hn::Store(low, Floats(), lows);
  hn::Store(high, Floats(), highs);
  LogitRange range{.lowest = lows[0], .highest = highs[0]};
  const auto take = [&](float value) {
    range.lowest = value < range.lowest ? value : range.lowest;
    range.highest = value > range.highest ? value : range.highest;
  };
  for (size_t lane = 1; lane < kLanes; ++lane) {
    take(lows[lane]);
    take(highs[lane]);
  }
  for (; i < logits.size(); ++i) {
    take(logits[i]);
  }
  return range;
}

double SumFrom(const WeightedLogits& in, size_t count, float pivot) {
  const V limit = Constant(pivot);
  double sum = 0;
  for (size_t first = 0; first < count; first += kWeightBlock) {
    const size_t end = HWY_MIN(first + kWeightBlock, count);
    Partials partials;
    partials.Clear();
    size_t i = first;
    const auto take = [&](const float* logits, const float* weights) {
      for (size_t v = 0; v < kVectors; ++v) {
        const M above = hn::Ge(hn::LoadU(Floats(), logits + v * kLanes), limit);
        const V weight = hn::LoadU(Floats(), weights + v * kLanes);
        partials.lanes[v] = hn::Add(partials.lanes[v], hn::IfThenElseZero(above, weight));
      }
    };
    for (; i + kGroup <= end; i += kGroup) {
      take(in.logits + i, in.weights + i);
    }
    if (i < end) {
      HWY_ALIGN float last[kGroup];
      HWY_ALIGN float last_weights[kGroup];
      FillGroup(in.logits + i, end - i, kLowest, last);
      FillGroup(in.weights + i, end - i, 0.0f, last_weights);
      take(last, last_weights);
    }
    sum += partials.Sum();
  }
  return sum;
}

size_t Half(const WeightedLogits& in, size_t count, float pivot, bool upper) {
  PairWriter writer(in);
  const V limit = Constant(pivot);
  const auto take = [&](V logit, V weight) {
    writer.Write(logit, weight, upper ? hn::Ge(logit, limit) : hn::Lt(logit, limit));
  };
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    take(hn::LoadU(Floats(), in.logits + i), hn::LoadU(Floats(), in.weights + i));
  }
  HWY_ALIGN float last[kGroup];
  HWY_ALIGN float last_weights[kGroup];
  FillGroup(in.logits + i, count - i, std::numeric_limits<float>::quiet_NaN(), last);
  FillGroup(in.weights + i, count - i, 0.0f, last_weights);
  take(hn::Load(Floats(), last), hn::Load(Floats(), last_weights));
  return writer.count();
}

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels::cpu {

HWY_EXPORT(Largest);
HWY_EXPORT(FirstAbove);
HWY_EXPORT(Count);
HWY_EXPORT(TiesEnd);
HWY_EXPORT(Weigh);
HWY_EXPORT(Sum);
HWY_EXPORT(List);
HWY_EXPORT(CollectPairs);
HWY_EXPORT(Range);
HWY_EXPORT(SumFrom);
HWY_EXPORT(Half);

float LargestLogit(absl::Span<const float> logits) { return HWY_DYNAMIC_DISPATCH(Largest)(logits); }

size_t NextAbove(absl::Span<const float> logits, size_t first, float bound) {
  return HWY_DYNAMIC_DISPATCH(FirstAbove)(logits, first, bound);
}

size_t CountAtLeast(absl::Span<const float> logits, float bound, size_t ties_end) {
  return HWY_DYNAMIC_DISPATCH(Count)(logits, bound, ties_end);
}

size_t EndOfTies(absl::Span<const float> logits, float value, size_t ties) {
  return HWY_DYNAMIC_DISPATCH(TiesEnd)(logits, value, ties);
}

void WeighLogits(const WeighTask& task) { HWY_DYNAMIC_DISPATCH(Weigh)(task); }

void SumKept(const SumTask& task) { HWY_DYNAMIC_DISPATCH(Sum)(task); }

size_t ListKept(absl::Span<const float> logits, const LogitCut& cut, uint32_t* ids) {
  return HWY_DYNAMIC_DISPATCH(List)(logits, cut, ids);
}

size_t Collect(absl::Span<const float> logits, const float* weights, float smallest,
               const WeightedLogits& out) {
  return HWY_DYNAMIC_DISPATCH(CollectPairs)(logits, weights, smallest, out);
}

LogitRange RangeOf(absl::Span<const float> logits) { return HWY_DYNAMIC_DISPATCH(Range)(logits); }

double WeightFrom(const WeightedLogits& in, size_t count, float pivot) {
  return HWY_DYNAMIC_DISPATCH(SumFrom)(in, count, pivot);
}

size_t KeepHalf(const WeightedLogits& in, size_t count, float pivot, bool upper) {
  return HWY_DYNAMIC_DISPATCH(Half)(in, count, pivot, upper);
}

}  // namespace lamina::kernels::cpu
#endif
