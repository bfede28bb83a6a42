// SPDX-License-Identifier: Apache-2.0
#include "memory_node/int8_rows.h"

#include <algorithm>

#include "common/check.h"
#include "common/kv_form.h"
#include "common/status_macros.h"

namespace lamina::memory_node {
namespace {

uint32_t TailSlotOf(const plan::SlotTables::Sequence& sequence) {
  return sequence.tail * kInt8BlockTokens;
}

bool InOneBlock(const Row& a, const Row& b) {
  return Int8TokensOf(a.position) == Int8TokensOf(b.position);
}

}  // namespace

void Int8Rows::SetTokens(kernels::AttentionItem& item, const plan::SlotTables::Sequence& sequence,
                         uint32_t first_token, uint32_t position) {
  const uint32_t end = first_token + item.first_position + 1;
  item.int8_tokens = std::min(Int8TokensOf(position), end) - first_token;
  item.tail_slot = TailSlotOf(sequence);
}

// Finds the slots of a token that lies here.
Int8Rows::Place Int8Rows::PlaceOf(const plan::SlotTables::Sequence& sequence,
                                  uint32_t token) const {
  if (span_tokens_ == 0) {
    return {.slots = sequence.extents};
  }
  const uint32_t index = token / span_tokens_;
  const auto span =
      std::find_if(sequence.spans.begin(), sequence.spans.end(),
                   [index](const plan::SlotTables::Span& one) { return one.index == index; });
  LAMINA_CHECK(span != sequence.spans.end());
  return {.slots = span->extents, .first = index * span_tokens_};
}

// A sequence has one tail here, so that its tokens in several spans take turns.
absl::Status Int8Rows::StorePrompts(const Lane& lane, const SubBatch& chunk) {
  if (!chunk.last || lane.chunks.empty()) {
    return absl::OkStatus();
  }
  const size_t kv_width = chunk.queries.shape().part.kv_width();
  runs_.clear();
  uint32_t token = 0;
  const plan::SlotTables::Sequence* before = nullptr;
  for (const Chunk& prompt : lane.chunks) {
    if (prompt.sequence == before) {
      LAMINA_RETURN_IF_ERROR(int8_runs_.Run(device_, chunk.layer, chunk.all_heads, runs_));
      runs_.clear();
    }
    before = prompt.sequence;
    const Place place = PlaceOf(*prompt.sequence, prompt.first_token);
    const BFloat16* k = chunk.queries.Prompt(token);
    runs_.push_back({.slots = place.slots,
                     .tail_slot = TailSlotOf(*prompt.sequence),
                     .first_token = prompt.first_token - place.first,
                     .tokens = prompt.tokens,
                     .k = k,
                     .v = k + kv_width,
                     .kv_stride = chunk.queries.prompt_width()});
    token += prompt.tokens;
  }
  return int8_runs_.Run(device_, chunk.layer, chunk.all_heads, runs_);
}

// Rows [at, + tokens) of the chunk, which are one sequence's, without what attends.
kernels::Int8Run Int8Rows::RunOf(const SubBatch& chunk, size_t at, uint32_t tokens) const {
  const Row& row = chunk.rows[at];
  const uint32_t i = chunk.in.first_row() + static_cast<uint32_t>(at);
  const Place place = PlaceOf(*row.sequence, row.position);
  return {.slots = place.slots,
          .tail_slot = TailSlotOf(*row.sequence),
          .first_token = row.position - place.first,
          .tokens = tokens,
          .k = chunk.queries.At(chunk.in.k(i)),
          .v = chunk.queries.At(chunk.in.v(i)),
          .kv_stride = ShapeOf(chunk).qkv_width()};
}

absl::StatusOr<uint64_t> Int8Rows::Attend(const SubBatch& chunk) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  runs_.clear();
  uint64_t bytes = 0;
  for (uint32_t at = 0; at < chunk.rows.size();) {
    const uint32_t run = ConsecutiveRows(chunk.rows.subspan(at), UINT32_MAX);
    const uint32_t i = chunk.in.first_row() + at;
    runs_.push_back(RunOf(chunk, at, run));
    runs_.back().q = chunk.queries.At(chunk.in.q(i));
    runs_.back().q_stride = shape.qkv_width();
    runs_.back().out = chunk.outputs.Row(chunk.out, i);
    runs_.back().out_stride = shape.q_width();
    // Tokens of the open block are bf16.
    const uint32_t tokens = chunk.rows[at].position + run;
    const uint32_t seen = shape.window == 0 ? tokens : std::min(tokens, shape.window + run - 1);
    const uint32_t open = std::min(seen, tokens - Int8TokensOf(tokens - 1));
    bytes += shape.kv_heads * (open * KvHeadBytes(shape.head_dim, KvForm::kBF16) +
                               (seen - open) * KvHeadBytes(shape.head_dim, KvForm::kInt8));
    at += run;
  }
  LAMINA_RETURN_IF_ERROR(int8_runs_.Run(device_, chunk.layer, chunk.heads, runs_));
  return bytes;
}

// Rows with k and v come first (Lane::rows).
size_t Int8Rows::TurnEnd(const SubBatch& chunk, size_t first) {
  const absl::Span<const Row> rows = chunk.rows;
  if (!rows[first].own) {
    return rows.size();
  }
  size_t end = first + 1;
  while (end < rows.size() && rows[end].own &&
         (rows[end].sequence != rows[end - 1].sequence || InOneBlock(rows[end], rows[end - 1]))) {
    ++end;
  }
  return end;
}

void Int8Rows::CollectRows(const SubBatch& chunk, size_t first, size_t end) {
  runs_.clear();
  for (size_t at = first; at < end && chunk.rows[at].own;) {
    const uint32_t run = ConsecutiveRows(chunk.rows.subspan(at, end - at), UINT32_MAX);
    runs_.push_back(RunOf(chunk, at, run));
    at += run;
  }
}

absl::Status Int8Rows::Store(const SubBatch& chunk, size_t first, size_t end) {
  CollectRows(chunk, first, end);
  return int8_runs_.Store(device_, chunk.layer, chunk.heads, runs_);
}

absl::Status Int8Rows::Close(const SubBatch& chunk, size_t first, size_t end) {
  CollectRows(chunk, first, end);
  return int8_runs_.Close(device_, chunk.layer, chunk.heads, runs_);
}

}  // namespace lamina::memory_node
