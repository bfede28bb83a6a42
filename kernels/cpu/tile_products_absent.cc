// SPDX-License-Identifier: Apache-2.0
#include "absl/status/status.h"
#include "common/check.h"
#include "kernels/cpu/tile_products.h"

namespace lamina::kernels::cpu {

bool ProcessorHasTiles() { return false; }

bool ProcessorHasInt8Tiles() { return false; }

bool HasTileInstructions() { return false; }

absl::Status TilePermission() { return absl::UnimplementedError("this is no x86-64 processor"); }

void MultiplyPanelTiles(const PanelTask<BFloat16>& /*task*/) {
  LAMINA_CHECK(HasTileInstructions());
}

}  // namespace lamina::kernels::cpu
