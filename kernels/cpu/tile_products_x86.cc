// SPDX-License-Identifier: Apache-2.0
#include <asm/prctl.h>
#include <cpuid.h>
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

// What CPUID says in EDX of its leaf 7.
constexpr unsigned kAmxBF16 = 1u << 22;
constexpr unsigned kAmxTile = 1u << 24;
constexpr unsigned kAmxInt8 = 1u << 25;

bool ProcessorHas(unsigned wanted) {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & wanted) == wanted;
}

absl::Status AskForTileData() {
  if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "the system refuses AMX's tiles (ARCH_REQ_XCOMP_PERM)");
}

}  // namespace

bool ProcessorHasTiles() { return ProcessorHas(kAmxTile | kAmxBF16); }

bool ProcessorHasInt8Tiles() { return ProcessorHas(kAmxTile | kAmxInt8); }

// What the compiler asks includes what the system has enabled (XCR0).
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
