// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "kernels/cuda/kv_layers_internal.h"
#include "kernels/kv_arena.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kPieceAlignment = 256;  // Of MemoryArena.
// Pieces that a CudaAttention takes from each arena, at most.
constexpr uint64_t kPieces = 16;

CudaAttentionOptions AttentionOptionsOf(const AttentionDescriptor& layer,
                                        const KvLayers::Options& options) {
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

}  // namespace

uint64_t KvLayers::DeviceBytes(const Options& options) {
  uint64_t bytes = KvArena::SlotBytes(options.layers) * options.slots +
                   2 * options.layers.size() * kPieceAlignment;
  for (const AttentionDescriptor& kind : KindsOf(options.layers)) {
    bytes +=
        CudaAttention::DeviceBytes(AttentionOptionsOf(kind, options)) + kPieces * kPieceAlignment;
  }
  return bytes;
}

uint64_t KvLayers::PinnedBytes(const Options& options) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& kind : KindsOf(options.layers)) {
    bytes +=
        CudaAttention::PinnedBytes(AttentionOptionsOf(kind, options)) + kPieces * kPieceAlignment;
  }
  return bytes;
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
    const auto same = std::find_if(
        all.layers_.begin(), all.layers_.end(),
        [&](const Layer& earlier) { return SameTables(earlier.descriptor, descriptor); });
    if (same != all.layers_.end()) {
      layer.attention = same->attention;
    } else {
      LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<CudaAttention> attention,
                              CudaAttention::Create(AttentionOptionsOf(descriptor, options), info,
                                                    device_arena, pinned_arena, stream));
      layer.attention = attention.get();
      all.attentions_.push_back(std::move(attention));
    }
    all.layers_.push_back(layer);
  }
  return all;
}

}  // namespace lamina::kernels::cuda
