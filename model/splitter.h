// SPDX-License-Identifier: Apache-2.0
//
// Splitter: cuts a graph at every attention op into slices, and names the context that must be
// carried across each attention (Lamina, section 5.3).
//
// For n attention ops there are n + 1 slices. Slice k computes everything up to attention k's
// input; the values of the context of attention k are produced in slices <= k and consumed in
// slices > k. The context is a minimum weighted cut (weight: bytes per token of a value, counted
// once however many consumers it has) of the graph without the attention op, closed under
// predecessors. Among minimum cuts the one nearest the sink is taken, so that as much as possible
// runs while attention is away. Cuts are found in the order of the attention ops; what an earlier
// slice holds is before every later cut. The LM head is in the last slice.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/graph.h"

namespace lamina::model {

struct Slice {
  // In an order in which they can run: first what attention k's input needs, so that q, k and v
  // leave early; from `ops_before_send` on, what runs while attention is away.
  std::vector<OpId> ops;
  uint32_t ops_before_send = 0;  // == ops.size() when no op is left to overlap with the attention.
  OpId attention = kNone;        // The attention that follows; kNone for the last slice.
  // Values carried across `attention`, besides its own output: [the context]. Sorted by id.
  std::vector<ValueId> context;
};

struct SplitModel {
  std::vector<Slice> slices;  // attention_count() + 1

  // Requires: slice < slices.size(). 0 for the last slice.
  uint64_t ContextBytesPerToken(const Graph& graph, uint32_t slice) const;
};

// Errors: kInvalidArgument  the graph is not valid, or an attention op has no cut (its input needs
//                           the LM head); names the op.
absl::StatusOr<SplitModel> SplitAtAttention(const Graph& graph);

// The minimum cut by itself, on any DAG; SplitAtAttention and its tests use it.
struct CutProblem {
  uint32_t nodes = 0;                                // Ops, 0 .. nodes-1, topologically ordered.
  std::vector<uint64_t> weight;                      // Bytes of node i's output.
  std::vector<std::pair<uint32_t, uint32_t>> edges;  // Producer to consumer.
  std::vector<uint32_t> source;                      // Nodes that must be before the cut.
  std::vector<uint32_t> sink;                        // Nodes that must be after it.
};
struct Cut {
  uint64_t weight = 0;
  std::vector<bool> before;  // [nodes]; closed under predecessors; the largest of the minimum cuts.
};

// Errors: kInvalidArgument  an id or the number of weights is wrong, an edge is not in topological
//                           order, the weights exceed 2^61 together, or a source needs a sink.
absl::StatusOr<Cut> MinimumCut(const CutProblem& problem);

}  // namespace lamina::model
