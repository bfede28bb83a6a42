// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_form.h"

#include "common/check.h"
#include "common/dtype.h"
#include "common/kv_form.h"
#include "common/status_macros.h"
#include "kernels/int8_kv.h"
#include "plan/spill_blocks.h"

namespace lamina::memory_node {
namespace {

using plan::kSpillBlockTokens;

class Bf16Form final : public SpillForm {
 public:
  Bf16Form(const std::vector<AttentionDescriptor>& layers, kernels::KvDevice& device,
           uint32_t block_tokens)
      : layers_(layers), device_(device), block_tokens_(block_tokens) {}

  size_t block_bytes() const override {
    return KvSlotBytes(layers_, KvForm::kBF16) * block_tokens_;
  }

  absl::Status Load(absl::Span<const Extent> extents, uint32_t first, uint32_t tokens,
                    SpillPass& block) const override {
    return ForEachHead(block, [&](uint32_t layer, uint32_t head, BFloat16* k, BFloat16* v) {
      return device_.reads()->Load(layer, head, extents, first, tokens, k, v);
    });
  }

  absl::Status Unload(SpillPass& block, absl::Span<const Extent> extents, uint32_t first,
                      uint32_t tokens) const override {
    return ForEachHead(block, [&](uint32_t layer, uint32_t head, BFloat16* k, BFloat16* v) {
      return device_.writes()->Unload(layer, head, k, v, extents, first, tokens);
    });
  }

 private:
  // Calls `copy` with (layer, head, the head's planes of K and of V).
  template <typename Copy>
  absl::Status ForEachHead(SpillPass& block, const Copy& copy) const {
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      const size_t plane = size_t{layers_[layer].head_dim} * block_tokens_;
      for (uint32_t head = 0; head < layers_[layer].kv_heads; ++head) {
        auto* const k =
            reinterpret_cast<BFloat16*>(block.Next(2 * plane * sizeof(BFloat16)).data());
        LAMINA_RETURN_IF_ERROR(copy(layer, head, k, k + plane));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<AttentionDescriptor>& layers_;
  kernels::KvDevice& device_;
  const uint32_t block_tokens_;
};

class Int8Form final : public SpillForm {
 public:
  Int8Form(const std::vector<AttentionDescriptor>& layers, kernels::KvDevice& device)
      : layers_(layers), device_(device) {}

  size_t block_bytes() const override {
    return KvSlotBytes(layers_, KvForm::kInt8) * kSpillBlockTokens;
  }

  absl::Status Load(absl::Span<const Extent> extents, uint32_t first, uint32_t tokens,
                    SpillPass& block) const override {
    return ForEachView(block, [&](uint32_t layer, uint32_t head, const kernels::Int8View& view) {
      return device_.reads()->LoadClosed(layer, head, extents, first, tokens, view);
    });
  }

  absl::Status Unload(SpillPass& block, absl::Span<const Extent> extents, uint32_t first,
                      uint32_t tokens) const override {
    return ForEachView(block, [&](uint32_t layer, uint32_t head, const kernels::Int8View& view) {
      return device_.writes()->UnloadClosed(layer, head, view, extents, first, tokens);
    });
  }

 private:
  // Calls `copy` with (layer, head, the head's view of the block).
  template <typename Copy>
  absl::Status ForEachView(SpillPass& block, const Copy& copy) const {
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      const size_t plane = size_t{layers_[layer].head_dim} * kSpillBlockTokens;
      const size_t k_scales = Int8ScalesOfSlot(layers_[layer].head_dim) * kSpillBlockTokens;
      const size_t scales_bytes = (k_scales + kSpillBlockTokens) * sizeof(kernels::Int8Scale);
      for (uint32_t head = 0; head < layers_[layer].kv_heads; ++head) {
        kernels::Int8View view{.slots = kSpillBlockTokens};
        view.k = reinterpret_cast<uint8_t*>(block.Next(2 * plane + scales_bytes).data());
        view.v = view.k + plane;
        view.k_scales = reinterpret_cast<kernels::Int8Scale*>(view.v + plane);
        view.v_scales = view.k_scales + k_scales;
        LAMINA_RETURN_IF_ERROR(copy(layer, head, view));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<AttentionDescriptor>& layers_;
  kernels::KvDevice& device_;
};

}  // namespace

std::unique_ptr<SpillForm> SpillFormOf(const std::vector<AttentionDescriptor>& layers,
                                       kernels::KvDevice& device) {
  LAMINA_CHECK(device.reads() != nullptr && device.writes() != nullptr);
  if (device.int8() != nullptr) {
    return std::make_unique<Int8Form>(layers, device);
  }
  return std::make_unique<Bf16Form>(layers, device, kSpillBlockTokens);
}

std::unique_ptr<SpillForm> SpillTailFormOf(const std::vector<AttentionDescriptor>& layers,
                                           kernels::KvDevice& device) {
  LAMINA_CHECK(device.reads() != nullptr && device.writes() != nullptr);
  return std::make_unique<Bf16Form>(layers, device, plan::kSpillTailTokens);
}

}  // namespace lamina::memory_node
