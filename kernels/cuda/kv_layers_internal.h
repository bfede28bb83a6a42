// SPDX-License-Identifier: Apache-2.0
//
// KvLayers: K and V of token slots in all layers in a device's memory, with the CudaAttention of
// each kind of layer. Layers that differ in nothing that its tables depend on share one.
//
// Memory: taken from the arenas in Create().   Threading: the stream's thread.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_arithmetic.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

// The CudaAttentions of all layers, for one stream.
class LayerAttentions {
 public:
  struct Options {
    AttentionArithmetic arithmetic = AttentionArithmetic::kCanonical;
    uint32_t query_rows_max = 0;
    uint32_t partials_max = 0;
    uint32_t extents_max = 0;
  };

  // Bytes that Create() will take, at most.
  static uint64_t DeviceBytes(absl::Span<const AttentionDescriptor> layers, const Options& options);
  static uint64_t PinnedBytes(absl::Span<const AttentionDescriptor> layers, const Options& options);

  // Errors: those of CudaAttention::Create().
  static absl::StatusOr<LayerAttentions> Create(absl::Span<const AttentionDescriptor> layers,
                                                const Options& options, const DeviceInfo& info,
                                                MemoryArena& device_arena,
                                                MemoryArena& pinned_arena, const Stream& stream);

  CudaAttention* OfLayer(uint32_t layer) const { return of_layer_[layer]; }
  // Each once.
  absl::Span<const std::unique_ptr<CudaAttention>> all() const { return kinds_; }

 private:
  std::vector<std::unique_ptr<CudaAttention>> kinds_;
  std::vector<CudaAttention*> of_layer_;
};

class KvLayers {
 public:
  struct Options {
    std::vector<AttentionDescriptor> layers;
    uint32_t slots = 0;
    // Limits of each CudaAttention.
    AttentionArithmetic arithmetic = AttentionArithmetic::kCanonical;
    uint32_t query_rows_max = 0;
    uint32_t partials_max = 0;
    uint32_t extents_max = 0;
  };
  struct Layer {
    AttentionDescriptor descriptor;
    BFloat16* k = nullptr;
    BFloat16* v = nullptr;
    size_t head_stride = 0;
    CudaAttention* attention = nullptr;
    KvView view() const { return {.k = k, .v = v, .head_stride = head_stride}; }
    // These heads of it alone.
    Layer Part(HeadRange heads) const {
      Layer part = *this;
      part.descriptor = PartOf(descriptor, heads);
      part.k += heads.first * head_stride;
      part.v += heads.first * head_stride;
      return part;
    }
  };

  // Bytes that Create() will take, at most.
  static uint64_t DeviceBytes(const Options& options);
  static uint64_t PinnedBytes(const Options& options);

  // Slots begin as zeros, like those of a host's arena. Errors: those of CudaAttention::Create().
  static absl::StatusOr<KvLayers> Create(const Options& options, const DeviceInfo& info,
                                         MemoryArena& device_arena, MemoryArena& pinned_arena,
                                         const Stream& stream);

  const Layer& operator[](uint32_t layer) const { return layers_[layer]; }

 private:
  LayerAttentions attentions_;
  std::vector<Layer> layers_;
};

}  // namespace lamina::kernels::cuda
