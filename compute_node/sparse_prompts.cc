// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_prompts.h"

#include <algorithm>
#include <numeric>

#include "compute_node/step_layout.h"

namespace lamina::compute_node {

SparsePrompts::SparsePrompts(const WorkerContext& context, kernels::KvArena& scratch,
                             SparseSums& sums, WeighedAttention& attention)
    : context_(context),
      scratch_(scratch),
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
  const auto out = context_.executor.AttentionRows(layer, lane.positions.size(), lane.buffers);
  const BFloat16* const k = qkv.row(run.first_row) + shape.q_width();
  const Extent own{.first_slot = chunk.sequence.first_slot + run.first_token, .tokens = run.tokens};
  kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, {&own, 1}, scratch_.k(layer),
                   scratch_.v(layer), scratch_.head_stride(layer));
  const auto attend = [&](uint32_t first, uint32_t count, float* weights) {
    const WeighedAttention::Item item{.attention = {.extents = {&chunk.sequence, 1},
                                                    .first_position = run.first_token + first,
                                                    .query_tokens = count,
                                                    .q = qkv.row(run.first_row + first),
                                                    .q_stride = qkv.stride,
                                                    .out = out.row(run.first_row + first),
                                                    .out_stride = out.stride},
                                      .weights = weights,
                                      .stride = chunk.sequence.tokens};
    attention_.Attend(shape, scratch_.View(layer), {&item, 1});
  };
  uint32_t first = run.tokens - chunk.weighed;
  if (first > 0) {
    attend(0, first, nullptr);
  }
  while (first < run.tokens) {
    const uint32_t count = std::min(kWeighedAtOnce, run.tokens - first);
    weights_.assign(size_t{count} * chunk.sequence.tokens, 0.0f);
    attend(first, count, weights_.data());
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t position = run.first_token + first + i;
      sums_.Of(run.sequence, layer)
          .Add(position, absl::MakeConstSpan(tokens_).first(position + 1),
               {weights_.data() + size_t{i} * chunk.sequence.tokens, size_t{position} + 1});
    }
    first += count;
  }
}

}  // namespace lamina::compute_node
