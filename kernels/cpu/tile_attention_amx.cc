// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/pair_plain-inl.h"
#include "kernels/cpu/tile_attention-inl.h"
#include "kernels/cpu/tile_attention_internal.h"

namespace lamina::kernels::internal {

const AttentionOps* AmxTileOpsWithPlainVectors() {
  if (SupportedAttentionOps().empty()) {
    return nullptr;
  }
  static const AttentionOps ops =
      TileOps<PlainPairs, cpu::AmxTiles>("tiles/AMX with plain vectors");
  return &ops;
}

}  // namespace lamina::kernels::internal
