// SPDX-License-Identifier: Apache-2.0
//
// Lane count: over how many lanes the running rows are spread. Pure functions of measured times.
//
// Lanes hide attention behind slices and the other way round, but each reads the weights once for
// itself: n lanes of B/n rows take n * (fixed + B/n * per_row) of slice time a layer where one lane
// takes fixed + B * per_row. So few rows are faster in one lane.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <string>

namespace lamina::core {

// Mean times of one lane's unit, in seconds, as straight lines over its size.
struct LaneCosts {
  double slice_fixed = 0;      // Of a slice on a replica, the step's tail spread over its slices.
  double slice_per_row = 0;    // And for each row of the lane.
  double attention_fixed = 0;  // Of an attention on the pool of memory nodes.
  double attention_per_token = 0;  // And for each token of the lane's context.
  uint32_t replicas = 1;
  double busiest_share = 1;  // Of a replica's slices on the busiest of its stages.
  bool measured = false;     // Else the others mean nothing.
};

// What runs, spread evenly over lanes.
struct LaneWork {
  uint32_t rows = 0;
  uint64_t context_tokens = 0;
};

// Seconds that one layer of all rows takes with `lanes` lanes: the longest of what a replica, the
// pool, and one lane after itself need.
double LayerSeconds(const LaneCosts& costs, const LaneWork& work, uint32_t lanes);

struct LaneCountOptions {
  uint32_t lanes_max = 1;
  bool automatic = false;                   // Any number up to lanes_max; else lanes_max.
  uint32_t rows_max = 1;                    // Of a lane.
  std::string fixed_why = "as configured";  // Without `automatic`.
};

struct LaneCount {
  uint32_t lanes = 1;
  std::string why;  // "2 of 2 lanes: 16 rows, a layer takes 1.2 ms, 1.9 ms in one lane"
};

// Without `automatic`: lanes_max. With it, before anything is measured: lanes_max, or one when
// there are fewer rows than that; then the fastest, but `current` as long as it is within a
// twentieth of it. Never more lanes than rows, nor too few for the rows.
LaneCount ChooseLanes(const LaneCountOptions& options, const LaneCosts& costs, const LaneWork& work,
                      uint32_t current);

}  // namespace lamina::core
