// SPDX-License-Identifier: Apache-2.0
#include "memory_node/unit_attention.h"

#include <algorithm>

#include "common/status_macros.h"
#include "telemetry/work_meter.h"

namespace lamina::memory_node {
namespace {

// Walks the rows of a chunk as they lie in the window.
class RowPlaces {
 public:
  RowPlaces(const RowChunk& chunk, const AttentionDescriptor& shape)
      : shape_(shape),
        q_(reinterpret_cast<const BFloat16*>(chunk.window)),
        kv_(q_ + (chunk.query_first ? chunk.rows.size() : 1) * shape.q_width()),
        query_first_(chunk.query_first) {}
  const BFloat16* q() const { return q_; }
  const BFloat16* kv() const { return kv_; }  // [k | v], if the row is own.
  void Next(const Row& row) {
    const size_t kv_width = row.own ? 2 * size_t{shape_.kv_width()} : 0;
    q_ += shape_.q_width() + (query_first_ ? 0 : kv_width);
    kv_ += kv_width + (query_first_ ? 0 : shape_.q_width());
  }
  // Behind the last row, when all have been walked.
  const BFloat16* end() const { return query_first_ ? kv_ : q_; }

 private:
  const AttentionDescriptor& shape_;
  const BFloat16* q_;
  const BFloat16* kv_;
  bool query_first_;
};

}  // namespace

// Copies k and v of the chunk's rows from the window into their slots, and with the last one those
// of prompt chunks. Returns how many bytes of the window that was.
absl::StatusOr<size_t> UnitAttention::Store(const Lane& lane, const Part& part,
                                            const RowChunk& chunk) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  kv_rows_.clear();
  RowPlaces places(chunk, shape);
  for (const Row& row : chunk.rows) {
    if (row.own) {
      kv_rows_.push_back({.k = places.kv(),
                          .v = places.kv() + shape.kv_width(),
                          .stride = shape.qkv_width(),
                          .slots = {&row.slot, 1}});
    }
    places.Next(row);
  }
  const BFloat16* end = chunk.rows.empty() ? places.q() : places.end();
  const bool prompts = chunk.last && !lane.chunks.empty();
  if (prompts && chunk.heads != part.heads) {
    LAMINA_RETURN_IF_ERROR(device_.Store(chunk.layer, chunk.heads, kv_rows_));
    kv_rows_.clear();
  }
  const size_t kv_width = PartOf(shape, part.heads).kv_width();  // Prompts come with all heads.
  for (size_t i = 0; prompts && i < lane.chunks.size(); ++i) {
    const Chunk& prompt = lane.chunks[i];
    kv_rows_.push_back(
        {.k = end, .v = end + kv_width, .stride = 2 * kv_width, .slots = prompt.slots});
    end += prompt.tokens * 2 * kv_width;
  }
  LAMINA_RETURN_IF_ERROR(device_.Store(chunk.layer, prompts ? part.heads : chunk.heads, kv_rows_));
  return static_cast<size_t>(reinterpret_cast<const std::byte*>(end) - chunk.window);
}

// Returns how many bytes of KV it has read.
absl::StatusOr<uint64_t> UnitAttention::Attend(Part& part, const RowChunk& chunk, Tokens tokens) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  items_.clear();
  cut_rows_.clear();
  const uint64_t context =
      span_tokens_ > 0 ? CollectSpanRows(part, chunk, tokens) : CollectItems(part, chunk, tokens);
  const uint64_t bytes = context * 2 * shape.kv_width() * sizeof(BFloat16);
  if (!items_.empty()) {
    LAMINA_RETURN_IF_ERROR(device_.Attend(chunk.layer, chunk.heads, items_));
    telemetry::AddTo(kv_bytes_read_, bytes);
  }
  if (tokens == Tokens::kOpen && !cut_rows_.empty()) {
    MergeCutRows(part, chunk);
  }
  return bytes;
}

// Rows whose sequences lie here as a whole. Returns how many tokens they see.
uint64_t UnitAttention::CollectItems(Part& part, const RowChunk& chunk, Tokens tokens) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  std::byte* const reply = RepliesFromDevice(part, chunk) ? part.device_reply : part.reply.data();
  auto* out = reinterpret_cast<BFloat16*>(reply + part.reply_bytes);
  float* partial = part.closed_partials.data();
  uint64_t context = 0;
  RowPlaces places(chunk, shape);
  for (const Row& row : chunk.rows) {
    if (tokens != Tokens::kAll && Cuts(row, shape)) {
      context += CollectCutRow(row, places.q(), tokens, shape, partial);
    } else if (tokens != Tokens::kClosed) {
      items_.push_back({.extents = row.sequence->extents,
                        .first_position = row.position,
                        .query_tokens = 1,
                        .q = places.q(),
                        .q_stride = shape.qkv_width(),
                        .out = out,
                        .out_stride = shape.q_width()});
      context += row.position + 1;
    }
    places.Next(row);
    out += shape.q_width();
  }
  return context;
}

// Rows of which some spans lie here. Returns how many tokens they see.
uint64_t UnitAttention::CollectSpanRows(Part& part, const RowChunk& chunk, Tokens tokens) {
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
uint64_t UnitAttention::CollectSpanItems(const Row& row, const BFloat16* q, Tokens tokens,
                                         const AttentionDescriptor& shape, float*& partial) {
  const uint32_t span_tokens = span_tokens_;
  uint64_t context = 0;
  for (const plan::SlotTables::Span& span : row.sequence->spans) {
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
