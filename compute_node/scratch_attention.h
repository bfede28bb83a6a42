// SPDX-License-Identifier: Apache-2.0
//
// ScratchAttention: prompt chunks attend at the compute node, over the scratch KV of their
// sequences, which has K and V of their earlier chunks.
//
// Threading: the data thread. Allocation: per step.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compute_node/lane.h"
#include "compute_node/worker_context.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

class ScratchAttention {
 public:
  // `kernel` has the layers that run here, from `first_layer` on, and room for the epoch's scratch.
  // References must outlive this.
  ScratchAttention(const WorkerContext& context, kernels::ChunkAttention& kernel,
                   uint32_t first_layer)
      : context_(context),
        kernel_(kernel),
        first_layer_(first_layer),
        lanes_(context.config.lanes) {}

  // These chunks of the lane's step, which is laid out.
  void BeginStep(const Lane& lane, const PathRows& rows);

  // Stores k and v of the chunks' rows of the lane's slice, and attends them; in the model's last
  // layer those alone whose outputs are read. Errors: those of the device.
  absl::Status Attend(Lane& lane);

 private:
  // The chunks of a lane's step; those of the model's last layer say which outputs are read.
  struct Chunks {
    std::vector<kernels::ChunkItem> items;
    std::vector<kernels::ChunkItem> of_last;
  };

  const WorkerContext& context_;
  kernels::ChunkAttention& kernel_;
  const uint32_t first_layer_;
  std::vector<Chunks> lanes_;
};

}  // namespace lamina::compute_node
