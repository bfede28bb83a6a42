// SPDX-License-Identifier: Apache-2.0
#include "kernels/tile_attention.h"

#include <vector>

#include "absl/status/status.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cpu/attention_probe.h"
#include "kernels/cpu/tile_attention_internal.h"
#include "kernels/cpu/tile_choice.h"

namespace lamina::kernels {
namespace {

// Compares single products, of values of all sizes, and whole problems.
class AttentionTileHost final : public cpu::TileHost {
 public:
  bool HasInstructions() const override { return internal::HardwareTileOps() != nullptr; }
  bool SystemKeepsTiles() const override { return cpu::HasTileInstructions(); }
  bool IsHeldBack() const override { return false; }  // oneDNN has no part in attention.
  absl::Status Permission() override { return cpu::TilePermission(); }
  absl::Status Probe() override {
    LAMINA_RETURN_IF_ERROR(cpu::ProbeTiles(cpu::MultiplyPanelTiles));
    return ProbeAttention(*CpuTileAttentionVariants().front(), ReferenceTileAttention());
  }
};

// By the processor's tiles. Null: they are not here, not granted, or have other bits.
const AttentionKernel* FindHardware() {
  AttentionTileHost host;
  const absl::Status status = cpu::CheckTiles(host);
  if (status.ok()) {
    return CpuTileAttentionVariants().front();
  }
  if (absl::IsFailedPrecondition(status)) {
    LogWarning("attention in tiles of AMX is not used on this host: ", status.message());
  }
  return nullptr;
}

const AttentionKernel* Hardware() {
  static const AttentionKernel* const kernel = FindHardware();
  return kernel;
}

std::vector<const AttentionKernel*> MakeVariants() {
  std::vector<const AttentionKernel*> variants;
  const auto add = [&](const internal::AttentionOps* ops) {
    if (ops != nullptr) {
      variants.push_back(internal::MakeAttentionKernel(*ops).release());  // Lives as long as we do.
    }
  };
  if (internal::HardwareTileOps() != nullptr && cpu::HasTileInstructions() &&
      cpu::TilePermission().ok()) {
    add(internal::HardwareTileOps());
  }
  add(internal::EmulatedTileOps());
  return variants;
}

}  // namespace

bool HasTileAttention() { return Hardware() != nullptr; }

const AttentionKernel& CpuTileAttention() {
  if (HasTileAttention()) {
    return *Hardware();
  }
  return internal::EmulatedTileOps() != nullptr ? *CpuTileAttentionVariants().back()
                                                : ReferenceTileAttention();
}

absl::Span<const AttentionKernel* const> CpuTileAttentionVariants() {
  static const auto* const variants = new std::vector<const AttentionKernel*>(MakeVariants());
  return *variants;
}

}  // namespace lamina::kernels
