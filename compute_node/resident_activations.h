// SPDX-License-Identifier: Apache-2.0
//
// ResidentActivations: the activations of some tokens, which stay on the compute node that made
// them, so that K and V of these can be made again with nothing on the link (path recompute;
// kvpr.txt 3, row by row; path hybrid: the ACT blocks of hybridserve.txt
// 4.2.1 on the device). Which tokens, and in which places, the plan says of each sequence that
// joins (plan::ResidentTokens). Memory nodes have all tokens too: a lost compute node loses
// nothing.
//
//   BeginStep(lane, runs)  the rows of the step
//   Store(lane, ...)       once a layer, before anything of it is read
//   Row(layer, place)      what has been stored
//
// Threading: the data thread. Memory: the arena, which is made before. Allocation: per step.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "compute_node/lane.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "kernels/activation_arena.h"

namespace lamina::compute_node {

class ResidentActivations {
 public:
  // `arena` has the epoch's layers and places; null: none stay. References must outlive this.
  ResidentActivations(const WorkerContext& context, kernels::ActivationArena* arena)
      : context_(context), arena_(arena), lanes_(context.config.lanes) {}

  bool any() const { return arena_ != nullptr; }

  // These runs of the lane's step are next, each of one sequence.
  // Errors: kInternal  a sequence that the tables do not have, or places that are not there.
  absl::Status BeginStep(const Lane& lane, absl::Span<const RowRun> runs);

  // Keeps the activations of the step's rows in the lane's slice, which has run.
  absl::Status Store(Lane& lane);

  // The activation of the token in this place, in the layer.  Requires: any().
  const BFloat16* Row(uint32_t layer, uint32_t place) const { return arena_->Row(layer, place); }

 private:
  // Consecutive rows of a step, and their places.
  struct KeptRows {
    uint32_t first_row = 0;
    Extent places;
  };

  const WorkerContext& context_;
  kernels::ActivationArena* const arena_;
  std::vector<std::vector<KeptRows>> lanes_;
};

}  // namespace lamina::compute_node
