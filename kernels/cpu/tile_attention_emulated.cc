// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pair_plain-inl.h"
#include "kernels/cpu/tile_attention-inl.h"
#include "kernels/cpu/tile_attention_internal.h"
#include "kernels/cpu/tile_emulation.h"

namespace lamina::kernels::internal {

const AttentionOps* EmulatedTileOps() {
  if (SupportedAttentionOps().empty()) {
    return nullptr;
  }
  static const AttentionOps ops = TileOps<PlainPairs, cpu::EmulatedTiles>("tiles/emulated");
  return &ops;
}

}  // namespace lamina::kernels::internal
