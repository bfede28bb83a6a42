// SPDX-License-Identifier: Apache-2.0
//
// Reference attention in tiles of bf16: its sums of products.
#include "kernels/tile_attention.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/reference/bf16_reference.h"
#include "kernels/tile_math.h"

namespace lamina::kernels {
namespace {

class TileSums final : public Bf16Products {
 public:
  const char* name() const override { return "tiles/reference"; }

  // Zeros complete the last step.
  float Dot(absl::Span<const uint32_t> q, absl::Span<const uint32_t> k) const override {
    float sum = 0.0f;
    for (size_t first = 0; first < q.size(); first += tiles::kStepPairs) {
      const size_t count = std::min(tiles::kStepPairs, q.size() - first);
      uint32_t a[tiles::kStepPairs] = {};
      uint32_t b[tiles::kStepPairs] = {};
      std::copy_n(q.data() + first, count, a);
      std::copy_n(k.data() + first, count, b);
      sum = tiles::Step(sum, a, b);
    }
    return sum;
  }

  // All steps of the block, those too of which the row sees nothing, and one of zeros.
  float Value(absl::Span<const uint32_t> weights, absl::Span<const uint32_t> values,
              SeenPairs /*seen*/) const override {
    static_assert(kBlockPairs % tiles::kStepPairs == 0);
    float sum = 0.0f;
    for (size_t first = 0; first < kBlockPairs; first += tiles::kStepPairs) {
      sum = tiles::Step(sum, weights.data() + first, values.data() + first);
    }
    constexpr uint32_t kZeros[tiles::kStepPairs] = {};
    return tiles::Step(sum, kZeros, kZeros);
  }
};

}  // namespace

const AttentionKernel& ReferenceTileAttention() {
  static const TileSums products;
  static const AttentionKernel* const kernel = MakeBf16Reference(products).release();
  return *kernel;
}

}  // namespace lamina::kernels
