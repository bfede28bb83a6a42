// SPDX-License-Identifier: Apache-2.0
#include "compute_node/scratch_attention.h"

#include "common/status_macros.h"
#include "compute_node/step_layout.h"

namespace lamina::compute_node {

// Each attends over all tokens of the sequence up to the chunk's end.
void ScratchAttention::BeginStep(const Lane& lane, const PathRows& rows) {
  auto& [items, of_last] = lanes_[lane.index];
  items.clear();
  of_last.clear();
  for (const ChunkRows& chunk : ChunksOf(lane, rows)) {
    items.push_back({.sequence = {.first_slot = chunk.plan.scratch_offset,
                                  .tokens = chunk.plan.first_token + chunk.plan.tokens},
                     .first_position = chunk.plan.first_token,
                     .tokens = chunk.plan.tokens,
                     .first_row = chunk.first_row});
    const RowRange read = RowsRead(lane, chunk.first_row, chunk.plan.tokens);
    kernels::ChunkItem& last = of_last.emplace_back(items.back());
    last.read_from = read.count == 0 ? 0 : read.first - chunk.first_row;
    last.read = read.count;
  }
}

absl::Status ScratchAttention::Attend(Lane& lane) {
  const uint32_t layer = lane.slice;
  const bool last = layer + 1 == context_.config.layers.size();
  const Chunks& chunks = lanes_[lane.index];
  const std::vector<kernels::ChunkItem>& items = last ? chunks.of_last : chunks.items;
  if (items.empty()) {
    return absl::OkStatus();
  }
  const size_t rows = lane.positions.size();
  LAMINA_RETURN_IF_ERROR(kernel_.Attend(
      layer - first_layer_, items, context_.executor.DeviceQkvRows(layer, rows, lane.buffers),
      context_.executor.DeviceAttentionRows(layer, rows, lane.buffers)));
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kChunks, layer);
  return absl::OkStatus();
}

}  // namespace lamina::compute_node
