// SPDX-License-Identifier: Apache-2.0
//
// Head shares: which KV heads each memory node holds under the head partition. Pure functions.
//
// Every node holds its heads of every sequence in the same slot numbers, so all have as many slots
// as the one with the least room for its share. A row goes to all nodes; each gets the query heads
// of its KV heads, so a row's attention takes as long as the slowest node's.
//
// Determinism: same arguments, same answer; ties go to the lower index.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/kv_form.h"

namespace lamina::core {

struct HeadNode {
  std::string name;
  double bandwidth = 0;  // Any unit, the same for all.
  uint64_t capacity_bytes = 0;
};

struct HeadSplit {
  std::vector<HeadRange> heads;  // Heads of each node, in their order; none is empty.
  uint32_t slots = 0;            // Slots of every node.
  uint32_t tightest = 0;         // The node whose capacity decides on the slots.
  // The slowest node's attention time over that of a split to the byte: 1 is balanced.
  double imbalance = 1;
};

// Gives each node one head, then head after head to the node that is done first with it, as long as
// it has room for sequences of `tokens_least`. That is the least longest time there is.
// A slot takes `more_bytes` for each head besides K and V.
// Errors: kInvalidArgument     the layers differ in KV heads, or there are more nodes than heads.
//         kFailedPrecondition  too little room: for one head on a node (its name, what it has, what
//                              it needs), or for all heads on all nodes.
absl::StatusOr<HeadSplit> ShareHeads(absl::Span<const AttentionDescriptor> layers,
                                     absl::Span<const HeadNode> nodes, uint32_t tokens_least,
                                     const KvLayout& layout = {}, uint64_t more_bytes = 0);

// "m0 2, m1 1 of 3 KV heads; the slowest takes 1.33 times an even split's time".
std::string DescribeSplit(const HeadSplit& split, absl::Span<const HeadNode> nodes);

}  // namespace lamina::core
