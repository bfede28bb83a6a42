// SPDX-License-Identifier: Apache-2.0
#include "memory_node/unit_attention.h"

#include "common/kv_form.h"
#include "common/status_macros.h"
#include "kernels/span_partials.h"
#include "telemetry/work_meter.h"

namespace lamina::memory_node {

absl::Status UnitAttention::Store(const Lane& lane, const SubBatch& chunk) {
  if (int8_rows_.on()) {
    return int8_rows_.StorePrompts(lane, chunk);
  }
  const AttentionDescriptor shape = ShapeOf(chunk);
  kv_rows_.clear();
  for (uint32_t i = chunk.in.first_row(); i < chunk.in.rows_end() && chunk.in.own(i); ++i) {
    kv_rows_.push_back({.k = chunk.queries.At(chunk.in.k(i)),
                        .v = chunk.queries.At(chunk.in.v(i)),
                        .stride = shape.qkv_width(),
                        .slots = {&lane.rows[i].slot, 1}});
  }
  const bool prompts = chunk.last && !lane.chunks.empty();
  if (prompts && chunk.heads != chunk.all_heads) {
    LAMINA_RETURN_IF_ERROR(device_.Store(chunk.layer, chunk.heads, kv_rows_));
    kv_rows_.clear();
  }
  const size_t width = chunk.queries.prompt_width();
  const size_t kv_width = chunk.queries.shape().part.kv_width();
  activation_rows_.clear();
  uint32_t token = 0;
  for (size_t i = 0; prompts && i < lane.chunks.size(); ++i) {
    const Chunk& prompt = lane.chunks[i];
    const BFloat16* k = chunk.queries.Prompt(token);
    if (prompt.kept != Kept::kActivation) {
      kv_rows_.push_back({.k = k, .v = k + kv_width, .stride = width, .slots = prompt.slots});
    }
    if (prompt.kept != Kept::kKv) {
      activation_rows_.push_back(
          {.activation = k + 2 * kv_width, .stride = width, .slots = prompt.slots});
    }
    token += prompt.tokens;
  }
  if (device_.activations() != nullptr) {
    LAMINA_RETURN_IF_ERROR(device_.activations()->Store(chunk.layer, activation_rows_));
  }
  return device_.Store(chunk.layer, prompts ? chunk.all_heads : chunk.heads, kv_rows_);
}

absl::StatusOr<uint64_t> UnitAttention::Attend(const SubBatch& chunk, Tokens tokens) {
  items_.clear();
  cut_rows_.clear();
  if (int8_rows_.on() && tokens == Tokens::kAll) {
    LAMINA_ASSIGN_OR_RETURN(const uint64_t read, span_tokens_ > 0 ? AttendSpansInTurns(chunk)
                                                                  : int8_rows_.Attend(chunk));
    telemetry::AddTo(kv_bytes_read_, read);
    return read;
  }
  if (int8_rows_.on() && tokens == Tokens::kOpen) {
    LAMINA_RETURN_IF_ERROR(int8_rows_.Store(chunk, 0, chunk.rows.size()));
  }
  const uint64_t context = span_tokens_ > 0 ? CollectSpanRows(chunk, 0, chunk.rows.size(), tokens)
                                            : CollectItems(chunk, tokens);
  const AttentionDescriptor shape = ShapeOf(chunk);
  const uint64_t bytes =
      context * KvSlotBytes({&shape, 1}, int8_rows_.on() ? KvForm::kInt8 : KvForm::kBF16);
  if (!items_.empty()) {
    LAMINA_RETURN_IF_ERROR(device_.Attend(chunk.layer, chunk.heads, items_));
    telemetry::AddTo(kv_bytes_read_, bytes);
  }
  if (tokens == Tokens::kOpen && !cut_rows_.empty()) {
    MergeCutRows(chunk);
  }
  if (int8_rows_.on() && tokens == Tokens::kOpen) {
    LAMINA_RETURN_IF_ERROR(int8_rows_.Close(chunk, 0, chunk.rows.size()));
  }
  return bytes;
}

// Rows of a cut sequence where slots are INT8: those of one block are stored and attended before
// the next ones overwrite its tail. Rows whose own tokens lie elsewhere come last, since these of
// the same step may have closed the last block that they see here.
absl::StatusOr<uint64_t> UnitAttention::AttendSpansInTurns(const SubBatch& chunk) {
  uint64_t context = 0;
  for (size_t at = 0; at < chunk.rows.size();) {
    const size_t end = Int8Rows::TurnEnd(chunk, at);
    LAMINA_RETURN_IF_ERROR(int8_rows_.Store(chunk, at, end));
    items_.clear();
    context += CollectSpanRows(chunk, at, end, Tokens::kAll);
    if (!items_.empty()) {
      LAMINA_RETURN_IF_ERROR(device_.Attend(chunk.layer, chunk.heads, items_));
    }
    LAMINA_RETURN_IF_ERROR(int8_rows_.Close(chunk, at, end));
    at = end;
  }
  const AttentionDescriptor shape = ShapeOf(chunk);
  return context * KvSlotBytes({&shape, 1}, KvForm::kInt8);
}

// Rows whose sequences lie here as a whole. Consecutive tokens of one sequence, a prompt's, are one
// item: its K and V are read once for many of them. Returns how many tokens the items see.
uint64_t UnitAttention::CollectItems(const SubBatch& chunk, Tokens tokens) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  float* partial = chunk.closed_partials;
  uint64_t context = 0;
  for (size_t at = 0; at < chunk.rows.size();) {
    const Row& row = chunk.rows[at];
    const uint32_t i = chunk.in.first_row() + static_cast<uint32_t>(at);
    const BFloat16* const q = chunk.queries.At(chunk.in.q(i));
    uint32_t run = 1;
    if (tokens != Tokens::kAll && Cuts(row, shape)) {
      context += CollectCutRow(row, q, tokens, shape, partial);
    } else if (tokens != Tokens::kClosed) {
      run = tokens == Tokens::kAll ? ConsecutiveRows(chunk.rows.subspan(at), query_tokens_max_) : 1;
      items_.push_back({.extents = row.sequence->extents,
                        .first_position = row.position,
                        .query_tokens = run,
                        .q = q,
                        .q_stride = shape.qkv_width(),
                        .out = chunk.outputs.Row(chunk.out, i),
                        .out_stride = shape.q_width()});
      if (int8_rows_.on()) {
        Int8Rows::SetTokens(items_.back(), *row.sequence, 0, row.position);
      }
      context += row.position + run - kernels::FirstSeen(shape, row.position);
    }
    at += run;
  }
  return context;
}

// Rows [first, end) of the chunk, of which some spans lie here. Returns how many tokens they see.
uint64_t UnitAttention::CollectSpanRows(const SubBatch& chunk, size_t first, size_t end,
                                        Tokens tokens) {
  uint64_t context = 0;
  for (size_t at = first; at < end; ++at) {
    const uint32_t i = chunk.in.first_row() + static_cast<uint32_t>(at);
    context += CollectSpanItems(chunk, chunk.rows[at], chunk.queries.At(chunk.in.q(i)), tokens);
  }
  return context;
}

// A span is attended as a sequence of its own, with positions counted from its start; one that a
// window hides as a whole gives an empty partial. Only the one of the row's own token waits for k
// and v.
uint64_t UnitAttention::CollectSpanItems(const SubBatch& chunk, const Row& row, const BFloat16* q,
                                         Tokens tokens) {
  const uint32_t span_tokens = span_tokens_;
  const AttentionDescriptor shape = ShapeOf(chunk);
  uint64_t context = 0;
  uint32_t partial = row.first_partial;
  for (const plan::SlotTables::Span& span : row.sequence->spans) {
    const uint32_t start = span.index * span_tokens;
    if (start > row.position) {
      break;
    }
    const bool open = row.own && row.position - start < span_tokens;
    if (tokens == Tokens::kAll || open == (tokens == Tokens::kOpen)) {
      const kernels::SeenOfSpan seen = kernels::SeenOf(shape, row.position, start, span_tokens);
      float* const to = chunk.outputs.Partial(chunk.out, partial);
      if (seen.none()) {
        kernels::WriteEmptyPartial(shape, to);
      } else {
        items_.push_back({.extents = span.extents,
                          .first_position = seen.last,
                          .query_tokens = 1,
                          .first_seen = seen.first,
                          .q = q,
                          .q_stride = shape.qkv_width(),
                          .partial = to});
        if (int8_rows_.on()) {
          Int8Rows::SetTokens(items_.back(), *row.sequence, start, row.position);
        }
        context += seen.tokens();
      }
    }
    ++partial;
  }
  return context;
}

}  // namespace lamina::memory_node
