// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tile_attention_internal.h"

namespace lamina::kernels::internal {

const AttentionOps* HardwareTileOps() { return nullptr; }

const AttentionOps* AmxTileOpsWithPlainVectors() { return nullptr; }

}  // namespace lamina::kernels::internal
