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
                    std::byte* block) const override {
    auto* at = reinterpret_cast<BFloat16*>(block);
    return ForEachPlane([&](uint32_t layer, uint32_t head, size_t plane) {
      BFloat16* const k = at;
      at += 2 * plane;
      return device_.reads()->Load(layer, head, extents, first, tokens, k, k + plane);
    });
  }

  absl::Status Unload(const std::byte* block, absl::Span<const Extent> extents, uint32_t first,
                      uint32_t tokens) const override {
    const auto* at = reinterpret_cast<const BFloat16*>(block);
    return ForEachPlane([&](uint32_t layer, uint32_t head, size_t plane) {
      const BFloat16* const k = at;
      at += 2 * plane;
      return device_.writes()->Unload(layer, head, k, k + plane, extents, first, tokens);
    });
  }

 private:
  // Calls `copy` with (layer, head, elements of a plane).
  template <typename Copy>
  absl::Status ForEachPlane(const Copy& copy) const {
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      for (uint32_t head = 0; head < layers_[layer].kv_heads; ++head) {
        LAMINA_RETURN_IF_ERROR(copy(layer, head, size_t{layers_[layer].head_dim} * block_tokens_));
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
                    std::byte* block) const override {
    return ForEachView(block, [&](uint32_t layer, uint32_t head, const kernels::Int8View& view) {
      return device_.reads()->LoadClosed(layer, head, extents, first, tokens, view);
    });
  }

  absl::Status Unload(const std::byte* block, absl::Span<const Extent> extents, uint32_t first,
                      uint32_t tokens) const override {
    // A view has no form of what is only read.
    return ForEachView(const_cast<std::byte*>(block), [&](uint32_t layer, uint32_t head,
                                                          const kernels::Int8View& view) {
      return device_.writes()->UnloadClosed(layer, head, view, extents, first, tokens);
    });
  }

 private:
  // Calls `copy` with (layer, head, the head's view of the block).
  template <typename Copy>
  absl::Status ForEachView(std::byte* block, const Copy& copy) const {
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      const size_t plane = size_t{layers_[layer].head_dim} * kSpillBlockTokens;
      const size_t k_scales = Int8ScalesOfSlot(layers_[layer].head_dim) * kSpillBlockTokens;
      for (uint32_t head = 0; head < layers_[layer].kv_heads; ++head) {
        kernels::Int8View view{.slots = kSpillBlockTokens};
        view.k = reinterpret_cast<uint8_t*>(block);
        view.v = view.k + plane;
        view.k_scales = reinterpret_cast<kernels::Int8Scale*>(view.v + plane);
        view.v_scales = view.k_scales + k_scales;
        block = reinterpret_cast<std::byte*>(view.v_scales + kSpillBlockTokens);
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
