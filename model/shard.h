// SPDX-License-Identifier: Apache-2.0
//
// Shards: one model over several nodes by tensor parallelism. A shard's graph is the model's with
// narrower weights: of q, k, v and of the MLP's first layer it has some rows, of the layers behind
// them the columns that read those. What these layers put out is a part, of which the sum over all
// shards is the value: a ReduceOp follows where it is next read by anything but a sum. Sums of
// parts stay parts; what is no part is added by shard 0 alone, as are biases. So a decoder layer
// reduces twice, and one with a parallel residual once.
//
// Embedding, norms and residual stream are the same on all shards. The LM head is in every graph
// and meant for shard 0.
//
// Threading: pure functions.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shard_part.h"
#include "model/graph.h"

namespace lamina::model {

// What there is to share out, and what it costs.
struct ShardWidths {
  uint32_t heads = 0;    // KV heads of every layer.
  uint32_t columns = 0;  // Inner width of every layer's MLP.
  // Weights of all layers that belong to one KV head with its query heads, and to one column.
  double head_weights = 0;
  double column_weights = 0;
};

// Errors: kUnimplemented  layers that differ in KV heads or in the MLP's width, norms over all
// heads;
//                         names one.
absl::StatusOr<ShardWidths> ShardWidthsOf(const Graph& graph);

// The graph of one shard; with count 1 the whole. Weights keep their ids; pieces of them come
// behind. Errors: kInvalidArgument  heads or columns that the model does not have, or none.
//         kUnimplemented    as ShardWidthsOf().
absl::StatusOr<Graph> ShardGraph(const Graph& whole, const ShardPart& part);

// Bytes of the linear weights of a graph, two each; the LM head left out with `head` false.
uint64_t LinearBytes(const Graph& graph, bool head);

}  // namespace lamina::model
