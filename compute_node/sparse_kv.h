// SPDX-License-Identifier: Apache-2.0
//
// SparseKv: rows attend over K and V of chosen tokens (token_choice.h), which memory nodes put into
// this node's windows one behind the other. How rows attend to a piece follows from the form of K
// and V (sparse_pieces.h). What softmax gave each token goes into the sums by which the next rows'
// tokens are chosen.
//
// A piece has some heads of some runs (plan/fetch_pieces.h); sums are of all heads, added up in
// their order, and are handed on when a layer's last piece has been attended. Where heads are
// spread over memory nodes, and a row of the step is weighed, pieces of a node are attended when
// those of the nodes before it have been: these have the heads before its own. So sums have the
// same bits in any partition, however pieces come.
//
// Threading: the data thread. Allocation: per epoch, and when a step or a layer begins.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute_node/lane.h"
#include "compute_node/node_sums.h"
#include "compute_node/peers.h"
#include "compute_node/piece_windows.h"
#include "compute_node/sparse_pieces.h"
#include "compute_node/sparse_sums.h"
#include "compute_node/token_choice.h"
#include "compute_node/worker_context.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class SparseKv {
 public:
  // References must outlive this.
  SparseKv(const WorkerContext& context, const TokenChoice& choice, SparseSums& sums,
           SparsePieces& form);

  // The lane's step begins, and its tokens are chosen.
  void BeginStep(const Lane& lane);

  // q, k and v of the lane's slice are there: from now on Poll() attends its pieces.
  void BeginLayer(const Lane& lane);

  // Attends at most one piece of each memory node that has come, and gives its window back. Whether
  // none is missing. Errors: as Peers::CheckWindow(), Peers::Put().
  absl::StatusOr<bool> Poll(Lane& lane);
  // A node whose turn has not come is not awaited: its next piece may be here.
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const;

 private:
  // What one memory node sends of one lane.
  struct Stream {
    std::vector<plan::FetchRun> runs;  // The layer's, with the chosen tokens before them.
    // For each run: how many of its rows, the last ones, are weighed, and where in `weights` of the
    // stream that NodeSums says the sums of the first of them begin: each has as many floats as
    // the run has tokens, its own counted.
    std::vector<uint32_t> weighed;
    std::vector<size_t> first_weight;
    std::vector<float> weights;
  };
  struct LaneState {
    uint32_t layer = 0;
    std::vector<Stream> streams;  // [memory nodes]
    bool in_turn = false;         // Nodes are attended one behind the other.
  };

  // Whether pieces of the node may be attended: those before it have none left, or need not.
  bool IsTurnOf(const Lane& lane, uint32_t node) const;
  float* WeightsOf(const Lane& lane, uint32_t node, uint32_t run);
  void Attend(Lane& lane, uint32_t node);
  void EndLayer(const Lane& lane, uint32_t node);

  const WorkerContext& context_;
  const TokenChoice& choice_;
  SparseSums& sums_;
  SparsePieces& form_;
  PieceWindows windows_;
  std::unique_ptr<const NodeSums> node_sums_;
  std::vector<LaneState> lanes_;
  std::vector<SparsePieces::Run> runs_;  // Those of one piece.
  std::vector<uint32_t> tokens_;         // One row's, as sums count them.
};

}  // namespace lamina::compute_node
