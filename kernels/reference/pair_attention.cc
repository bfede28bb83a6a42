// SPDX-License-Identifier: Apache-2.0
//
// Reference attention in pairs of bf16: its sums of products.
#include "kernels/pair_attention.h"

#include "kernels/pair_math.h"
#include "kernels/reference/bf16_reference.h"

namespace lamina::kernels {
namespace {

class PairProducts final : public Bf16Products {
 public:
  const char* name() const override { return "pairs/reference"; }

  float Dot(absl::Span<const uint32_t> q, absl::Span<const uint32_t> k) const override {
    return Chain(q, k, {.begin = 0, .end = q.size()});
  }

  float Value(absl::Span<const uint32_t> weights, absl::Span<const uint32_t> values,
              SeenPairs seen) const override {
    return Chain(weights, values, seen) + 0.0f;  // Makes +0 of -0.
  }

 private:
  static float Chain(absl::Span<const uint32_t> a, absl::Span<const uint32_t> b, SeenPairs taken) {
    float sum = 0.0f;
    for (size_t i = taken.begin; i < taken.end; ++i) {
      sum = pairs::Step(sum, a[i], b[i]);
    }
    return sum;
  }
};

}  // namespace

const AttentionKernel& ReferencePairAttention() {
  static const PairProducts products;
  static const AttentionKernel* const kernel = MakeBf16Reference(products).release();
  return *kernel;
}

}  // namespace lamina::kernels
