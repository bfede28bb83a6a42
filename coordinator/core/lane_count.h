// SPDX-License-Identifier: Apache-2.0
//
// Lane count: over how many lanes the running rows are spread. A choice by measured times
// (cost/layer_seconds.h).
//
// Lanes hide attention behind slices and the other way round, but each reads the weights once for
// itself: n lanes of B/n rows take n * (fixed + B/n * per_row) of slice time a layer where one lane
// takes fixed + B * per_row. So few rows are faster in one lane.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <string>

#include "cost/layer_seconds.h"

namespace lamina::core {

struct LaneCountOptions {
  uint32_t lanes_max = 1;
  bool automatic = false;                   // Any number up to lanes_max; else lanes_max.
  uint32_t rows_max = 1;                    // The most rows of a lane.
  std::string fixed_why = "as configured";  // Reason without `automatic`.
};

struct LaneCount {
  uint32_t lanes = 1;
  std::string why;  // "2 of 2 lanes: 16 rows, a layer takes 1.2 ms, 1.9 ms in one lane"
};

// Without `automatic`: lanes_max. With it, before anything is measured: lanes_max, or one when
// there are fewer rows than that; then the fastest, but `current` as long as it is within a
// twentieth of it. Never more lanes than rows, nor too few for the rows.
LaneCount ChooseLanes(const LaneCountOptions& options, const cost::LaneCosts& costs,
                      const cost::LaneWork& work, uint32_t current);

}  // namespace lamina::core
