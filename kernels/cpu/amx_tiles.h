// SPDX-License-Identifier: Apache-2.0
//
// AmxTiles: the processor's tiles, a unit of tiles (tiles.h). For x86-64 alone.
//
// Threading: the registers are the calling thread's, whatever object names them.
// Requires: HasTileInstructions(), and TilePermission() is OK (tile_products.h).

#pragma once

#include <cstddef>

#include "kernels/cpu/tiles.h"

namespace lamina::kernels::cpu {

// In assembly rather than by GCC's intrinsics, whose tile is a token of the source that no template
// can make, and which do not tell the compiler what memory they read. The compiler keeps nothing in
// tiles.
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

}  // namespace lamina::kernels::cpu
