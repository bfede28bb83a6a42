// SPDX-License-Identifier: Apache-2.0
//
// EmulatedTiles: the tiles of AMX in plain code, to the bit. It defines what products in tiles
// give: tests run the loops over it on processors without AMX, and a processor that has AMX is
// compared with it before it is used (tile_choice.h).
//
// What Dot() does to each element of c, by Intel's manual (TDPBF16PS): the first products of the
// pairs are summed in order from 0 by f32 fused multiply-adds, and so are the second ones; the sum
// of the two sums is added to c. Each of these operations rounds to nearest and even, takes
// subnormals for zeros of their sign, and returns them as such. Results that are NaN are NaN here
// too, but the manual does not say which.
//
// Shapes that do not fit each other, which a processor would refuse by a fault, are CHECKed.
// Threading: one thread at a time. It assumes the default rounding mode and no flushing.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tiles.h"

namespace lamina::kernels::cpu {

class EmulatedTiles {
 public:
  void Configure(const TileConfig& config);
  void Release() { configured_ = false; }
  bool configured() const { return configured_; }

  void ZeroTile(size_t tile);
  void LoadTile(size_t tile, const void* from, size_t stride);
  void StoreTile(size_t tile, void* to, size_t stride) const;
  void DotTiles(size_t c, size_t a, size_t b);

  // Loops call these.
  template <size_t kTile>
  void Zero() {
    ZeroTile(kTile);
  }
  template <size_t kTile>
  void Load(const void* from, size_t stride) {
    LoadTile(kTile, from, stride);
  }
  template <size_t kTile>
  void Store(void* to, size_t stride) const {
    StoreTile(kTile, to, stride);
  }
  template <size_t kC, size_t kA, size_t kB>
  void Dot() {
    DotTiles(kC, kA, kB);
  }

 private:
  struct Tile {
    size_t rows = 0;
    size_t row_bytes = 0;
    uint32_t words[kTileRows][kTileColumns] = {};  // Zeros outside of its shape.
  };

  const Tile& Configured(size_t tile) const;
  Tile& Configured(size_t tile);

  bool configured_ = false;
  std::array<Tile, kTiles> tiles_;
};

}  // namespace lamina::kernels::cpu
