// SPDX-License-Identifier: Apache-2.0
//
// How a step is laid out: which rows it has, in which order, for which memory nodes, and which of
// them are sampled.

#pragma once

#include "absl/status/status.h"
#include "compute_node/lane.h"
#include "compute_node/sequence_table.h"
#include "control/node_handler.h"

namespace lamina::compute_node {

// Lays out the lane's plan, which the sequences have been told of. Sorts the plan's rows.
// Errors: kInternal  the plan does not follow from the tables, or does not fit the epoch.
// Requires: lane.nodes has an entry for each memory node.
absl::Status LayOut(const plan::EpochConfig& config, SequenceTable& sequences, Lane& lane);

// Whether K and V of that token of the sequence, all or some heads, are on the memory node.
bool HoldsToken(const plan::EpochConfig& config, uint32_t node, const Sequence& sequence,
                uint32_t token);

}  // namespace lamina::compute_node
