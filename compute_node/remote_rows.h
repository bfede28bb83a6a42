// SPDX-License-Identifier: Apache-2.0
//
// RemoteRows: which rows of a step go to which memory node, in which order, and where the partials
// of its rows come to lie.
//
// Threading: the data thread. Allocation: per step.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compute_node/lane.h"
#include "compute_node/sequence_table.h"
#include "plan/epoch_config.h"

namespace lamina::compute_node {

// What of a step concerns one memory node.
struct NodeRows {
  RowRange rows;     // Decode rows.
  RowRange kv_rows;  // Rows of all k and v of the chunks that go to memory nodes.
  // Partition token_range: the rows, of which the first `own_rows` have their own token there.
  std::vector<uint32_t> span_rows;
  uint32_t own_rows = 0;
  uint32_t partials = 0;  // Partials that it answers.
  bool involved() const { return rows.count > 0 || kv_rows.count > 0; }
};

// Where the reply to one span of a row lies.
struct SpanPartial {
  uint32_t node = 0;
  uint32_t index = 0;  // Index among the node's partials.
};

struct RemoteRows {
  RowRange decode;              // Decode rows of the step.
  std::vector<NodeRows> nodes;  // [memory nodes]
  // Partition token_range: of each decode row and span, rows by rows; where each row's begin.
  std::vector<SpanPartial> partials;
  std::vector<uint32_t> first_partial;  // [decode rows + 1]
};

// Places these rows of the lane's step, which is laid out.
// Errors: kInternal  the plan does not follow from the tables, or does not fit the epoch.
// Requires: placed.nodes has an entry for each memory node.
absl::Status PlaceRemoteRows(const plan::EpochConfig& config, SequenceTable& sequences,
                             const Lane& lane, const PathRows& rows, RemoteRows& placed);

// Whether K and V of that token of the sequence, all or some heads, are on the memory node.
bool HoldsToken(const plan::EpochConfig& config, uint32_t node, const Sequence& sequence,
                uint32_t token);

}  // namespace lamina::compute_node
