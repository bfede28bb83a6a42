// SPDX-License-Identifier: Apache-2.0
//
// The arithmetics of our own linear layer (own_linear.cc): what is multiplied how. They are f32
// multiply-adds (own_linear_tiles.h), pairs of bf16 (pair_tiles.h), and tiles of bf16
// (tile_products.h).

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "kernels/cpu/block_layout.h"
#include "kernels/cpu/own_linear_tiles.h"
#include "kernels/cpu/pair_tiles.h"
#include "kernels/cpu/panel_task.h"
#include "kernels/cpu/tile_products.h"
#include "kernels/work_cuts.h"

namespace lamina::kernels::cpu {

// An arithmetic says
//   Input        what the loop takes of activations,
//   kType        the compute type, and with it what words are,
//   kRowsAtOnce  rows that go through a panel before the next panel,
//   StepsAtOnce() steps of a panel that go through so many rows before the next steps: the panel's
//                part stays in the second cache,
//   kTogether    steps of which it takes whole multiples,
//   Order()      of the lanes of blocks,
//   kAsTheyLie   whether few rows are multiplied by blocks as they lie (block_pairs.h),
//   kNoBias      whether nothing is added where there is no bias; else zeros are,
//   kGatedRows   rows whose gates and ups of widened panels are multiplied strip by strip, next to
//                each other; 0: panels follow each other,
//   IsInput()    whether activations of so many columns are what the loop takes, unless zeros have
//                to complete them,
//   Copy()       which makes it of a row that is not.

// f32 multiply-adds. Their rows' f32 copy stays in the second cache.
struct WidenedBF16 {
  using Input = float;
  static constexpr DType kType = DType::kBF16;
  static constexpr size_t kRowsAtOnce = kCutRowsOfFloats;
  static size_t StepsAtOnce(size_t /*rows*/) { return SIZE_MAX; }
  static constexpr size_t kTogether = 1;
  static LaneOrder Order() { return LaneOrder::kFeatures; }
  static constexpr bool kAsTheyLie = false;
  static constexpr bool kNoBias = false;
  static constexpr size_t kGatedRows = 0;
  static bool IsInput(size_t /*cols*/) { return false; }
  static float* Copy(const BFloat16* from, size_t cols, float* to) {
    return std::transform(from, from + cols, to, [](BFloat16 x) { return ToFloat(x); });
  }
  static void Multiply(const PanelTask<float>& task) { MultiplyPanelBF16(task); }
  static std::string Name() { return absl::StrCat("highway rows ", PanelTargetName()); }
};

struct PlainF32 {
  using Input = float;
  static constexpr DType kType = DType::kF32;
  static constexpr size_t kRowsAtOnce = kCutRowsOfFloats;
  static size_t StepsAtOnce(size_t /*rows*/) { return SIZE_MAX; }
  static constexpr size_t kTogether = 1;
  static LaneOrder Order() { return LaneOrder::kFeatures; }
  static constexpr bool kAsTheyLie = false;
  static constexpr bool kNoBias = false;
  static constexpr size_t kGatedRows = 0;
  static bool IsInput(size_t /*cols*/) { return true; }
  static float* Copy(const float* from, size_t cols, float* to) {
    return std::copy_n(from, cols, to);
  }
  static void Multiply(const PanelTask<float>& task) { MultiplyPanelF32(task); }
  static std::string Name() { return absl::StrCat("highway rows ", PanelTargetName()); }
};

struct PairsOfBF16 {
  using Input = BFloat16;
  static constexpr DType kType = DType::kBF16;
  static constexpr size_t kRowsAtOnce = kCutRowsOfPairs;
  // So few rows read a weight once.
  static size_t StepsAtOnce(size_t rows) { return rows <= kPairRowsOnce ? SIZE_MAX : 512; }
  static constexpr size_t kTogether = 1;
  static LaneOrder Order() { return LaneOrder::kPairs; }
  static constexpr bool kAsTheyLie = true;
  static constexpr bool kNoBias = false;
  // Two passes of 12 rows by two strips.
  static constexpr size_t kGatedRows = 24;
  static bool IsInput(size_t cols) { return cols % 2 == 0; }
  static BFloat16* Copy(const BFloat16* from, size_t cols, BFloat16* to) {
    return std::copy_n(from, cols, to);
  }
  static void Multiply(const PanelTask<BFloat16>& task) { MultiplyPanelPairs(task); }
  static std::string Name() { return "pairs of bf16 AVX512_BF16"; }
};

// Tiles of AMX, or their emulation.
template <bool kEmulated>
struct TilesOfBF16 {
  using Input = BFloat16;
  static constexpr DType kType = DType::kBF16;
  static constexpr size_t kRowsAtOnce = kCutRowsOfPairs;
  static size_t StepsAtOnce(size_t rows) { return rows <= kTileRowsOnce ? SIZE_MAX : 512; }
  static constexpr size_t kTogether = kTileSteps;
  // Processors with tiles have pairs too, which widen faster. Either order gives the same words but
  // for subnormals, which tiles take for zeros.
  static LaneOrder Order() {
    return !kEmulated && HasPairTiles() ? LaneOrder::kPairs : LaneOrder::kFeatures;
  }
  static constexpr bool kAsTheyLie = false;  // Their bits are those of pairs.
  static constexpr bool kNoBias = true;      // It is a pass of its own over the sums.
  static constexpr size_t kGatedRows = 0;
  static bool IsInput(size_t /*cols*/) { return true; }
  static BFloat16* Copy(const BFloat16* from, size_t cols, BFloat16* to) {
    return std::copy_n(from, cols, to);
  }
  static void Multiply(const PanelTask<BFloat16>& task) {
    kEmulated ? MultiplyPanelEmulatedTiles(task) : MultiplyPanelTiles(task);
  }
  static std::string Name() {
    return kEmulated ? "tiles of bf16, emulated" : "tiles of bf16 AMX_BF16";
  }
};

}  // namespace lamina::kernels::cpu
