// SPDX-License-Identifier: Apache-2.0
//
// ShardPart: what one of several shards of a model computes: of each layer some KV heads with their
// query heads, and some columns of the MLP. The rest (embedding, norms, sums) all of them compute
// alike; biases behind a sum over shards and the LM head are shard 0's.

#pragma once

#include <cstdint>

namespace lamina {

struct ShardPart {
  uint32_t index = 0;
  uint32_t count = 1;       // 1: the whole model; the rest counts for nothing.
  uint32_t first_head = 0;  // KV heads [first_head, + heads) of every layer.
  uint32_t heads = 0;
  uint32_t first_column = 0;  // Columns [first_column, + columns) of the MLP's inner width.
  uint32_t columns = 0;

  friend bool operator==(const ShardPart&, const ShardPart&) = default;
};

}  // namespace lamina
