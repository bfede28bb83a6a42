// SPDX-License-Identifier: Apache-2.0
#include "compute_node/node_sums.h"

#include "compute_node/worker_context.h"

namespace lamina::compute_node {
namespace {

// Each memory node has all heads of its runs.
class SumsOfRuns final : public NodeSums {
 public:
  bool in_turn() const override { return false; }
  uint32_t SummedIn(uint32_t node) const override { return node; }
  bool Complete(const PieceWindows&, const Lane&) const override { return true; }
};

// Each memory node has some heads of all runs, which are the same in all streams: the first one has
// the sums.
class SumsOfHeads final : public NodeSums {
 public:
  bool in_turn() const override { return true; }
  uint32_t SummedIn(uint32_t) const override { return 0; }
  bool Complete(const PieceWindows& windows, const Lane& lane) const override {
    return windows.Ended(lane);
  }
};

}  // namespace

std::unique_ptr<const NodeSums> NodeSums::Of(const plan::EpochConfig& config) {
  if (ByHead(config)) {
    return std::make_unique<SumsOfHeads>();
  }
  return std::make_unique<SumsOfRuns>();
}

}  // namespace lamina::compute_node
