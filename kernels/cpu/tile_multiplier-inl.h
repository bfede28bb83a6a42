// SPDX-License-Identifier: Apache-2.0
//
// TileMultiplier: few rows times strips of packed words, over a unit of tiles (tiles.h), for
// attention.
//
// Four tiles are sums, and the other four take turns for rows and strips:
//
//   rows x strips  when           a step of 32 elements loads
//   2 x 2          17 to 32 rows  2 tiles of rows, 2 of strips, for 4 products
//   1 x 4          up to 16 rows  1 tile of rows, 4 of strips, for 4 products
//
// Shapes are set when the number of rows changes, not for each product: setting them takes longer
// than a product does. Unlike the loop of dense layers (tile_products-inl.h) this one asks for
// nothing ahead, since its words have just been packed.
//
// Threading: one thread, whose tiles it takes until it is destroyed.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tiles.h"

namespace lamina::kernels::cpu {

// Shapes: rows    [rows, steps] words of two bf16, `row_words` from one row to the next
//         strips  [strips, steps, 16] words, `strip_words` from one strip to the next
//         out     [rows, 16 * strips] f32, `out_stride` floats between rows
struct TileOperands {
  const uint32_t* rows = nullptr;
  size_t row_words = 0;
  const uint32_t* strips = nullptr;
  size_t strip_words = 0;
  size_t steps = 0;  // A multiple of kTileSteps.
  float* out = nullptr;
  size_t out_stride = 0;
  // Whether a step of zeros comes last: it makes +0 of a sum that is -0, and changes no other.
  bool ends_with_zeros = false;
};

template <class Unit>
class TileMultiplier {
 public:
  // The most rows of one Multiply().
  static constexpr uint32_t kRowsMax = 2 * kTileRows;

  explicit TileMultiplier(Unit& unit) : unit_(unit) {}
  ~TileMultiplier() { unit_.Release(); }
  TileMultiplier(const TileMultiplier&) = delete;
  TileMultiplier& operator=(const TileMultiplier&) = delete;

  // Requires: rows is at least 1 and at most kRowsMax.
  void Multiply(const TileOperands& operands, uint32_t rows, uint32_t strips) {
    Configure(rows);
    const uint32_t at_once = rows > kTileRows ? 2 : 4;
    for (uint32_t strip = 0; strip < strips;) {
      const uint32_t left = std::min(at_once, strips - strip);
      strip += rows > kTileRows ? MultiplySome<2>(operands, strip, left)
                                : MultiplySome<1>(operands, strip, left);
    }
  }

 private:
  static constexpr size_t kSums = kTiles / 2;
  // Sums of a row of tiles.
  template <size_t kRowTiles>
  static constexpr size_t kColumns = kSums / kRowTiles;

  // Returns how many strips it took.
  template <size_t kRowTiles>
  uint32_t MultiplySome(const TileOperands& operands, uint32_t strip, uint32_t left) {
    if constexpr (kRowTiles == 1) {
      if (left == 4) {
        MultiplyTiles<1, 4>(operands, strip);
        return 4;
      }
    }
    if (left >= 2) {
      MultiplyTiles<kRowTiles, 2>(operands, strip);
      return 2;
    }
    MultiplyTiles<kRowTiles, 1>(operands, strip);
    return 1;
  }

  template <size_t kRowTiles, size_t kStrips>
  void MultiplyTiles(const TileOperands& operands, uint32_t strip) {
    ForEachSum<kRowTiles, kStrips>(
        [&](auto r, auto s) { unit_.template Zero<Sum<kRowTiles>(r, s)>(); });
    const uint32_t* rows = operands.rows;
    const uint32_t* words = operands.strips + strip * operands.strip_words;
    for (size_t step = 0; step < operands.steps; step += kTileSteps) {
      ForEachTile<kRowTiles>([&](auto r) {
        unit_.template Load<kSums + r>(rows + r * kTileRows * operands.row_words,
                                       operands.row_words * sizeof(uint32_t));
      });
      ForEachTile<kStrips>([&](auto s) {
        unit_.template Load<Strip<kRowTiles>(s)>(words + s * operands.strip_words, kTileRowBytes);
        ForEachTile<kRowTiles>([&](auto r) {
          unit_.template Dot<Sum<kRowTiles>(r, s), kSums + r, Strip<kRowTiles>(s)>();
        });
      });
      rows += kTileSteps;
      words += kTileSteps * kTileColumns;
    }
    if (operands.ends_with_zeros) {
      AddZeros<kRowTiles, kStrips>();
    }
    float* const out = operands.out + strip * kTileColumns;
    ForEachSum<kRowTiles, kStrips>([&](auto r, auto s) {
      unit_.template Store<Sum<kRowTiles>(r, s)>(
          out + r * kTileRows * operands.out_stride + s * kTileColumns,
          operands.out_stride * sizeof(float));
    });
  }

  template <size_t kRowTiles, size_t kStrips>
  void AddZeros() {
    constexpr size_t kZeros = Strip<kRowTiles>(0);
    unit_.template Zero<kZeros>();
    ForEachTile<kRowTiles>([&](auto r) { unit_.template Zero<kSums + r>(); });
    ForEachSum<kRowTiles, kStrips>(
        [&](auto r, auto s) { unit_.template Dot<Sum<kRowTiles>(r, s), kSums + r, kZeros>(); });
  }

  template <size_t kRowTiles, size_t kStrips, class Body>
  static void ForEachSum(const Body& body) {
    ForEachTile<kRowTiles>([&](auto r) { ForEachTile<kStrips>([&](auto s) { body(r, s); }); });
  }

  template <size_t kRowTiles>
  static constexpr size_t Sum(size_t row_tile, size_t strip) {
    return row_tile * kColumns<kRowTiles> + strip;
  }
  // Strips take turns behind the tiles of rows.
  template <size_t kRowTiles>
  static constexpr size_t Strip(size_t strip) {
    return kSums + kRowTiles + strip % (kSums - kRowTiles);
  }

  void Configure(uint32_t rows) {
    if (rows == rows_) {
      return;
    }
    rows_ = rows;
    const size_t row_tiles = rows > kTileRows ? 2 : 1;
    const auto rows_of = [&](size_t tile) { return std::min(kTileRows, rows - tile * kTileRows); };
    TileConfig config;
    for (size_t i = 0; i < kSums; ++i) {
      config.Set(i, rows_of(i / (kSums / row_tiles)));
      config.Set(kSums + i, i < row_tiles ? rows_of(i) : kTileRows);
    }
    unit_.Configure(config);
  }

  Unit& unit_;
  uint32_t rows_ = 0;  // Whose shapes are set; 0: none yet.
};

}  // namespace lamina::kernels::cpu
