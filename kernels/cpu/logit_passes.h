// SPDX-License-Identifier: Apache-2.0
//
// Passes over a row of logits, as vector code for this processor: what sampling does for every
// token of the vocabulary. Called by kernels/sampling.cc and logit_cut.cc.
//
// Determinism: the same bits on every instruction set. Additions and multiplications in f32 are
// not fused; element i of a sum goes to partial sum i % 16, whatever the width of a vector.
// Threading: pure functions. Allocation: none.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace lamina::kernels::cpu {

// Weights are summed in blocks of so many tokens, so that a draw looks at each token of one block
// alone.
inline constexpr size_t kWeightBlock = 256;
inline constexpr size_t WeightBlocks(size_t count) {
  return (count + kWeightBlock - 1) / kWeightBlock;
}

// The largest logit, NaN counting as -inf; -inf if there is none.
float LargestLogit(absl::Span<const float> logits);

// The index of the first logit > bound from `first` on; logits.size() if there is none.
size_t NextAbove(absl::Span<const float> logits, size_t first, float bound);

// How many logits are > bound, and how many of the first `ties_end` equal it.
size_t CountAtLeast(absl::Span<const float> logits, float bound, size_t ties_end);

// The index behind the `ties`th logit that equals `value`; logits.size() if there are fewer.
size_t EndOfTies(absl::Span<const float> logits, float value, size_t ties);

// Weights 2^((logit - largest) * scale) with a relative error below 1e-7 for that exponent; 1 for
// the largest even at +inf, 0 for NaN and where the exponent is below -125.
// Shapes: weights [logits.size()], or null where the sums alone are wanted;
//         sums    [WeightBlocks(logits.size())], those of each block.
// Requires: largest = LargestLogit(logits) > -inf; 0 < scale < inf.
struct WeighTask {
  absl::Span<const float> logits;
  float largest = 0;
  float scale = 0;
  float* weights = nullptr;
  double* sums = nullptr;
};
void WeighLogits(const WeighTask& task);

// Says which of a row's tokens stay: logits above `bound`, and those equal to it up to the index
// `ties_end`.
struct LogitCut {
  float bound = 0;
  size_t ties_end = 0;
};

inline bool InCut(const LogitCut& cut, float logit, size_t index) {
  return logit > cut.bound || (logit == cut.bound && index < cut.ties_end);
}

// Sums, of each block, the weights that are in the cut and at least `smallest`.
struct SumTask {
  absl::Span<const float> logits;
  LogitCut cut;
  float smallest = 0;
  const float* weights = nullptr;  // [logits.size()]
  double* sums = nullptr;          // [WeightBlocks(logits.size())]
};
void SumKept(const SumTask& task);

// Puts the indices of the tokens in the cut into `ids`, ascending, and returns their number.
// Shapes: ids [at least that number + 16]
size_t ListKept(absl::Span<const float> logits, const LogitCut& cut, uint32_t* ids);

// Logits with their weights, next to each other.
struct WeightedLogits {
  float* logits = nullptr;
  float* weights = nullptr;
};

// Puts the logits that are > -inf and weigh at least `smallest` into `out`, in their order, and
// returns their number. `weights` null: each weighs 1.
// Shapes: out [logits.size() + 16]
size_t Collect(absl::Span<const float> logits, const float* weights, float smallest,
               const WeightedLogits& out);

struct LogitRange {
  float lowest = 0;
  float highest = 0;
};
// Requires: no NaN; at least one.
LogitRange RangeOf(absl::Span<const float> logits);

// The weight of the logits >= pivot, in f64.
double WeightFrom(const WeightedLogits& in, size_t count, float pivot);

// Keeps, in place and in their order, the logits >= pivot (`upper`) or those < pivot; returns their
// number. Shapes: in [count + 16]
size_t KeepHalf(const WeightedLogits& in, size_t count, float pivot, bool upper);

}  // namespace lamina::kernels::cpu
