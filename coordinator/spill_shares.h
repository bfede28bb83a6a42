// SPDX-License-Identifier: Apache-2.0
//
// SpillShares: what the spill tiers of memory nodes hold in tokens, and how fast they are, for the
// scheduler.
//
// Determinism: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "common/attention_descriptor.h"
#include "control/node_handler.h"
#include "coordinator/core/scheduler_options.h"

namespace lamina::coordinator {

// A node's tier, and the bytes of K and V that it keeps of a token.
struct NodeTier {
  control::SpillTier tier;
  uint64_t bytes_per_token = 0;
};

// The tier of nodes that each have a part of every token, written and read at the same time: as
// much as the smallest holds, as fast as the slowest. One node that has no tier: none. Requires:
// there is a node.
core::SpillShare SpillShareOf(const std::vector<NodeTier>& nodes);

}  // namespace lamina::coordinator
