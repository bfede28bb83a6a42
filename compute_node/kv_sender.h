// SPDX-License-Identifier: Apache-2.0
//
// KvSender: k and v of a step's rows go to the memory nodes that hold their sequences, without
// queries, for the rows attend here; and with them what they were made from, where memory nodes
// keep activations of rows of the path. A memory node's empty reply is the credit for the window.
//
// Threading: the data thread. Allocation: per epoch, and per step for who gets which rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/lane.h"
#include "compute_node/peers.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"

namespace lamina::compute_node {

class KvSender {
 public:
  // For rows and chunks of a path. The context must outlive this.
  KvSender(const WorkerContext& context, plan::AttentionPath path);

  // What puts are made from.
  uint64_t bytes() const;

  // Registers what puts are made from. Errors: the transport's, marked as its.
  absl::Status Open();

  // The lane's step has these runs, each of one sequence.
  // Memory nodes `also` get windows of the step, too, without tokens if none goes there: by them
  // they learn that it has begun. Errors: kInternal  more tokens than windows have room for.
  absl::Status BeginStep(const Lane& lane, absl::Span<const RowRun> runs,
                         absl::Span<const uint32_t> also = {});

  // k and v of the lane's slice. Errors: as Peers::Put().
  absl::Status Send(Lane& lane);

  // From now on Poll() takes the replies to the slice before the lane's. Whether any are missing.
  bool Await(const Lane& lane);
  // Whether all replies have come. Errors: as Peers::CheckWindow().
  absl::StatusOr<bool> Poll(const Lane& lane);
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const;

 private:
  // What of the lane's step goes to one memory node.
  struct Part {
    std::vector<RowRange> rows;
    uint32_t tokens = 0;
    bool involved = false;  // It gets windows.
    bool awaited = false;
  };
  struct LaneState {
    std::vector<Part> nodes;  // [memory nodes]
    // Windows as they are put, one behind the other. Sources of puts until the replies have come.
    std::vector<std::byte> staged;
  };

  absl::Status SendTo(Lane& lane, uint32_t node, std::byte*& staged);

  const WorkerContext& context_;
  // Elements of the activation that goes with k and v, to each memory node its part; 0: none.
  const uint32_t activation_width_;
  std::vector<LaneState> lanes_;
};

}  // namespace lamina::compute_node
