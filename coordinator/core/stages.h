// SPDX-License-Identifier: Apache-2.0
//
// Stages: a model replica that is split by layers over several compute nodes. The stage of layers
// [a, b) runs slices a to b - 1, each with the attention behind it; the last stage runs the last
// slice too, which ends with the LM head and samples.
//
// Determinism: pure functions of their arguments.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lamina::core {

// What one compute node runs.
struct Stage {
  uint32_t replica = 0;
  uint32_t first_layer = 0;
  uint32_t layers = 0;

  friend bool operator==(const Stage&, const Stage&) = default;
};

// Whether each replica, from 0 on, has every layer once. Errors: kInvalidArgument.
absl::Status CheckStages(absl::Span<const Stage> nodes, uint32_t layers);

// A stage to be given its layers.
struct StageNode {
  std::string name;
  double speed = 0;  // Cost that it works off in a second, measured; 0: not known.
};

struct StageSplit {
  std::vector<uint32_t> layers;  // Of each stage.
  std::string why;               // "by cost", "by cost and measured speed: c0 0.67, c1 1.33"
  // Of the stage that takes longest, against all of them on one node of mean speed: 1 / stages is
  // the best there can be.
  double busiest_share = 1;
};

// Splits slices of these costs (any unit; one more than layers, the last with the LM head) so that
// the slowest stage is as fast as can be; of several such splits that with the fewest layers in the
// earlier stages. If the speed of one stage is not known, or all are within a tenth, none counts.
// Errors: kInvalidArgument  more stages than layers; names them.
absl::StatusOr<StageSplit> SplitLayers(absl::Span<const double> slice_costs,
                                       absl::Span<const StageNode> stages);

// Time of the busiest stage as a part of the replica's, from these costs and speeds.
double BusiestShare(absl::Span<const double> slice_costs, absl::Span<const StageNode> stages,
                    absl::Span<const uint32_t> layers);

}  // namespace lamina::core
