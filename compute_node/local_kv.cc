// SPDX-License-Identifier: Apache-2.0
#include "compute_node/local_kv.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv_form.h"
#include "common/status_macros.h"
#include "compute_node/step_layout.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {

kernels::KvDeviceOptions LocalKv::DeviceOptions(const plan::EpochConfig& config,
                                                const plan::Stage& stage, uint32_t node) {
  const auto layers = absl::MakeConstSpan(config.layers).subspan(stage.first_layer, stage.layers);
  // As many chunks as tokens at most: each has one.
  const uint32_t rows_max = plan::StepRowsMax(config);
  const bool int8 = config.int8_tails > 0;
  return {.layers = {layers.begin(), layers.end()},
          .arithmetic = config.attention.decode,
          .slots = int8 ? config.int8_tails * kInt8BlockTokens : config.slots[node],
          .context_tokens_max = config.sequence_tokens_max,
          .items_max = rows_max,
          .query_tokens_max = config.chunk_tokens_max,
          .store_tokens_max = rows_max,
          .int8_slots = int8 ? config.slots[node] : 0};
}

LocalKv::LocalKv(const plan::EpochConfig& config, const plan::Stage& stage,
                 kernels::KvDevice& device, plan::Tails* tails)
    : layers_(config.layers),
      first_layer_(stage.first_layer),
      end_layer_(stage.first_layer + stage.layers),
      device_(device),
      tables_({.node = stage.replica, .slots = device.slots(), .tails = config.int8_tails}, tails),
      steps_(config.lanes) {
  stored_.reserve(plan::StepRowsMax(config));
  items_.reserve(plan::StepRowsMax(config));
}

absl::Status LocalKv::BeginStep(const Lane& lane, const PathRows& rows) {
  BeginStep(lane.index);
  const std::vector<plan::DecodeRow>& planned = lane.plan.rows;
  const uint32_t end = rows.decode.first + rows.decode.count;
  for (uint32_t row = rows.decode.first; row < end;) {
    const plan::SequenceId id = planned[row].sequence;
    uint32_t tokens = 1;
    while (row + tokens < end && planned[row + tokens].sequence == id &&
           lane.positions[row + tokens] == lane.positions[row] + tokens) {
      ++tokens;
    }
    LAMINA_RETURN_IF_ERROR(AddRows(lane.index, id, row, lane.positions[row], tokens));
    row += tokens;
  }
  for (const ChunkRows& chunk : ChunksOf(lane, rows)) {
    LAMINA_RETURN_IF_ERROR(AddRows(lane.index, chunk.plan.sequence, chunk.first_row,
                                   chunk.plan.first_token, chunk.plan.tokens));
  }
  FindRead(lane);
  return absl::OkStatus();
}

absl::Status LocalKv::AddRows(uint32_t lane, plan::SequenceId id, uint32_t first_row,
                              uint32_t first_token, uint32_t tokens) {
  const plan::SlotTables::Sequence* sequence = tables_.Find(id);
  if (sequence == nullptr) {
    return absl::InternalError(
        absl::StrCat("plan has rows of sequence ", id, ", which is not here"));
  }
  LAMINA_ASSIGN_OR_RETURN(std::vector<Extent> slots,
                          tables_.SlotsOf(*sequence, first_token, tokens));
  steps_[lane].push_back({.sequence = sequence,
                          .first_row = first_row,
                          .first_token = first_token,
                          .tokens = tokens,
                          .slots = std::move(slots),
                          .read = tokens});
  return absl::OkStatus();
}

void LocalKv::FindRead(const Lane& lane) {
  for (Rows& rows : steps_[lane.index]) {
    const RowRange read = RowsRead(lane, rows.first_row, rows.tokens);
    rows.read_from = read.count == 0 ? 0 : read.first - rows.first_row;
    rows.read = read.count;
  }
}

std::optional<kernels::KvPlanes> LocalKv::Planes(uint32_t layer) const {
  return layer >= first_layer_ && layer < end_layer_ ? device_.Planes(layer - first_layer_)
                                                     : std::nullopt;
}

void LocalKv::SlotsOfRows(uint32_t lane, absl::Span<uint32_t> slots) const {
  for (const Rows& rows : steps_[lane]) {
    uint32_t* to = &slots[rows.first_row];
    for (const Extent& extent : rows.slots) {
      std::iota(to, to + extent.tokens, extent.first_slot);
      to += extent.tokens;
    }
  }
}

absl::Status LocalKv::Store(uint32_t lane, uint32_t layer,
                            const kernels::MatrixView<BFloat16>& qkv) {
  if (device_.int8() != nullptr) {
    return absl::OkStatus();  // As each block of the rows' sequences takes its turn.
  }
  const AttentionDescriptor& shape = layers_[layer];
  stored_.clear();
  for (const Rows& rows : steps_[lane]) {
    const BFloat16* k = qkv.row(rows.first_row) + shape.q_width();
    stored_.push_back(
        {.k = k, .v = k + shape.kv_width(), .stride = qkv.stride, .slots = rows.slots});
  }
  return device_.Store(layer - first_layer_, AllHeads(shape), stored_);
}

absl::StatusOr<uint64_t> LocalKv::Attend(uint32_t lane, uint32_t layer,
                                         const kernels::MatrixView<BFloat16>& qkv,
                                         const kernels::MatrixView<BFloat16>& out) {
  if (device_.int8() != nullptr) {
    return AttendInt8(lane, layer, qkv, out);
  }
  const bool last = layer + 1 == layers_.size();
  uint64_t context = 0;
  items_.clear();
  for (const Rows& rows : steps_[lane]) {
    const uint32_t tokens = last ? rows.read : rows.tokens;
    if (tokens == 0) {
      continue;
    }
    const uint32_t skipped = last ? rows.read_from : 0;
    const uint32_t position = rows.first_token + skipped;
    items_.push_back({.extents = rows.sequence->extents,
                      .first_position = position,
                      .query_tokens = tokens,
                      .q = qkv.row(rows.first_row + skipped),
                      .q_stride = qkv.stride,
                      .out = out.row(rows.first_row + skipped),
                      .out_stride = out.stride});
    const uint32_t window = layers_[layer].window;
    context += tokens + (window == 0 ? position : std::min(position, window - 1));
  }
  if (items_.empty()) {
    return 0;
  }
  LAMINA_RETURN_IF_ERROR(device_.Attend(layer - first_layer_, AllHeads(layers_[layer]), items_));
  return context * 2 * layers_[layer].kv_width() * sizeof(BFloat16);
}

absl::StatusOr<uint64_t> LocalKv::AttendInt8(uint32_t lane, uint32_t layer,
                                             const kernels::MatrixView<BFloat16>& qkv,
                                             const kernels::MatrixView<BFloat16>& out) {
  const AttentionDescriptor& shape = layers_[layer];
  const bool last = layer + 1 == layers_.size();
  uint64_t context = 0;
  runs_.clear();
  for (const Rows& rows : steps_[lane]) {
    const uint32_t read = last ? rows.read : rows.tokens;
    const uint32_t read_from = last ? rows.read_from : 0;
    const BFloat16* const q = qkv.row(rows.first_row);
    runs_.push_back({.slots = rows.sequence->extents,
                     .tail_slot = rows.sequence->tail * kInt8BlockTokens,
                     .first_token = rows.first_token,
                     .tokens = rows.tokens,
                     .k = q + shape.q_width(),
                     .v = q + shape.q_width() + shape.kv_width(),
                     .kv_stride = qkv.stride,
                     .q = q,
                     .q_stride = qkv.stride,
                     .out = out.row(rows.first_row),
                     .out_stride = out.stride,
                     .read_from = read_from,
                     .read = read});
    if (read > 0) {
      const uint32_t position = rows.first_token + read_from;
      context += read + (shape.window == 0 ? position : std::min(position, shape.window - 1));
    }
  }
  LAMINA_RETURN_IF_ERROR(int8_runs_.Run(device_, layer - first_layer_, AllHeads(shape), runs_));
  return context * KvSlotBytes({{shape}}, KvForm::kInt8);
}

}  // namespace lamina::compute_node
