// SPDX-License-Identifier: Apache-2.0
//
// RecentSets: says to each memory node, when a step begins, which tokens of its spans come (path
// sparse in partition token_range): all before the step's rows that the compute node does not have.
// They are the same in each layer, and of each span the first ones.
//
// Threading: the data thread. Memory: in the constructor.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compute_node/fetched_kv.h"
#include "compute_node/lane.h"
#include "compute_node/worker_context.h"

namespace lamina::compute_node {

class RecentSets {
 public:
  // The context must outlive this.
  explicit RecentSets(const WorkerContext& context);

  // Sets of tokens of all lanes.
  uint64_t bytes() const;

  // Registers what puts are made from. Errors: the transport's, marked as its.
  absl::Status Open();

  // The lane's step has begun in `kv`, whose senders learn what comes.
  // Errors: as Peers::Put(); kInternal  more runs than windows have room for.
  absl::Status Put(const Lane& lane, const FetchedKv& kv);

 private:
  const WorkerContext& context_;
  // [lanes]: windows as they are put. Sources of puts until the step's pieces have come.
  std::vector<std::vector<uint64_t>> staged_;
};

}  // namespace lamina::compute_node
