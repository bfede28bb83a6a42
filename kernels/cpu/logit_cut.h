// SPDX-License-Identifier: Apache-2.0
//
// Where top-k and top-p cut a row of logits: the smallest set of the best tokens, ties to the
// smaller id, that has a wanted weight. Found by halving the range of logits that are in question,
// so that only the first passes see more than a part of the vocabulary.
//
// Determinism: the passes of logit_passes.h and scalar code; the same on every instruction set.

#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cpu/logit_passes.h"

namespace lamina::kernels::cpu {

// Working memory, reused over calls.
struct CutScratch {
  std::vector<float> logits;
  std::vector<float> weights;
};

// The cut of the `count` best logits. NaN and -inf are never in it. Requires: count > 0.
LogitCut CutByCount(absl::Span<const float> logits, size_t count, CutScratch& scratch);

// The cut of the best that weigh at least `share` of `total` together, at least one.
// Requires: weights of WeighLogits() for these logits, and their sum; 0 < share < 1.
LogitCut CutByWeight(absl::Span<const float> logits, absl::Span<const float> weights, double total,
                     double share, CutScratch& scratch);

}  // namespace lamina::kernels::cpu
