// SPDX-License-Identifier: Apache-2.0
//
// QueryParts: in which parts the units of each lane come, and how far each part is.
//
// Where compute nodes are shards, each sends the rows of its own heads: a unit comes in one part
// for each shard that has heads here, in any order. Without shards there is one part. A replica for
// prefill only may have other shards than those that decode.
//
// Threading: the data thread. Allocation: per epoch.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/clock.h"
#include "memory_node/node_epoch.h"
#include "plan/query_window.h"
#include "plan/reply_window.h"

namespace lamina::memory_node {

// What a lane's units are for one shard.
struct Part {
  uint32_t shard = 0;
  HeadRange heads;               // The heads that are here.
  uint64_t value = 0;            // The last piece that is done.
  uint32_t layer = 0;            // The step's next one.
  bool waited_for_plan = false;  // Its window came before the lane's plan.
  // What the windows of the unit that is being served hold, and how many pieces are done.
  plan::QueryShape query;
  plan::ReplyShape outputs;
  uint32_t pieces_done = 0;
  Nanos unit_nanos = 0;
  bool header_due = false;  // The unit's query header has not been checked yet.
  // Header and rows, as in a reply window. The next unit's query says that it was read.
  std::vector<std::byte> reply;
  // As much in the device's memory, for outputs that are put from there; null where none are.
  std::byte* device_reply = nullptr;
  // Partials of the first chunk's rows, where queries go first: [rows, spans of the row, query
  // heads, PartialWidth()], f32.
  std::vector<float> closed_partials;
};

class QueryParts {
 public:
  explicit QueryParts(const NodeEpoch& epoch);

  std::vector<Part>& of(const Lane& lane) { return lanes_[lane.index]; }
  std::vector<std::vector<Part>>& lanes() { return lanes_; }
  size_t count() const;  // Over all lanes.

  // The lane's part for a compute node; null if that takes no part, or its shard has no heads here.
  Part* Find(uint32_t compute_node, uint32_t lane) {
    const uint32_t part = part_of_[size_t{compute_node} * lanes_.size() + lane];
    return part == kNoPart ? nullptr : &lanes_[lane][part];
  }

 private:
  static constexpr uint32_t kNoPart = UINT32_MAX;

  static std::vector<Part> Make(const NodeEpoch& epoch, uint32_t lane);
  uint32_t IndexOf(const NodeEpoch& epoch, uint32_t compute_node, uint32_t lane) const;

  std::vector<std::vector<Part>> lanes_;
  std::vector<uint32_t> part_of_;  // [compute nodes, lanes]: index of the part, or kNoPart.
};

}  // namespace lamina::memory_node
