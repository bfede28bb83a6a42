// SPDX-License-Identifier: Apache-2.0
//
// Extents of sequences after long churn, as a directory with soft reservations leaves them.
//
// A stand-in for the coordinator's directory, which kernels may not depend on: sequences grow token
// by token, all in turn; each grows into a run reserved behind its tail and takes a new run near
// its last slot when that is used up; finished sequences leave holes of their own shape.

#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace lamina::bench {

struct ChurnOptions {
  uint32_t slots = 0;
  uint32_t sequences = 64;
  uint32_t finished = 2000;  // Sequences that come and go before the picture is taken.
  uint32_t seed = 1;
};

struct ChurnResult {
  std::vector<std::vector<kernels::Extent>> extents;  // By sequence.
  double mean_extent = 0;
  double mean_tokens = 0;
};

ChurnResult SimulateChurn(const ChurnOptions& options);

}  // namespace lamina::bench
