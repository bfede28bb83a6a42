// SPDX-License-Identifier: Apache-2.0
//
// ShardExchange: what the shards of a replica tell each other: their parts of sums. Each puts its
// own to all others and sums in the order of shards, so that all have the same bits. The windows
// alternate, and so do the buffers that are put from (plan/window_layout.h).
//
// Threading: the data thread. Allocation: per epoch.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shard_part.h"
#include "compute_node/worker_context.h"

namespace lamina::compute_node {

class ShardExchange {
 public:
  // The context must outlive this.
  explicit ShardExchange(const WorkerContext& context);

  // The own one.
  const ShardPart& shard() const { return shard_; }

  // What puts are made from. Errors: the transport's.
  absl::Status RegisterSources();
  uint64_t bytes() const;  // What that takes.

  // The lane's next sum is that of op `reduce` of its slice: the executor leaves the own part where
  // it is put from.
  void BeginSum(Lane& lane, size_t reduce);

  // Begins a sum without rows, so that shards meet all the same.
  void BeginEmptySum(const Lane& lane) { ++lanes_[lane.index].sums; }

  // Puts the own part, of the sum at lane.op. Errors: as Peers::Put().
  absl::Status Send(Lane& lane);

  // Sums, if all parts have come. Whether they have.
  // Errors: as Peers::CheckWindow().
  absl::StatusOr<bool> Take(Lane& lane);

  // The signal of the next part that is missing; if none is, of any other shard's.
  AwaitedSignal NextSignal(const Lane& lane) const;

 private:
  struct LaneState {
    uint64_t sums = 0;  // So far.
    // The own part of the latest two: header and rows.
    std::vector<std::byte> parts[2];
  };

  std::vector<std::byte>& OwnPart(const Lane& lane) {
    LaneState& state = lanes_[lane.index];
    return state.parts[state.sums % 2];
  }
  bool IsHere(const Lane& lane, uint32_t shard) const;
  plan::WindowHeader PartHeader(const Lane& lane, uint32_t sender) const;

  const WorkerContext& context_;
  const ShardPart shard_;
  std::vector<uint32_t> nodes_;  // Nodes that sum with this one, by shard; one if there are none.
  std::vector<LaneState> lanes_;
  std::vector<const float*> parts_;  // Parts of the sum at hand.
};

}  // namespace lamina::compute_node
