// SPDX-License-Identifier: Apache-2.0
#include "kernels/span_partials.h"

#include <limits>

#include "kernels/attention.h"
#include "kernels/canonical_math.h"

namespace lamina::kernels {

void WriteEmptyPartial(const AttentionDescriptor& layer, float* partial) {
  for (uint32_t head = 0; head < layer.query_heads; ++head) {
    partial = std::fill_n(partial, layer.head_dim, 0.0f);
    *partial++ = -std::numeric_limits<float>::infinity();
  }
}

SpanFold::SpanFold(size_t head_dim, uint32_t span_tokens)
    : blocks_(span_tokens / kBlockTokens), stack_(head_dim), folded_(head_dim) {}

// What is merged behind a part of a span is merged from the top.
void SpanFold::Add(const float* partial, bool is_last) {
  stack_.Push(next_block_, is_last ? 1 : blocks_, partial, partial[folded_.size()]);
  next_block_ += blocks_;
}

void SpanFold::Finish(const AttentionDescriptor& layer, uint32_t query_head, BFloat16* out) {
  next_block_ = 0;
  float lse;
  stack_.Fold(folded_.data(), &lse);
  const float share = layer.sinks.empty() ? 1.0f : ShareWithSink(lse, layer.sinks[query_head]);
  std::transform(folded_.begin(), folded_.end(), out,
                 [share](float x) { return canonical::RoundOutput(share * x); });
}

absl::Span<SpanFold> SpanFolds::Of(uint32_t head_dim) {
  std::vector<SpanFold>& folds = folds_[head_dim];
  if (folds.empty()) {
    folds.assign(threads_, SpanFold(head_dim, span_tokens_));
  }
  return absl::MakeSpan(folds);
}

}  // namespace lamina::kernels
