// SPDX-License-Identifier: Apache-2.0
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/tile_choice.h"
#include "kernels/cpu/tile_products-inl.h"
#include "kernels/cpu/tile_products.h"

namespace lamina::kernels::cpu {
namespace {

// The processor's tiles. In assembly rather than by GCC's intrinsics, whose tile is a token of the
// source that no template can make, and which do not tell the compiler what memory they read. The
// compiler keeps nothing in tiles.
class AmxTiles {
 public:
  void Configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  void Release() { asm volatile("tilerelease" ::: "memory"); }

  template <size_t kTile>
  void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <size_t kTile>
  void Load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <size_t kTile>
  void Store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <size_t kC, size_t kA, size_t kB>
  void Dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

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
