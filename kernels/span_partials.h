// SPDX-License-Identifier: Apache-2.0
//
// Partials of spans: a sequence is cut at multiples of a length that is a power of two of blocks,
// and a row attends to each span as to a sequence of its own, with positions counted from its
// start. Merged along the tree of the whole sequence (partial.h), these have the bits of plain
// attention (docs/adr/0044-token-ranges-in-spans.md).
//
// Threading: a SpanFold is one thread's. Allocation: when folds are made.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "kernels/partial.h"

namespace lamina::kernels {

// The first position that a row at `position` sees.
inline uint32_t FirstSeen(const AttentionDescriptor& layer, uint32_t position) {
  return layer.window != 0 && position + 1 > layer.window ? position + 1 - layer.window : 0;
}

// The tokens of a span that a row sees, counted from the span's first one.
struct SeenOfSpan {
  uint32_t first = 0;
  uint32_t last = 0;

  bool none() const { return first > last; }
  uint32_t tokens() const { return last + 1 - first; }
};

// What a row at `position` sees of the span that begins at token `start`.
// Requires: start <= position.
inline SeenOfSpan SeenOf(const AttentionDescriptor& layer, uint32_t position, uint32_t start,
                         uint32_t span_tokens) {
  return {.first = std::max(FirstSeen(layer, position), start) - start,
          .last = std::min(position - start, span_tokens - 1)};
}

// Writes the partial of a row that sees nothing of a span.
// Shapes: partial  [query_heads, PartialWidth()]
void WriteEmptyPartial(const AttentionDescriptor& layer, float* partial);

// Makes a row's output of one query head from its partials.
class SpanFold {
 public:
  SpanFold(size_t head_dim, uint32_t span_tokens);

  // Adds the partial of the row's next span, from the first on. The last one may be a part of a
  // span.
  // Shapes: partial  [PartialWidth()]
  void Add(const float* partial, bool is_last);

  // All have been added: writes the output, with the head's sink. Nothing is left of them.
  void Finish(const AttentionDescriptor& layer, uint32_t query_head, BFloat16* out);

 private:
  uint32_t blocks_;          // A whole span has so many.
  uint32_t next_block_ = 0;  // The first one behind what was added.
  PartialStack stack_;
  std::vector<float> folded_;
};

// A fold for each thread of a pool.
class SpanFolds {
 public:
  SpanFolds(uint32_t span_tokens, size_t threads) : span_tokens_(span_tokens), threads_(threads) {}

  // Those of layers whose heads have this size. [threads]
  absl::Span<SpanFold> Of(uint32_t head_dim);

 private:
  const uint32_t span_tokens_;
  const size_t threads_;
  std::map<uint32_t, std::vector<SpanFold>> folds_;  // By head_dim.
};

}  // namespace lamina::kernels
