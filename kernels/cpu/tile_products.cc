// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tile_products.h"

#include "kernels/cpu/tile_emulation.h"
#include "kernels/cpu/tile_products-inl.h"

namespace lamina::kernels::cpu {

void MultiplyPanelEmulatedTiles(const PanelTask<BFloat16>& task) {
  EmulatedTiles tiles;
  TileProducts<EmulatedTiles>(task, tiles).Run();
}

}  // namespace lamina::kernels::cpu
