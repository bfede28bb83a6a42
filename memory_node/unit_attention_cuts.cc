// SPDX-License-Identifier: Apache-2.0
//
// Queries ahead of their k and v: attention over a row's full blocks begins with the query alone;
// the block that the row's own token is in waits for k and v.

#include <algorithm>

#include "kernels/canonical_math.h"
#include "memory_node/unit_attention.h"

namespace lamina::memory_node {

void UnitAttention::ReserveCuts(const Lane& lane, size_t spans,
                                std::vector<float>& closed_partials) {
  size_t widest = 0;
  for (const AttentionDescriptor& layer : layers_) {
    widest = std::max(widest, layer.query_heads * kernels::PartialWidth(layer));
  }
  closed_partials.resize(std::max(closed_partials.size(), spans * widest));
  items_.reserve(std::max(items_.capacity(), spans + lane.rows.size()));
  cut_rows_.reserve(std::max(cut_rows_.capacity(), lane.rows.size()));
}

// Its partials lie one behind the other, the open block's last. Returns how many tokens it sees.
uint64_t UnitAttention::CollectCutRow(const Row& row, const BFloat16* q, Tokens tokens,
                                      const AttentionDescriptor& shape, float*& partial) {
  const size_t width = shape.query_heads * kernels::PartialWidth(shape);
  uint64_t context = 0;
  const auto add = [&](const plan::SlotTables::Span& span, float* to) {
    items_.push_back({.extents = span.extents,
                      .first_position = span.tokens - 1,
                      .query_tokens = 1,
                      .q = q,
                      .q_stride = shape.qkv_width(),
                      .partial = to});
    if (int8_rows_.on()) {
      Int8Rows::SetTokens(items_.back(), *row.sequence, span.index * kernels::kBlockTokens,
                          row.position);
    }
    context += span.tokens;
  };
  if (tokens == Tokens::kOpen) {
    add(row.open, partial + row.closed.size() * width);
    cut_rows_.push_back(&row);
  }
  for (size_t i = 0; tokens == Tokens::kClosed && i < row.closed.size(); ++i) {
    add(row.closed[i], partial + i * width);
  }
  partial += (row.closed.size() + 1) * width;
  return context;
}

// Into the reply, along the tree that one call would have followed.
void UnitAttention::MergeCutRows(const SubBatch& chunk) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  const size_t head_width = kernels::PartialWidth(shape);
  std::vector<kernels::PartialStack>& stacks = stacks_[shape.head_dim];
  if (stacks.empty()) {
    stacks.assign(pool_.threads(), kernels::PartialStack(shape.head_dim));
    folded_.resize(pool_.threads());
  }
  pool_.Run(cut_rows_.size(), [&](size_t i, size_t worker) {
    const Row& row = *cut_rows_[i];
    size_t before = 0;  // Spans of the rows before it.
    for (size_t j = 0; j < i; ++j) {
      before += cut_rows_[j]->closed.size() + 1;
    }
    const float* const partials = chunk.closed_partials + before * shape.query_heads * head_width;
    const auto index = static_cast<uint32_t>(&row - chunk.rows.data());
    BFloat16* const to = chunk.outputs.Row(chunk.out, chunk.in.first_row() + index);
    kernels::PartialStack& stack = stacks[worker];
    std::vector<float>& folded = folded_[worker];
    folded.resize(shape.head_dim);
    for (uint32_t head = 0; head < shape.query_heads; ++head) {
      for (size_t span = 0; span <= row.closed.size(); ++span) {
        const bool open = span == row.closed.size();
        const float* values = partials + (span * shape.query_heads + head) * head_width;
        stack.Push(open ? row.open.index : row.closed[span].index,
                   open ? 1 : row.closed[span].tokens / kernels::kBlockTokens, values,
                   values[shape.head_dim]);
      }
      float lse;
      stack.Fold(folded.data(), &lse);
      const float share =
          shape.sinks.empty() ? 1.0f : kernels::ShareWithSink(lse, shape.sinks[head]);
      std::transform(folded.begin(), folded.end(), to + size_t{head} * shape.head_dim,
                     [share](float x) { return kernels::canonical::RoundOutput(share * x); });
    }
  });
}

}  // namespace lamina::memory_node
