// SPDX-License-Identifier: Apache-2.0
//
// Queries ahead of their k and v: attention over a row's full blocks begins with the query alone;
// the block that the row's own token is in waits for k and v. Full blocks are cut into spans whose
// lengths are powers of two, longest first: each is one node of the merge tree that a whole
// sequence has (kernels/partial.h), so the bits are the same.

#include <algorithm>

#include "common/status_macros.h"
#include "kernels/canonical_math.h"
#include "memory_node/attention_worker.h"

namespace lamina::memory_node {

// Of the rows of the first chunk. Per step: what is cut stays the same for all its layers.
absl::Status AttentionWorker::CutAtFullBlocks(Lane& lane) {
  const uint32_t ahead =
      core::PiecesOf(lane.chunking, static_cast<uint32_t>(lane.rows.size()), /*kv_heads=*/1)
          .RowsEnd(0);
  size_t spans_all = 0;
  for (uint32_t i = 0; i < ahead; ++i) {
    Row& row = lane.rows[i];
    const Sequence& sequence = *row.sequence;
    const uint32_t blocks = row.position / kernels::kBlockTokens;
    uint32_t block = 0;
    const auto span_of = [&](uint32_t first, uint32_t tokens) -> absl::StatusOr<Span> {
      LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> extents,
                              tables_.SlotsOf(sequence, first, tokens));
      return Span{
          .index = first / kernels::kBlockTokens, .extents = std::move(extents), .tokens = tokens};
    };
    for (uint32_t length = uint32_t{1} << 31; length > 0 && blocks > 0; length >>= 1) {
      if ((blocks & length) != 0) {
        LAMINA_ASSIGN_OR_RETURN(
            Span span, span_of(block * kernels::kBlockTokens, length * kernels::kBlockTokens));
        row.closed.push_back(std::move(span));
        block += length;
      }
    }
    if (blocks > 0) {
      const uint32_t first = blocks * kernels::kBlockTokens;
      LAMINA_ASSIGN_OR_RETURN(row.open, span_of(first, row.position + 1 - first));
      spans_all += row.closed.size() + 1;
    }
  }
  size_t widest = 0;
  for (const AttentionDescriptor& layer : layers_) {
    widest = std::max(widest, layer.query_heads * kernels::PartialWidth(layer));
  }
  for (Part& part : lane.parts) {
    part.closed_partials.resize(std::max(part.closed_partials.size(), spans_all * widest));
  }
  items_.reserve(std::max(items_.capacity(), spans_all + lane.rows.size()));
  cut_rows_.reserve(std::max<size_t>(cut_rows_.capacity(), ahead));
  return absl::OkStatus();
}

// Its partials lie one behind the other, the open block's last. Returns how many tokens it sees.
uint64_t AttentionWorker::CollectCutRow(const Row& row, const BFloat16* q, Tokens tokens,
                                        const AttentionDescriptor& shape, float*& partial) {
  const size_t width = shape.query_heads * kernels::PartialWidth(shape);
  uint64_t context = 0;
  const auto add = [&](const Span& span, float* to) {
    items_.push_back({.extents = span.extents,
                      .first_position = span.tokens - 1,
                      .query_tokens = 1,
                      .q = q,
                      .q_stride = shape.qkv_width(),
                      .partial = to});
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
void AttentionWorker::MergeCutRows(Part& part, const RowChunk& chunk) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  const size_t head_width = kernels::PartialWidth(shape);
  std::vector<kernels::PartialStack>& stacks = stacks_[shape.head_dim];
  if (stacks.empty()) {
    stacks.assign(pool_.threads(), kernels::PartialStack(shape.head_dim));
    folded_.resize(pool_.threads());
  }
  auto* const out = reinterpret_cast<BFloat16*>(part.reply.data() + part.reply_bytes);
  pool_.Run(cut_rows_.size(), [&](size_t i, size_t worker) {
    const Row& row = *cut_rows_[i];
    size_t before = 0;  // Spans of the rows before it.
    for (size_t j = 0; j < i; ++j) {
      before += cut_rows_[j]->closed.size() + 1;
    }
    const float* const partials =
        part.closed_partials.data() + before * shape.query_heads * head_width;
    BFloat16* const to = out + static_cast<size_t>(&row - chunk.rows.data()) * shape.q_width();
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
      std::transform(folded.begin(), folded.end(), to + size_t{head} * shape.head_dim,
                     kernels::canonical::RoundOutput);
    }
  });
}

}  // namespace lamina::memory_node
