// SPDX-License-Identifier: Apache-2.0
//
// What `partition: auto` picks, and why; and whether a partition can be served at all. Pure
// functions over what the cluster file says, before any node has joined.
//
// Determinism: same arguments, same answer.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/partition.h"
#include "coordinator/core/head_shares.h"

namespace lamina::core {

struct PartitionNeeds {
  std::vector<AttentionDescriptor> layers;
  std::vector<HeadNode> nodes;  // Bandwidths may be unknown (0).
  uint32_t sequence_tokens_max = 0;
  uint32_t running_max = 0;
  KvLayout layout;
  // Partition head: slots of a node are a multiple of this, and each takes so much for each head
  // besides K and V.
  uint32_t slot_block = 1;
  uint64_t more_bytes = 0;
  // Partition token_range: what a slot takes where that is more than K and V. 0: these alone.
  uint64_t slot_bytes = 0;
};

// Whether that partition can be served. kAuto: whether any can.
// Errors: kInvalidArgument, kFailedPrecondition  what is missing: of ShareHeads() and CheckSpans();
//         for kRequest the node without room for the longest sequence.
absl::Status CheckPartition(Partition partition, const PartitionNeeds& needs);

struct PartitionChoice {
  Partition partition = Partition::kRequest;
  std::string why;
};

// `request` where it can be served and there are sequences enough to occupy all nodes: it sends the
// least, and a lost node ends the fewest requests. Else `head`, if nothing is lost by it (heads
// that divide, or nearly), else `token_range`. Errors: none of the three can be served; says why of
// each.
absl::StatusOr<PartitionChoice> ChoosePartition(const PartitionNeeds& needs);

}  // namespace lamina::core
