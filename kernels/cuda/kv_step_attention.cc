// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/cuda/kv_step_attention_internal.h"

namespace lamina::kernels::cuda {
namespace {

// Pieces of memory for each lane.
constexpr uint64_t kPieces = 16;

size_t WidestRow(const CudaKvStepAttention::Options& options) {
  size_t widest = 0;
  for (const AttentionDescriptor& layer : options.layers) {
    widest = std::max<size_t>(widest, layer.qkv_width());
  }
  return widest;
}

size_t WidestQuery(const CudaKvStepAttention::Options& options) {
  size_t widest = 0;
  for (const AttentionDescriptor& layer : options.layers) {
    widest = std::max<size_t>(widest, layer.q_width());
  }
  return widest;
}

// Bytes that all lanes take, at most.
uint64_t DeviceBytesOf(const CudaKvStepAttention::Options& options) {
  const uint64_t rows = options.attention.query_rows_max;
  const uint64_t lane = LayerAttentions::DeviceBytes(options.layers, options.attention) +
                        BytesOf<BFloat16>(rows * WidestRow(options)) +
                        BytesOf<BFloat16>(rows * WidestQuery(options)) + BytesOf<uint32_t>(rows) +
                        kPieces * kPieceAlignment;
  return options.lanes * lane;
}

uint64_t PinnedBytesOf(const CudaKvStepAttention::Options& options) {
  const uint64_t lane = LayerAttentions::PinnedBytes(options.layers, options.attention) +
                        BytesOf<uint32_t>(options.attention.query_rows_max) +
                        kPieces * kPieceAlignment;
  return options.lanes * lane;
}

}  // namespace

CudaKvStepAttention::CudaKvStepAttention(const Options& options, const KvLayers& layers,
                                         const Stream& stores, std::atomic<bool>& usable,
                                         MemoryArena device_arena, MemoryArena pinned_arena)
    : options_(options),
      layers_(layers),
      stores_(stores),
      usable_(usable),
      device_arena_(std::move(device_arena)),
      pinned_arena_(std::move(pinned_arena)) {
  items_.reserve(options.attention.query_rows_max);
}

absl::StatusOr<std::unique_ptr<CudaKvStepAttention>> CudaKvStepAttention::Create(
    const Options& options, const DeviceInfo& info, const KvLayers& layers, const Stream& stores,
    std::atomic<bool>& usable) {
  LAMINA_ASSIGN_OR_RETURN(MemoryArena device_arena,
                          MemoryArena::Create(ArenaKind::kDevice, DeviceBytesOf(options)));
  LAMINA_ASSIGN_OR_RETURN(MemoryArena pinned_arena,
                          MemoryArena::Create(ArenaKind::kPinnedHost, PinnedBytesOf(options)));
  std::unique_ptr<CudaKvStepAttention> steps(new CudaKvStepAttention(
      options, layers, stores, usable, std::move(device_arena), std::move(pinned_arena)));
  for (uint32_t lane = 0; lane < options.lanes; ++lane) {
    LAMINA_RETURN_IF_ERROR(steps->TakeLane(info));
  }
  LAMINA_RETURN_IF_ERROR(steps->TryKernels());
  return steps;
}

absl::Status CudaKvStepAttention::TakeLane(const DeviceInfo& info) {
  const uint64_t rows = options_.attention.query_rows_max;
  LAMINA_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  lanes_.push_back(std::make_unique<Lane>(std::move(stream)));
  Lane& lane = *lanes_.back();
  LAMINA_ASSIGN_OR_RETURN(lane.attentions,
                          LayerAttentions::Create(options_.layers, options_.attention, info,
                                                  device_arena_, pinned_arena_, lane.stream));
  LAMINA_ASSIGN_OR_RETURN(lane.rows, device_arena_.Take<BFloat16>(rows * WidestRow(options_)));
  LAMINA_ASSIGN_OR_RETURN(lane.out, device_arena_.Take<BFloat16>(rows * WidestQuery(options_)));
  return lane.slots.Take(rows, device_arena_, pinned_arena_);
}

// A unit of one row in a layer of each kind, whose k and v are those of the slot that they go into:
// somebody's may lie there.
absl::Status CudaKvStepAttention::TryKernels() {
  const Extent slot = {.first_slot = 0, .tokens = 1};
  const StepRow row = {.extents = {&slot, 1}};
  Lane& lane = *lanes_.front();
  LAMINA_RETURN_IF_ERROR(
      FillAsync(lane.rows, 0, WidestRow(options_) * sizeof(BFloat16), lane.stream));
  for (const std::unique_ptr<CudaAttention>& kind : lane.attentions.all()) {
    uint32_t layer = 0;
    while (lane.attentions.OfLayer(layer) != kind.get()) {
      ++layer;
    }
    LAMINA_RETURN_IF_ERROR(TryBeginStep(lane, {&row, 1}));
    LAMINA_RETURN_IF_ERROR(ReadFirstSlot(lane, layer));
    LAMINA_RETURN_IF_ERROR(TryAttend(lane, layer));
    LAMINA_RETURN_IF_ERROR(lane.stream.Synchronize());
  }
  return absl::OkStatus();
}

// K and V of slot 0 become those of the lane's first row. Head by head: these may lie further apart
// than the strides that a copy of rows takes, 2 GiB.
absl::Status CudaKvStepAttention::ReadFirstSlot(const Lane& lane, uint32_t index) {
  const KvLayers::Layer& layer = layers_[index];
  const AttentionDescriptor& d = layer.descriptor;
  BFloat16* const k = lane.rows + d.q_width();
  BFloat16* const v = k + d.kv_width();
  const size_t bytes = d.head_dim * sizeof(BFloat16);
  for (size_t head = 0; head < d.kv_heads; ++head) {
    const size_t from = head * layer.head_stride;
    LAMINA_RETURN_IF_ERROR(CopyAsync(k + head * d.head_dim, layer.k + from, bytes, lane.stream));
    LAMINA_RETURN_IF_ERROR(CopyAsync(v + head * d.head_dim, layer.v + from, bytes, lane.stream));
  }
  return absl::OkStatus();
}

std::vector<const Stream*> CudaKvStepAttention::streams(uint32_t lanes) const {
  LAMINA_CHECK(lanes <= lanes_.size());
  std::vector<const Stream*> streams;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    streams.push_back(&lanes_[lane]->stream);
  }
  return streams;
}

bool CudaKvStepAttention::Fits(absl::Span<const StepRow> rows) const {
  uint64_t partials = 0;
  uint64_t extents = 0;
  for (const StepRow& row : rows) {
    partials += row.position / kBlockTokens + 1;
    extents += row.extents.size();
  }
  const LayerAttentions::Options& most = options_.attention;
  return rows.size() <= most.query_rows_max && partials <= most.partials_max &&
         extents <= most.extents_max;
}

// Slots, and the places of a lane's tables, are addresses of the device's memory soon, where
// nothing stops a wrong one.
absl::Status CudaKvStepAttention::CheckStep(uint32_t lane, absl::Span<const StepRow> rows) const {
  if (lane >= lanes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step for lane ", lane, " of a device that serves ", lanes_.size()));
  }
  if (!Fits(rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", rows.size(), " rows, with their extents and blocks, for a lane ",
                     "with tables of ", options_.attention.query_rows_max, " rows, ",
                     options_.attention.extents_max, " extents and ",
                     options_.attention.partials_max, " blocks: ask Fits() first"));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].slot >= options_.slots) {
      return absl::InvalidArgumentError(absl::StrCat("row ", i, " stores into slot ", rows[i].slot,
                                                     " of a device with ", options_.slots));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaKvStepAttention::BeginStep(uint32_t lane, absl::Span<const StepRow> rows) {
  LAMINA_RETURN_IF_ERROR(CheckStep(lane, rows));
  return Noted(TryBeginStep(*lanes_[lane], rows));
}

absl::Status CudaKvStepAttention::TryBeginStep(Lane& lane, absl::Span<const StepRow> rows) {
  LAMINA_RETURN_IF_ERROR(stores_.Synchronize());
  items_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    items_.push_back({.extents = rows[i].extents, .first_position = rows[i].position});
    lane.slots.pinned[i] = rows[i].slot;
  }
  LAMINA_RETURN_IF_ERROR(lane.slots.Send(rows.size(), lane.stream));
  for (const std::unique_ptr<CudaAttention>& attention : lane.attentions.all()) {
    LAMINA_RETURN_IF_ERROR(attention->LoadStep(items_));
  }
  lane.rows_count = static_cast<uint32_t>(rows.size());
  return absl::OkStatus();
}

absl::Status CudaKvStepAttention::Attend(uint32_t lane, uint32_t layer) {
  return Noted(TryAttend(*lanes_[lane], layer));
}

absl::Status CudaKvStepAttention::TryAttend(const Lane& lane, uint32_t index) {
  const KvLayers::Layer& layer = layers_[index];
  const AttentionDescriptor& d = layer.descriptor;
  const BFloat16* const k = lane.rows + d.q_width();
  LAMINA_RETURN_IF_ERROR(StoreKv(d, k, k + d.kv_width(), d.qkv_width(),
                                 {lane.slots.device, lane.rows_count}, layer.k, layer.v,
                                 layer.head_stride, lane.stream));
  return lane.attentions.OfLayer(index)->Attend(d, layer.view(), lane.rows, d.qkv_width(), lane.out,
                                                d.q_width());
}

}  // namespace lamina::kernels::cuda
