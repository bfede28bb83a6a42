// SPDX-License-Identifier: Apache-2.0
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/tile_products-inl.h"
#include "kernels/cpu/tile_products.h"

namespace lamina::kernels::cpu {
namespace {

// Linux's number of the tiles' state.
constexpr int kTileData = 18;

absl::Status AskForTileData() {
  if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "the system refuses AMX's tiles (ARCH_REQ_XCOMP_PERM)");
}

}  // namespace

bool HasTileInstructions() {
  return __builtin_cpu_supports("amx-tile") != 0 && __builtin_cpu_supports("amx-bf16") != 0;
}

absl::Status TilePermission() {
  static const absl::Status permission = AskForTileData();
  return permission;
}

void MultiplyPanelTiles(const PanelTask<BFloat16>& task) {
  AmxTiles tiles;
  TileProducts<AmxTiles>(task, tiles).Run();
}

}  // namespace lamina::kernels::cpu
