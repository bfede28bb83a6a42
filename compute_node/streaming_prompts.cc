// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streaming_prompts.h"

#include "plan/streaming_tokens.h"

namespace lamina::compute_node {

void StreamingPrompts::Attend(Lane& lane) {
  const std::vector<ChunkRows>& chunks = lanes_[lane.index];
  if (chunks.empty()) {
    return;
  }
  const uint32_t layer = lane.slice;
  const AttentionDescriptor& shape = context_.config.layers[layer];
  const auto qkv = context_.executor.QkvRows(layer, lane.positions.size(), lane.buffers);
  const auto out = context_.executor.AttentionRows(layer, lane.positions.size(), lane.buffers);
  for (const ChunkRows& chunk : chunks) {
    const BFloat16* const k = qkv.row(chunk.first_row) + shape.q_width();
    const Extent own{.first_slot = chunk.plan.scratch_offset + chunk.plan.first_token,
                     .tokens = chunk.plan.tokens};
    kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, {&own, 1}, scratch_.k(layer),
                     scratch_.v(layer), scratch_.head_stride(layer));
  }
  for (const plan::AlikeHeads& range :
       plan::AlikeHeadsOf(context_.config.streaming, layer, AllHeads(shape))) {
    const size_t first_q = size_t{range.heads.first} * shape.group() * shape.head_dim;
    rows_.Clear();
    for (const ChunkRows& chunk : chunks) {
      const StreamingRows::Rows rows{.first_position = chunk.plan.first_token,
                                     .tokens = chunk.plan.tokens,
                                     .q = qkv.row(chunk.first_row) + first_q,
                                     .q_stride = qkv.stride,
                                     .out = out.row(chunk.first_row) + first_q,
                                     .out_stride = out.stride};
      if (range.streams) {
        rows_.AddStreamed(rows, {.first_slot = chunk.plan.scratch_offset});
      } else {
        rows_.AddWhole(rows, chunk.plan.scratch_offset);
      }
    }
    rows_.Attend(PartOf(shape, range.heads), scratch_.View(layer, range.heads.first));
  }
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kChunks, layer);
}

}  // namespace lamina::compute_node
