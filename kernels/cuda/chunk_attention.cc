// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/chunk_attention.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv_layers_internal.h"
#include "kernels/kv_arena.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kPieceAlignment = 256;  // Of MemoryArena.

uint32_t BlocksOf(uint64_t tokens) {
  return static_cast<uint32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

KvLayers::Options LayerOptionsOf(const ChunkAttentionOptions& options, uint64_t partial_bytes_max) {
  uint64_t partial_bytes = 1;  // Of one query token and one block, in the widest layer.
  for (const AttentionDescriptor& layer : options.layers) {
    partial_bytes = std::max<uint64_t>(
        partial_bytes, uint64_t{layer.query_heads} * PartialWidth(layer) * sizeof(float));
  }
  const uint64_t blocks = std::max<uint32_t>(1, BlocksOf(options.context_tokens_max));
  const uint64_t all = blocks * std::max<uint32_t>(1, options.query_tokens_max);
  return {.layers = options.layers,
          .slots = options.slots,
          .arithmetic = options.arithmetic,
          .query_rows_max = std::max<uint32_t>(1, options.query_tokens_max),
          .partials_max = static_cast<uint32_t>(
              std::clamp<uint64_t>(partial_bytes_max / partial_bytes, blocks, all)),
          .extents_max = std::max<uint32_t>(1, options.query_tokens_max)};
}

class CudaChunkAttention final : public ChunkAttention {
 public:
  CudaChunkAttention(const KvLayers::Options& options, const Stream& stream, Event fetched,
                     MemoryArena device_arena, MemoryArena pinned_arena)
      : options_(options),
        stream_(stream),
        fetched_(std::move(fetched)),
        device_arena_(std::move(device_arena)),
        pinned_arena_(std::move(pinned_arena)) {
    slots_.reserve(options.query_rows_max);
    next_slots_.reserve(options.query_rows_max);
    part_.reserve(options.extents_max);
  }

  absl::Status TakeMemory(const DeviceInfo& info) {
    LAMINA_ASSIGN_OR_RETURN(
        layers_, KvLayers::Create(options_, info, device_arena_, pinned_arena_, stream_));
    LAMINA_ASSIGN_OR_RETURN(device_slots_, device_arena_.Take<uint32_t>(options_.query_rows_max));
    LAMINA_ASSIGN_OR_RETURN(pinned_slots_, pinned_arena_.Take<uint32_t>(options_.query_rows_max));
    return stream_.Synchronize();
  }

  uint64_t bytes() const override { return KvArena::SlotBytes(options_.layers) * options_.slots; }

  absl::Status Attend(uint32_t layer_index, absl::Span<const ChunkItem> items,
                      const MatrixView<BFloat16>& qkv, const MatrixView<BFloat16>& out) override {
    if (items.empty()) {
      return absl::OkStatus();
    }
    const KvLayers::Layer& layer = layers_[layer_index];
    LAMINA_RETURN_IF_ERROR(SendSlots(items));
    const BFloat16* const k = qkv.row(items[0].first_row) + layer.descriptor.q_width();
    LAMINA_RETURN_IF_ERROR(StoreKv(layer.descriptor, k, k + layer.descriptor.kv_width(), qkv.stride,
                                   {device_slots_, slots_.size()}, layer.k, layer.v,
                                   layer.head_stride, stream_));
    return AttendParts(layer, items, qkv, out);
  }

 private:
  // The slots of the items' own tokens; sent once for all layers of a step.
  absl::Status SendSlots(absl::Span<const ChunkItem> items) {
    next_slots_.clear();
    for (const ChunkItem& item : items) {
      LAMINA_CHECK(item.first_row == items[0].first_row + next_slots_.size());
      LAMINA_CHECK(next_slots_.size() + item.tokens <= options_.query_rows_max);
      for (uint32_t i = 0; i < item.tokens; ++i) {
        next_slots_.push_back(item.sequence.first_slot + item.first_position + i);
      }
    }
    if (next_slots_ == slots_) {
      return absl::OkStatus();
    }
    LAMINA_RETURN_IF_ERROR(fetched_.Synchronize());
    std::swap(slots_, next_slots_);
    const size_t bytes = slots_.size() * sizeof(uint32_t);
    std::memcpy(pinned_slots_, slots_.data(), bytes);
    LAMINA_RETURN_IF_ERROR(CopyAsync(device_slots_, pinned_slots_, bytes, stream_));
    return fetched_.Record(stream_);
  }

  // As many tokens at once as have room for their partials.
  absl::Status AttendParts(const KvLayers::Layer& layer, absl::Span<const ChunkItem> items,
                           const MatrixView<BFloat16>& qkv, const MatrixView<BFloat16>& out) {
    uint32_t first_row = items[0].first_row;  // Of the part.
    uint32_t rows = 0;
    uint32_t partials = 0;
    part_.clear();
    for (const ChunkItem& item : items) {
      const uint32_t blocks = BlocksOf(uint64_t{item.first_position} + item.tokens);
      for (uint32_t done = 0; done < item.tokens;) {
        const uint32_t count =
            std::min(item.tokens - done, (options_.partials_max - partials) / blocks);
        if (count == 0) {
          LAMINA_CHECK(rows > 0);
          LAMINA_RETURN_IF_ERROR(AttendPart(layer, first_row, qkv, out));
          first_row += rows;
          rows = 0;
          partials = 0;
          continue;
        }
        part_.push_back({.extents = {&item.sequence, 1},
                         .first_position = item.first_position + done,
                         .query_tokens = count});
        rows += count;
        partials += count * blocks;
        done += count;
      }
    }
    return AttendPart(layer, first_row, qkv, out);
  }

  absl::Status AttendPart(const KvLayers::Layer& layer, uint32_t first_row,
                          const MatrixView<BFloat16>& qkv, const MatrixView<BFloat16>& out) {
    LAMINA_RETURN_IF_ERROR(layer.attention->LoadStep(part_));
    part_.clear();
    return layer.attention->Attend(layer.descriptor, layer.view(), qkv.row(first_row), qkv.stride,
                                   out.row(first_row), out.stride);
  }

  const KvLayers::Options options_;
  const Stream& stream_;
  Event fetched_;  // The device has read pinned_slots_.
  MemoryArena device_arena_;
  MemoryArena pinned_arena_;
  KvLayers layers_;
  uint32_t* device_slots_ = nullptr;
  uint32_t* pinned_slots_ = nullptr;
  std::vector<uint32_t> slots_;  // Those on the device.
  std::vector<uint32_t> next_slots_;
  std::vector<StepItem> part_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkAttention>> MakeCudaChunkAttention(
    const ChunkAttentionOptions& options, uint64_t partial_bytes_max, const DeviceInfo& info,
    const Stream& stream) {
  const KvLayers::Options layers = LayerOptionsOf(options, partial_bytes_max);
  const uint64_t slots_bytes = layers.query_rows_max * sizeof(uint32_t) + kPieceAlignment;
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena device_arena,
      MemoryArena::Create(ArenaKind::kDevice, KvLayers::DeviceBytes(layers) + slots_bytes));
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena pinned_arena,
      MemoryArena::Create(ArenaKind::kPinnedHost, KvLayers::PinnedBytes(layers) + slots_bytes));
  LAMINA_ASSIGN_OR_RETURN(Event fetched, Event::Create());
  auto attention = std::make_unique<CudaChunkAttention>(
      layers, stream, std::move(fetched), std::move(device_arena), std::move(pinned_arena));
  LAMINA_RETURN_IF_ERROR(attention->TakeMemory(info));
  return attention;
}

}  // namespace lamina::kernels::cuda
