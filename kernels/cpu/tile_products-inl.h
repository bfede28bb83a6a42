// SPDX-License-Identifier: Apache-2.0
//
// TileProducts: a panel task over a unit of tiles (tiles.h).
//
// Four tiles are sums, and the other four take turns for activations and weights:
//
//   rows x strips   when                       a step of 16 loads
//   2 x 2           17 rows or more            2 tiles of rows, 2 of weights, for 4 products
//   1 x 4, 1 x 2    up to 16 rows              1 tile of rows, and each weight once
//   4 x 1           64 rows of a single strip  4 tiles of rows, 1 of weights
//
// Four sums, since a product takes as long as three to four that follow each other (52 cycles, one
// started every 16: Intel's Optimization Reference Manual, chapter on AMX).

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/tile_products.h"

namespace lamina::kernels::cpu {

template <class Unit>
class TileProducts {
  using Task = PanelTask<BFloat16>;

 public:
  TileProducts(const Task& task, Unit& unit) : task_(task), unit_(unit) {
    LAMINA_CHECK(task.steps % kTileSteps == 0);
  }

  void Run() {
    if (task_.rows > kTileRowsOnce) {
      const size_t passes = (task_.rows + kTileRowsOnce - 1) / kTileRowsOnce * 2;
      MultiplyRows(PanelFetcher(task_.next, passes, kTileSteps));
    } else if (task_.rows > 0) {
      MultiplyRows(StripsAhead(task_));
    }
    unit_.Release();
  }

 private:
  // Asks for weights ahead where each is read once: StripFetcher for sixteen steps at a time.
  class StripsAhead {
   public:
    explicit StripsAhead(const Task& task) : task_(task) {}

    template <size_t kStrips>
    StripFetcher<kStrips> From(size_t strip) const {
      const uint32_t* const words = task_.words + strip * task_.strip_words;
      const bool last = strip + kStrips == task_.strips;
      return StripFetcher<kStrips>(task_, words,
                                   last ? task_.next : words + kStrips * task_.strip_words);
    }

   private:
    const Task& task_;
  };

  template <size_t kStrips>
  static void Fetch(StripFetcher<kStrips>& fetcher) {
    for (size_t step = 0; step < kTileSteps; ++step) {
      fetcher.Step();
    }
  }
  static void Fetch(PanelFetcher& fetcher) { fetcher.Step(); }

  template <class Ahead>
  void MultiplyRows(Ahead ahead) {
    for (size_t row = 0; row < task_.rows;) {
      row += MultiplySome(row, task_.rows - row, ahead);
    }
  }

  // Returns how many of the `left` rows it took.
  template <class Ahead>
  size_t MultiplySome(size_t row, size_t left, Ahead& ahead) {
    if (task_.strips == 1 && left >= 4 * kTileRows) {
      return Multiply<4, 1>(row, 4 * kTileRows, 0, ahead);
    }
    const size_t rows = std::min(left, 2 * kTileRows);
    const bool few = rows <= kTileRows;
    switch (task_.strips) {
      case 1:
        return few ? Multiply<1, 1>(row, rows, 0, ahead) : Multiply<2, 1>(row, rows, 0, ahead);
      case 2:
        return few ? Multiply<1, 2>(row, rows, 0, ahead) : Multiply<2, 2>(row, rows, 0, ahead);
      default:
        if (few) {
          return Multiply<1, kPanelStrips>(row, rows, 0, ahead);
        }
        Multiply<2, 2>(row, rows, 0, ahead);
        return Multiply<2, 2>(row, rows, 2, ahead);
    }
  }

  template <size_t kRowTiles, size_t kStrips>
  size_t Multiply(size_t row, size_t rows, size_t strip, const StripsAhead& ahead) {
    auto fetcher = ahead.template From<kStrips>(strip);
    return MultiplyFetching<kRowTiles, kStrips>(row, rows, strip, fetcher);
  }
  template <size_t kRowTiles, size_t kStrips>
  size_t Multiply(size_t row, size_t rows, size_t strip, PanelFetcher& ahead) {
    return MultiplyFetching<kRowTiles, kStrips>(row, rows, strip, ahead);
  }

  // Rows [row, row + rows) of strips [strip, strip + kStrips). Returns `rows`.
  template <size_t kRowTiles, size_t kStrips, class Fetcher>
  size_t MultiplyFetching(size_t row, size_t rows, size_t strip, Fetcher& fetcher) {
    constexpr size_t kSums = kRowTiles * kStrips;
    static_assert(kSums <= kTiles / 2);
    Configure<kRowTiles, kStrips>(rows);
    float* const out = task_.out + row * task_.out_stride + strip * kStripFeatures;
    const size_t out_bytes = task_.out_stride * sizeof(float);
    ForEachTile<kSums>([&](auto i) {
      if (task_.first) {
        unit_.template Zero<i>();
      } else {
        unit_.template Load<i>(SumsAt<kStrips>(out, i), out_bytes);
      }
    });
    const BFloat16* in = task_.in + row * task_.in_stride;
    const uint32_t* words = task_.words + strip * task_.strip_words;
    for (size_t step = 0; step < task_.steps; step += kTileSteps) {
      Fetch(fetcher);
      AddStep<kRowTiles, kStrips>(in, words);
      in += 2 * kTileSteps;
      words += kTileSteps * kStripFeatures;
    }
    ForEachTile<kSums>(
        [&](auto i) { unit_.template Store<i>(SumsAt<kStrips>(out, i), out_bytes); });
    if (task_.bias != nullptr) {
      AddBias<kStrips>(rows, task_.bias + strip * kStripFeatures, out);
    }
    return rows;
  }

  template <size_t kStrips>
  float* SumsAt(float* out, size_t i) const {
    return out + i / kStrips * kTileRows * task_.out_stride + i % kStrips * kStripFeatures;
  }

  // Sixteen steps into all sums. Rows stay in tiles while weights take turns, or the other way
  // around where there is one strip.
  template <size_t kRowTiles, size_t kStrips>
  void AddStep(const BFloat16* in, const uint32_t* words) {
    constexpr size_t kSums = kTiles / 2;
    if constexpr (kRowTiles <= 2) {
      ForEachTile<kRowTiles>([&](auto r) { LoadRows<kSums + r>(in, r); });
      ForEachTile<kStrips>([&](auto s) {
        constexpr size_t kWeights = kSums + kRowTiles + s % (kTiles - kSums - kRowTiles);
        unit_.template Load<kWeights>(words + s * task_.strip_words, kTileRowBytes);
        ForEachTile<kRowTiles>(
            [&](auto r) { unit_.template Dot<r * kStrips + s, kSums + r, kWeights>(); });
      });
    } else {
      static_assert(kStrips == 1);
      unit_.template Load<kSums>(words, kTileRowBytes);
      ForEachTile<kRowTiles>([&](auto r) {
        constexpr size_t kRows = kSums + 1 + r % (kTiles - kSums - 1);
        LoadRows<kRows>(in, r);
        unit_.template Dot<r, kRows, kSums>();
      });
    }
  }

  template <size_t kTile>
  void LoadRows(const BFloat16* in, size_t row_tile) {
    unit_.template Load<kTile>(in + row_tile * kTileRows * task_.in_stride,
                               task_.in_stride * sizeof(BFloat16));
  }

  // The last of the tiles of rows has fewer, where there are fewer; with four of them none has.
  template <size_t kRowTiles, size_t kStrips>
  void Configure(size_t rows) {
    constexpr size_t kSums = kTiles / 2;
    TileConfig config;
    for (size_t i = 0; i < kRowTiles * kStrips; ++i) {
      config.Set(i, std::min(kTileRows, rows - i / kStrips * kTileRows));
    }
    for (size_t i = kSums; i < kTiles; ++i) {
      const bool of_rows = kRowTiles <= 2 && i - kSums < kRowTiles;
      config.Set(i, of_rows ? std::min(kTileRows, rows - (i - kSums) * kTileRows) : kTileRows);
    }
    if (std::memcmp(&config, &config_, sizeof(config)) != 0) {
      config_ = config;
      unit_.Configure(config_);
    }
  }

  template <size_t kStrips>
  void AddBias(size_t rows, const float* bias, float* out) const {
    for (size_t row = 0; row < rows; ++row, out += task_.out_stride) {
      for (size_t i = 0; i < kStrips * kStripFeatures; ++i) {
        out[i] += bias[i];
      }
    }
  }

  const Task& task_;
  Unit& unit_;
  TileConfig config_ = {.palette = 0};  // None yet.
};

}  // namespace lamina::kernels::cpu
