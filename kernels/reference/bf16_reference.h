// SPDX-License-Identifier: Apache-2.0
//
// Reference attention whose products are of bf16 and whose weights are bf16: the definition of the
// bits, written to be read next to docs/design/attention_numerics.md. One thread, one query row at
// a time, no vectors. What differs between arithmetics is how products are summed (Bf16Products).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "kernels/attention.h"

namespace lamina::kernels {

// Those of a block's pairs of tokens of which a row sees one or both: [begin, end).
struct SeenPairs {
  size_t begin = 0;
  size_t end = 0;
};

// The sums of products of one arithmetic, over words of two bf16.
class Bf16Products {
 public:
  static constexpr size_t kBlockPairs = kBlockTokens / 2;

  virtual ~Bf16Products() = default;

  // The kernel's.
  virtual const char* name() const = 0;

  // q times k, both in the order in which a tile of K has the head's pairs.
  // Shapes: q, k  [head_dim / 2]
  virtual float Dot(absl::Span<const uint32_t> q, absl::Span<const uint32_t> k) const = 0;

  // Weights times one element of the values of a block, both zeros where the row does not see.
  // Shapes: weights, values  [kBlockPairs]
  virtual float Value(absl::Span<const uint32_t> weights, absl::Span<const uint32_t> values,
                      SeenPairs seen) const = 0;
};

// `products` outlive the kernel.
std::unique_ptr<AttentionKernel> MakeBf16Reference(const Bf16Products& products);

}  // namespace lamina::kernels
