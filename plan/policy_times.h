// SPDX-License-Identifier: Apache-2.0
//
// PolicyTimes: what a compute node measures of itself, and tells the coordinator, for `policy:
// auto`: when it starts, or, of a replica that several nodes hold together, when it has its layers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace lamina::plan {

// Times of a slice, and of the end of a step (last MLP, LM head), for a batch of rows. A stage that
// is not the last one has no end: 0 seconds. Of shards all have the MLP, one the LM head.
struct SliceTimes {
  uint32_t rows = 0;
  double slice_seconds = 0;
  double tail_seconds = 0;
};

// What a compute node measured of what it runs; of a memory node, attention_local alone.
struct PolicyTimes {
  std::vector<SliceTimes> local = {};  // On all its threads; rows ascend.
  std::vector<SliceTimes> pools =
      {};  // On those that it has together with memory nodes of its host.
  // Bytes of K and V a second that attention reads: on all threads,
  double attention_local = 0;
  // and on the cores that it shares with memory nodes while slices run on the others; 0: it shares
  // none.
  double attention_shared = 0;
  // on the threads that it has together with memory nodes of its host, as where K and V are
  // fetched; 0: not measured.
  double attention_pools = 0;
  double read_bandwidth = 0;  // Bytes a second that all threads read.
  // Seconds to make K and V of a token in one layer from its activation, on the threads of `pools`.
  // 0: this node or model cannot.
  double make_seconds = 0;
  // The lowest and the highest reads on all threads while all of this was measured; 0: not told.
  double reads_low = 0;
  double reads_high = 0;
  // Where reads differed, the same once more as it was when they were slow, and when they were fast
  // (compute_node/policy_turns.h). Those have none.
  std::vector<PolicyTimes> ends = {};

  bool measured() const { return !local.empty() && !pools.empty() && attention_local > 0; }
};

// Slow and fast, in this order in PolicyTimes::ends where it has any.
inline constexpr size_t kReadsEnds = 2;

// Checks times that a node sent.
// Errors: kInvalidArgument  batches that do not grow from one row on, or are too many; times or
//                           rates that nothing can have; ends that are not two, or lack what the
//                           others have.
absl::Status CheckPolicyTimes(const PolicyTimes& times);

}  // namespace lamina::plan
