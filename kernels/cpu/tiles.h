// SPDX-License-Identifier: Apache-2.0
//
// Tiles of AMX: eight registers of up to 16 rows of 64 bytes, whose products of bf16 an instruction
// adds to tiles of f32 (TDPBF16PS).
//
// A unit of tiles is a class with
//   Configure(config)          sets the tiles' shapes; all become zero
//   Zero<tile>()
//   Load<tile>(from, stride)   its rows, `stride` bytes from one to the next
//   Store<tile>(to, stride)
//   Dot<c, a, b>()             c += a b; c [rows, columns] f32, a [rows, 2 pairs] bf16,
//                              b [pairs, 2 columns] bf16: both elements of a pair side by side
//   Release()                  gives the tiles back
// and is either the processor's (tile_products_x86.cc), whose registers are the calling thread's,
// or EmulatedTiles (tile_emulation.h). A loop is a template over it (tile_products-inl.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace lamina::kernels::cpu {

inline constexpr size_t kTiles = 8;
inline constexpr size_t kTileRows = 16;
inline constexpr size_t kTileRowBytes = 64;
inline constexpr size_t kTileColumns = kTileRowBytes / sizeof(float);
// Pairs of inputs that one Dot() multiplies: steps of a panel (panel_task.h).
inline constexpr size_t kTileSteps = kTileRows;

// Shapes of the tiles, in the bytes that LDTILECFG reads. Source: Intel's Software Developer's
// Manual, volume 1, "Programming with Intel AMX", palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // Only the first eight tiles exist.
  uint8_t rows[16] = {};

  void Set(size_t tile, size_t tile_rows, size_t bytes = kTileRowBytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

// Calls body(i) for i = 0 to kCount - 1, each a constant.
template <size_t kCount, class Body>
inline void ForEachTile(const Body& body) {
  [&]<size_t... i>(std::index_sequence<i...>) { (body(std::integral_constant<size_t, i>()), ...); }
  (std::make_index_sequence<kCount>());
}

}  // namespace lamina::kernels::cpu
