// SPDX-License-Identifier: Apache-2.0
//
// The loops of attention in tiles of bf16 (tile_attention-inl.h), by what multiplies.

#pragma once

#include "kernels/cpu/attention_internal.h"

namespace lamina::kernels::internal {

// By the tiles of AMX, with vectors of AVX-512 BF16; null where this processor or this build lacks
// any of them, whatever the system does with tiles. Requires: where it is used,
// cpu::HasTileInstructions(), and cpu::TilePermission() is OK.
const AttentionOps* HardwareTileOps();

// By the tiles of AMX, with plain vectors, for tests, which may emulate each instruction of tiles
// where the processor has none. Null in builds for other processors than x86-64, and without fused
// multiply-add, where SupportedAttentionOps() is empty.
const AttentionOps* AmxTileOpsWithPlainVectors();

// By a plain emulation of both; null without fused multiply-add.
const AttentionOps* EmulatedTileOps();

}  // namespace lamina::kernels::internal
