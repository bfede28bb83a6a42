// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/tile_emulation.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "kernels/pair_math.h"

namespace lamina::kernels::cpu {
namespace {

constexpr uint32_t kExponent = 0x7f800000u;
constexpr uint32_t kSign = 0x80000000u;

// By bits, so that compilers take vectors for it.
float Flush(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits & kExponent) == 0 ? bits & kSign : bits);
}

float FlushingAdd(float a, float b) { return Flush(Flush(a) + Flush(b)); }

// The elements of a tile of bf16, f32, subnormals as zeros: first of each pair, and second.
struct Halves {
  Halves(const uint32_t (&words)[kTileRows][kTileColumns], size_t tile_rows) : rows(tile_rows) {
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < kTileColumns; ++i) {
        first[row][i] = Flush(std::bit_cast<float>(words[row][i] << 16));
        second[row][i] = Flush(std::bit_cast<float>(words[row][i] & 0xffff0000u));
      }
    }
  }

  // Whether every element is 0 or between 2^-60 and 2^60 in size, so that products neither overflow
  // nor become subnormal.
  bool IsModerate() const { return IsModerate(first) && IsModerate(second); }

  size_t rows;
  float first[kTileRows][kTileColumns];
  float second[kTileRows][kTileColumns];

 private:
  bool IsModerate(const float (&elements)[kTileRows][kTileColumns]) const {
    constexpr uint32_t kLeast = (127u - 60) << 23;
    constexpr uint32_t kSizes = 120u << 23;
    uint32_t others = 0;
    for (size_t row = 0; row < rows; ++row) {
      for (const float x : elements[row]) {
        const uint32_t size = std::bit_cast<uint32_t>(x) & ~kSign;
        others |= size != 0 && size - kLeast > kSizes ? 1u : 0u;
      }
    }
    return others == 0;
  }
};

using Sums = float[kTileColumns];

// A moderate product of bf16 is exact in f32, so that adding it rounds once, as the fused operation
// does.
struct ModerateProducts {
  static float Add(float a, float b, float sum) { return Flush(sum + a * b); }
};
struct AnyProducts {
  static float Add(float a, float b, float sum) { return pairs::FlushingMultiplyAdd(a, b, sum); }
};

// Both sums of the products of a row, and their sum.
template <class Products>
void SumProducts(const Halves& in, size_t row, const Halves& weights, Sums& sums) {
  Sums first = {};
  Sums second = {};
  for (size_t pair = 0; pair < weights.rows; ++pair) {
    for (size_t i = 0; i < kTileColumns; ++i) {
      first[i] = Products::Add(in.first[row][pair], weights.first[pair][i], first[i]);
      second[i] = Products::Add(in.second[row][pair], weights.second[pair][i], second[i]);
    }
  }
  for (size_t i = 0; i < kTileColumns; ++i) {
    sums[i] = FlushingAdd(first[i], second[i]);
  }
}

}  // namespace

void EmulatedTiles::Configure(const TileConfig& config) {
  LAMINA_CHECK(config.palette == 1 && config.start_row == 0);
  configured_ = true;
  for (size_t i = 0; i < kTiles; ++i) {
    LAMINA_CHECK(config.rows[i] <= kTileRows && config.row_bytes[i] <= kTileRowBytes);
    LAMINA_CHECK((config.rows[i] == 0) == (config.row_bytes[i] == 0));
    tiles_[i] = {.rows = config.rows[i], .row_bytes = config.row_bytes[i]};
  }
}

const EmulatedTiles::Tile& EmulatedTiles::Configured(size_t tile) const {
  LAMINA_CHECK(configured_ && tile < kTiles && tiles_[tile].rows > 0);
  return tiles_[tile];
}

EmulatedTiles::Tile& EmulatedTiles::Configured(size_t tile) {
  return const_cast<Tile&>(std::as_const(*this).Configured(tile));
}

void EmulatedTiles::ZeroTile(size_t tile) {
  Tile& zeroed = Configured(tile);
  std::memset(zeroed.words, 0, sizeof(zeroed.words));
}

void EmulatedTiles::LoadTile(size_t tile, const void* from, size_t stride) {
  ZeroTile(tile);
  Tile& loaded = tiles_[tile];
  for (size_t row = 0; row < loaded.rows; ++row) {
    std::memcpy(loaded.words[row], static_cast<const std::byte*>(from) + row * stride,
                loaded.row_bytes);
  }
}

void EmulatedTiles::StoreTile(size_t tile, void* to, size_t stride) const {
  const Tile& stored = Configured(tile);
  for (size_t row = 0; row < stored.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * stride, stored.words[row], stored.row_bytes);
  }
}

void EmulatedTiles::DotTiles(size_t c, size_t a, size_t b) {
  Tile& sums = Configured(c);
  const Tile& rows = Configured(a);
  const Tile& columns = Configured(b);
  LAMINA_CHECK(c != a && a != b && b != c);
  LAMINA_CHECK(sums.rows == rows.rows && sums.row_bytes == columns.row_bytes);
  LAMINA_CHECK(rows.row_bytes == columns.rows * sizeof(uint32_t));
  const Halves in(rows.words, rows.rows);
  const Halves weights(columns.words, columns.rows);
  const auto sum_products = in.IsModerate() && weights.IsModerate() ? SumProducts<ModerateProducts>
                                                                    : SumProducts<AnyProducts>;
  for (size_t row = 0; row < sums.rows; ++row) {
    Sums products;
    sum_products(in, row, weights, products);
    for (size_t i = 0; i < sums.row_bytes / sizeof(float); ++i) {
      sums.words[row][i] = std::bit_cast<uint32_t>(
          FlushingAdd(std::bit_cast<float>(sums.words[row][i]), products[i]));
    }
  }
}

}  // namespace lamina::kernels::cpu
