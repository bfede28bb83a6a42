// SPDX-License-Identifier: Apache-2.0
//
// NodeSums: where what softmax gave the tokens of rows is added up while pieces of several memory
// nodes are attended, and when it is complete. It differs by partition: each memory node has all
// heads of some runs, or some heads of all runs (partition head).
//
// Sums are of all heads in their order. So where heads are spread, runs of all nodes are summed in
// one place, and nodes are attended one behind the other.
//
// Threading: any; it has no state.

#pragma once

#include <cstdint>
#include <memory>

#include "compute_node/lane.h"
#include "compute_node/piece_windows.h"
#include "plan/epoch_config.h"

namespace lamina::compute_node {

class NodeSums {
 public:
  virtual ~NodeSums() = default;

  // Those of an epoch with this partition.
  static std::unique_ptr<const NodeSums> Of(const plan::EpochConfig& config);

  // Whether nodes are attended one behind the other in a step with weighed rows.
  virtual bool in_turn() const = 0;
  // The memory node in whose stream the weights of another's runs are added up.
  virtual uint32_t SummedIn(uint32_t node) const = 0;
  // Whether the sums that a memory node adds to are complete in the lane's layer, when its last
  // piece has been attended.
  virtual bool Complete(const PieceWindows& windows, const Lane& lane) const = 0;
};

}  // namespace lamina::compute_node
