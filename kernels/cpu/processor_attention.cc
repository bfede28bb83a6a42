// SPDX-License-Identifier: Apache-2.0
#include "kernels/processor_attention.h"

#include <mutex>

#include "absl/strings/string_view.h"
#include "common/log.h"
#include "kernels/cpu/tile_products.h"
#include "kernels/pair_attention.h"
#include "kernels/tile_attention.h"

namespace lamina::kernels {
namespace {

void WarnOfEmulation(std::once_flag& warned, absl::string_view what) {
  std::call_once(warned, [what] {
    LogWarning("attention in ", what,
               " of bf16 is emulated on this processor, many times slower than canonical "
               "attention; set attention.decode and attention.prefill to auto");
  });
}

}  // namespace

AttentionArithmetic FastAttention() {
  if (HasTileAttention()) {
    return AttentionArithmetic::kTiles;
  }
  return HasFastPairAttention() ? AttentionArithmetic::kPairs : AttentionArithmetic::kCanonical;
}

void AskForAttentionTiles() {
  if (cpu::HasTileInstructions()) {
    cpu::TilePermission().IgnoreError();  // FastAttention() tells of it.
  }
}

absl::StatusOr<const AttentionKernel*> AttentionOfProcessor(AttentionArithmetic arithmetic,
                                                            const AttentionKernel& canonical) {
  switch (arithmetic) {
    case AttentionArithmetic::kCanonical:
      return &canonical;
    case AttentionArithmetic::kPairs:
      if (!HasPairAttention()) {
        static std::once_flag warned;
        WarnOfEmulation(warned, "pairs");
      }
      return &CpuPairAttention();
    case AttentionArithmetic::kTiles:
      if (!HasTileAttention()) {
        static std::once_flag warned;
        WarnOfEmulation(warned, "tiles");
      }
      return &CpuTileAttention();
    case AttentionArithmetic::kTensor:
    case AttentionArithmetic::kAuto:
      break;
  }
  return absl::InvalidArgumentError(
      "attention on tensor cores needs a CUDA device; this one is the processor");
}

}  // namespace lamina::kernels
