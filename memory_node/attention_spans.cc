// SPDX-License-Identifier: Apache-2.0
//
// Partition token_range: sequences are cut into spans, of which this node holds some. A row comes
// to every node that holds a span it sees; each answers one partial for each of these. Rows whose
// own token lies here come first, with k and v; the others bring q alone.

#include <algorithm>

#include "common/status_macros.h"
#include "control/epoch_shape.h"
#include "memory_node/attention_worker.h"

namespace lamina::memory_node {

// Adds the row if it sees a span that lies here.
absl::Status AttentionWorker::CollectSpanRow(const Sequence& sequence, uint32_t position,
                                             Lane& lane) const {
  const uint32_t span_tokens = options_.config.span_tokens;
  Row row{.sequence = &sequence, .position = position, .own = false};
  for (const Span& span : sequence.spans) {
    row.partials += span.index * span_tokens <= position;
  }
  if (row.partials == 0) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<Extent> slot, tables_.SlotsOf(sequence, position, 1));
  if (!slot.empty()) {
    row.own = true;
    row.slot = slot[0];
  }
  lane.rows.push_back(row);
  return absl::OkStatus();
}

// Rows of which some spans lie here. Returns how many tokens they see.
uint64_t AttentionWorker::CollectSpanRows(Part& part, const RowChunk& chunk, Tokens tokens) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  auto* partial = reinterpret_cast<float*>(part.reply.data() + part.reply_bytes);
  uint64_t context = 0;
  RowPlaces places(chunk, shape);
  for (const Row& row : chunk.rows) {
    context += CollectSpanItems(row, places.q(), tokens, shape, partial);
    places.Next(row);
  }
  return context;
}

// A span is attended as a sequence of its own, with positions counted from its start. Only the one
// of the row's own token waits for k and v.
uint64_t AttentionWorker::CollectSpanItems(const Row& row, const BFloat16* q, Tokens tokens,
                                           const AttentionDescriptor& shape, float*& partial) {
  const uint32_t span_tokens = options_.config.span_tokens;
  uint64_t context = 0;
  for (const Span& span : row.sequence->spans) {
    const uint32_t start = span.index * span_tokens;
    if (start > row.position) {
      break;
    }
    const bool open = row.own && row.position - start < span_tokens;
    if (tokens == Tokens::kAll || open == (tokens == Tokens::kOpen)) {
      const uint32_t last = std::min(row.position - start, span_tokens - 1);
      items_.push_back({.extents = span.extents,
                        .first_position = last,
                        .query_tokens = 1,
                        .q = q,
                        .q_stride = shape.qkv_width(),
                        .partial = partial});
      context += last + 1;
    }
    partial += shape.query_heads * kernels::PartialWidth(shape);
  }
  return context;
}

}  // namespace lamina::memory_node
