// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_prompts.h"

#include <algorithm>
#include <numeric>

#include "common/kv_form.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

SparsePrompts::SparsePrompts(const WorkerContext& context, kernels::KvArena& scratch,
                             kernels::Int8Arena* int8, SparseSums& sums,
                             WeighedAttention& attention)
    : context_(context),
      scratch_(scratch),
      int8_(int8),
      sums_(sums),
      attention_(attention),
      lanes_(context.config.lanes),
      tokens_(context.config.sequence_tokens_max) {
  std::iota(tokens_.begin(), tokens_.end(), 0);
}

void SparsePrompts::BeginStep(const Lane& lane, const PathRows& rows) {
  std::vector<Chunk>& chunks = lanes_[lane.index];
  chunks.clear();
  for (const ChunkRows& chunk : ChunksOf(lane, rows)) {
    const Sequence& sequence = *context_.sequences.Find(chunk.plan.sequence);
    const RowRun run{.sequence = chunk.plan.sequence,
                     .memory_node = sequence.join.memory_node,
                     .first_row = chunk.first_row,
                     .first_token = chunk.plan.first_token,
                     .tokens = chunk.plan.tokens};
    chunks.push_back({.rows = run,
                      .sequence = {.first_slot = chunk.plan.scratch_offset,
                                   .tokens = run.first_token + run.tokens},
                      .weighed = sums_.Weighed(sequence, run)});
  }
}

void SparsePrompts::Attend(Lane& lane) {
  for (const Chunk& chunk : lanes_[lane.index]) {
    AttendChunk(lane, chunk);
    context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kChunks, lane.slice);
  }
}

void SparsePrompts::AttendChunk(Lane& lane, const Chunk& chunk) {
  const uint32_t layer = lane.slice;
  const RowRun& run = chunk.rows;
  const AttentionDescriptor& shape = context_.config.layers[layer];
  const auto qkv = context_.executor.QkvRows(layer, lane.positions.size(), lane.buffers);
  const BFloat16* const k = qkv.row(run.first_row) + shape.q_width();
  const Extent own{.first_slot = chunk.sequence.first_slot + run.first_token, .tokens = run.tokens};
  kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, {&own, 1}, scratch_.k(layer),
                   scratch_.v(layer), scratch_.head_stride(layer));
  if (int8_ != nullptr) {
    Close(layer, chunk);
  }
  uint32_t first = run.tokens - chunk.weighed;
  AttendRows(lane, chunk, 0, first, nullptr);
  while (first < run.tokens) {
    const uint32_t count = std::min(kWeighedAtOnce, run.tokens - first);
    weights_.assign(size_t{count} * chunk.sequence.tokens, 0.0f);
    AttendRows(lane, chunk, first, count, weights_.data());
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t position = run.first_token + first + i;
      sums_.Of(run.sequence, layer)
          .Add(position, absl::MakeConstSpan(tokens_).first(position + 1),
               {weights_.data() + size_t{i} * chunk.sequence.tokens, size_t{position} + 1});
    }
    first += count;
  }
}

void SparsePrompts::Close(uint32_t layer, const Chunk& chunk) {
  const uint32_t end = chunk.rows.first_token + chunk.rows.tokens;
  for (uint32_t block = Int8TokensOf(chunk.rows.first_token); block + kInt8BlockTokens <= end;
       block += kInt8BlockTokens) {
    kernels::CloseInt8Block(context_.config.layers[layer], scratch_.View(layer),
                            chunk.sequence.first_slot + block, {&chunk.sequence, 1}, block,
                            int8_->View(layer));
  }
}

// With INT8 rows of a block see all blocks before theirs as that.
void SparsePrompts::AttendRows(Lane& lane, const Chunk& chunk, uint32_t first, uint32_t count,
                               float* weights) {
  const uint32_t layer = lane.slice;
  const RowRun& run = chunk.rows;
  const auto qkv = context_.executor.QkvRows(layer, lane.positions.size(), lane.buffers);
  const auto out = context_.executor.AttentionRows(layer, lane.positions.size(), lane.buffers);
  const size_t stride = chunk.sequence.tokens;
  const uint32_t begin = run.first_token + first;
  const uint32_t end = begin + count;
  items_.clear();
  for (uint32_t at = begin; at < end;) {
    const uint32_t block = int8_ != nullptr ? Int8TokensOf(at) : 0;
    const uint32_t next = int8_ != nullptr ? std::min(end, block + kInt8BlockTokens) : end;
    const uint32_t row = run.first_row + at - run.first_token;
    items_.push_back({.attention = {.extents = {&chunk.sequence, 1},
                                    .first_position = at,
                                    .query_tokens = next - at,
                                    .q = qkv.row(row),
                                    .q_stride = qkv.stride,
                                    .out = out.row(row),
                                    .out_stride = out.stride,
                                    .int8_tokens = block,
                                    .tail_slot = chunk.sequence.first_slot + block},
                      .weights = weights == nullptr ? nullptr : weights + (at - begin) * stride,
                      .stride = stride});
    at = next;
  }
  kernels::KvView view = scratch_.View(layer);
  kernels::Int8View int8;
  if (int8_ != nullptr) {
    int8 = int8_->View(layer);
    view.int8 = &int8;
  }
  attention_.Attend(context_.config.layers[layer], view, items_);
}

}  // namespace lamina::compute_node
