// SPDX-License-Identifier: Apache-2.0
//
// Row chunks: the rows of a lane that go to one memory node leave in several chunks, one signal
// step each, so that attention starts on the first while the others are on their way, and outputs
// leave chunk by chunk. Where there are too few rows a chunk is a group of KV heads of all rows
// instead, as if it were a layer with fewer heads. The plan of a step says how many and of what;
// both ends cut the same way. Which chunk a row or a head is in changes none of its bits.
//
// How many: each chunk beyond the first costs a message each way; C chunks hide all but a C-th of
// the shorter of transfer and attention behind the other. A chunk of heads is work for as many
// threads as it has heads, times rows.
//
// Determinism: pure functions.

#pragma once

#include <cstdint>
#include <string>

#include "common/query_first.h"
#include "cost/layer_seconds.h"
#include "plan/row_pieces.h"

namespace lamina::core {

struct SubBatchOptions {
  uint32_t chunks = 1;     // As configured.
  bool automatic = false;  // Any number up to kSubBatchesMax.
  QueryFirst query_first = QueryFirst::kNever;
};

// One layer of a lane: what its rows need of the link, the memory nodes and the replica.
struct SubBatchWork {
  uint32_t rows = 0;
  uint32_t rows_of_node = 0;  // The most that any memory node gets of them.
  double attention_seconds = 0;
  double slice_seconds = 0;
};

struct SubBatchCount {
  plan::Chunking cut;
  std::string why;  // "8 chunks: 16 rows, 1.27 ms of link against 1.90 ms of attention a layer,
                    // queries first"; "3 chunks of KV heads: 1 row, ..."
};

// The number with the shortest layer; 1 while nothing is measured, and where the link takes less
// than a twentieth of a layer: there kAuto keeps k and v with their queries, too. Chunks are of
// heads where that gives more of them, and with times measured a shorter layer.
SubBatchCount ChooseSubBatches(const SubBatchOptions& options, const cost::LinkCosts& link,
                               const SubBatchWork& work);

}  // namespace lamina::core
