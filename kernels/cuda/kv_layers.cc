// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "kernels/cuda/kv_layers_internal.h"
#include "kernels/cuda/memory_pair_internal.h"
#include "kernels/kv_arena.h"

namespace lamina::kernels::cuda {
namespace {

// Pieces that a CudaAttention takes from each arena, at most.
constexpr uint64_t kPieces = 16;

CudaAttentionOptions AttentionOptionsOf(const AttentionDescriptor& layer,
                                        const LayerAttentions::Options& options) {
  return {.descriptor = layer,
          .arithmetic = options.arithmetic,
          .query_rows_max = options.query_rows_max,
          .partials_max = options.partials_max,
          .extents_max = options.extents_max};
}

// Layers that one CudaAttention serves.
bool SameTables(const AttentionDescriptor& a, const AttentionDescriptor& b) {
  return a.query_heads == b.query_heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
         a.window == b.window;
}

// The first layer of each kind.
std::vector<AttentionDescriptor> KindsOf(absl::Span<const AttentionDescriptor> layers) {
  std::vector<AttentionDescriptor> kinds;
  for (const AttentionDescriptor& layer : layers) {
    if (std::none_of(kinds.begin(), kinds.end(),
                     [&](const auto& kind) { return SameTables(kind, layer); })) {
      kinds.push_back(layer);
    }
  }
  return kinds;
}

LayerAttentions::Options AttentionsOf(const KvLayers::Options& options) {
  return {.arithmetic = options.arithmetic,
          .query_rows_max = options.query_rows_max,
          .partials_max = options.partials_max,
          .extents_max = options.extents_max};
}

}  // namespace

uint64_t LayerAttentions::DeviceBytes(absl::Span<const AttentionDescriptor> layers,
                                      const Options& options) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& kind : KindsOf(layers)) {
    bytes +=
        CudaAttention::DeviceBytes(AttentionOptionsOf(kind, options)) + kPieces * kPieceAlignment;
  }
  return bytes;
}

uint64_t LayerAttentions::PinnedBytes(absl::Span<const AttentionDescriptor> layers,
                                      const Options& options) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& kind : KindsOf(layers)) {
    bytes +=
        CudaAttention::PinnedBytes(AttentionOptionsOf(kind, options)) + kPieces * kPieceAlignment;
  }
  return bytes;
}

absl::StatusOr<LayerAttentions> LayerAttentions::Create(
    absl::Span<const AttentionDescriptor> layers, const Options& options, const DeviceInfo& info,
    MemoryArena& device_arena, MemoryArena& pinned_arena, const Stream& stream) {
  LayerAttentions attentions;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto same = std::find_if(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](const auto& layer) { return SameTables(layer, layers[i]); });
    const auto earlier = static_cast<size_t>(same - layers.begin());
    if (earlier < i) {
      attentions.of_layer_.push_back(attentions.of_layer_[earlier]);
      continue;
    }
    LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<CudaAttention> attention,
                            CudaAttention::Create(AttentionOptionsOf(layers[i], options), info,
                                                  device_arena, pinned_arena, stream));
    attentions.of_layer_.push_back(attention.get());
    attentions.kinds_.push_back(std::move(attention));
  }
  return attentions;
}

uint64_t KvLayers::DeviceBytes(const Options& options) {
  return KvArena::SlotBytes(options.layers) * options.slots +
         2 * options.layers.size() * kPieceAlignment +
         LayerAttentions::DeviceBytes(options.layers, AttentionsOf(options));
}

uint64_t KvLayers::PinnedBytes(const Options& options) {
  return LayerAttentions::PinnedBytes(options.layers, AttentionsOf(options));
}

absl::StatusOr<KvLayers> KvLayers::Create(const Options& options, const DeviceInfo& info,
                                          MemoryArena& device_arena, MemoryArena& pinned_arena,
                                          const Stream& stream) {
  KvLayers all;
  for (const AttentionDescriptor& descriptor : options.layers) {
    Layer layer{.descriptor = descriptor,
                .head_stride = size_t{options.slots} * descriptor.head_dim};
    const uint64_t plane = uint64_t{options.slots} * descriptor.kv_width();
    LAMINA_ASSIGN_OR_RETURN(layer.k, device_arena.Take<BFloat16>(plane));
    LAMINA_ASSIGN_OR_RETURN(layer.v, device_arena.Take<BFloat16>(plane));
    LAMINA_RETURN_IF_ERROR(FillAsync(layer.k, 0, plane * sizeof(BFloat16), stream));
    LAMINA_RETURN_IF_ERROR(FillAsync(layer.v, 0, plane * sizeof(BFloat16), stream));
    all.layers_.push_back(layer);
  }
  LAMINA_ASSIGN_OR_RETURN(all.attentions_,
                          LayerAttentions::Create(options.layers, AttentionsOf(options), info,
                                                  device_arena, pinned_arena, stream));
  for (uint32_t layer = 0; layer < all.layers_.size(); ++layer) {
    all.layers_[layer].attention = all.attentions_.OfLayer(layer);
  }
  return all;
}

}  // namespace lamina::kernels::cuda
