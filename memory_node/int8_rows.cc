// SPDX-License-Identifier: Apache-2.0
#include "memory_node/int8_rows.h"

#include <algorithm>

#include "common/kv_form.h"
#include "common/status_macros.h"

namespace lamina::memory_node {
namespace {

uint32_t TailSlotOf(const plan::SlotTables::Sequence& sequence) {
  return sequence.tail * kInt8BlockTokens;
}

}  // namespace

void Int8Rows::SetTokens(kernels::AttentionItem& item, const plan::SlotTables::Sequence& sequence,
                         uint32_t first_token, uint32_t position) {
  const uint32_t end = first_token + item.first_position + 1;
  item.int8_tokens = std::min(Int8TokensOf(position), end) - first_token;
  item.tail_slot = TailSlotOf(sequence);
}

absl::Status Int8Rows::StorePrompts(const Lane& lane, const SubBatch& chunk) {
  if (!chunk.last || lane.chunks.empty()) {
    return absl::OkStatus();
  }
  const size_t kv_width = chunk.queries.shape().part.kv_width();
  runs_.clear();
  uint32_t token = 0;
  for (const Chunk& prompt : lane.chunks) {
    const BFloat16* k = chunk.queries.Prompt(token);
    runs_.push_back({.slots = prompt.sequence->extents,
                     .tail_slot = TailSlotOf(*prompt.sequence),
                     .first_token = prompt.first_token,
                     .tokens = prompt.tokens,
                     .k = k,
                     .v = k + kv_width,
                     .kv_stride = chunk.queries.prompt_width()});
    token += prompt.tokens;
  }
  return int8_runs_.Run(device_, chunk.layer, chunk.all_heads, runs_);
}

// Rows [at, + tokens) of the chunk, which are one sequence's.
kernels::Int8Run Int8Rows::RunOf(const SubBatch& chunk, uint32_t at, uint32_t tokens) const {
  const Row& row = chunk.rows[at];
  const uint32_t i = chunk.in.first_row() + at;
  const AttentionDescriptor shape = ShapeOf(chunk);
  return {.slots = row.sequence->extents,
          .tail_slot = TailSlotOf(*row.sequence),
          .first_token = row.position,
          .tokens = tokens,
          .k = chunk.queries.At(chunk.in.k(i)),
          .v = chunk.queries.At(chunk.in.v(i)),
          .kv_stride = shape.qkv_width(),
          .q = chunk.queries.At(chunk.in.q(i)),
          .q_stride = shape.qkv_width(),
          .out = chunk.outputs.Row(chunk.out, i),
          .out_stride = shape.q_width()};
}

absl::StatusOr<uint64_t> Int8Rows::Attend(const SubBatch& chunk) {
  const AttentionDescriptor shape = ShapeOf(chunk);
  runs_.clear();
  uint64_t bytes = 0;
  for (uint32_t at = 0; at < chunk.rows.size();) {
    const uint32_t run = ConsecutiveRows(chunk.rows.subspan(at), UINT32_MAX);
    runs_.push_back(RunOf(chunk, at, run));
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

void Int8Rows::CollectRows(const SubBatch& chunk) {
  runs_.clear();
  for (uint32_t at = 0; at < chunk.rows.size(); ++at) {
    runs_.push_back(RunOf(chunk, at, 1));
  }
}

absl::Status Int8Rows::Store(const SubBatch& chunk) {
  CollectRows(chunk);
  return int8_runs_.Store(device_, chunk.layer, chunk.heads, runs_);
}

absl::Status Int8Rows::Close(const SubBatch& chunk) {
  CollectRows(chunk);
  return int8_runs_.Close(device_, chunk.layer, chunk.heads, runs_);
}

}  // namespace lamina::memory_node
