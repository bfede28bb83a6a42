// SPDX-License-Identifier: Apache-2.0
//
// WindowLayout: where data lies in the registered regions of compute and memory nodes, and which
// signal value announces which unit. Both ends compute it from the same configuration; nothing of
// it travels.
//
// Every receiver has one region. A memory node's region holds a query window for each (compute
// node, lane, parity); a compute node's holds a reply window for each (memory node, lane, parity),
// and with several replicas, behind these, a context window for each (compute node, lane) and a
// token window for each (compute node, lane, step modulo plan_ahead), and with shards a part window
// for each (shard, lane, parity). A window is a WindowHeader and rows. One signal word belongs to
// each (sender, lane, kind).
//
//   query window   header | rows x [q | k | v] bf16 | kv_rows x [k | v] bf16
//   reply window   header | rows x [attention output] bf16
//   (kv_rows are those of prompt chunks. With spans, partition token_range: header | own rows x
//   [q | k | v] | other rows x q | kv_rows x [k | v], and
//   header | partials x [query heads x [out | lse]] f32)
//   context window header | for each value of the context: rows x value
//   (with stages: of decode and chunk rows, then chunk rows x [attention output] bf16)
//   token window   header | rows x TokenEntry
//   part window    header | rows x [part of a sum over shards] f32
//
// A unit is one attention: (step, layer). Units count from 1: (step - 1) * layers + layer + 1,
// steps counting from 1. Rows of a unit go out, and outputs come back, in up to kRowChunksMax
// chunks (row_chunks.h), each with a signal value of its own; the last one's is unit *
// kRowChunksMax, however many there are. So values only grow and the plan determines them. Windows
// alternate by the unit's parity. A sender may write unit u + 2 only after it has consumed the
// reply to unit u: the reply is the credit that frees the window.
//
// A lane's units follow each other over the replicas, each waiting for what the one before sent. So
// a replica that sends the same peer another context knows that the last one was used up. Tokens of
// a step go to replicas that may have nothing else to do in the step; what frees their window is
// that the plan of step s + plan_ahead comes only after every replica has reported step s.
//
// Reductions over shards are counted from 1 in each lane, alike on all of them; windows alternate
// by the count's parity. A shard sends part n + 2 after it has all parts n + 1, and each of these
// was sent by one that had used all parts n: so no window, and no source of a put, is written too
// early.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/attention_descriptor.h"
#include "plan/row_pieces.h"

namespace lamina::plan {

struct WindowHeader {
  static constexpr uint32_t kMagic = 0x314e414c;  // "LAN1"
  uint32_t magic = kMagic;
  uint32_t lane = 0;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t rows = 0;     // Decode rows.
  uint32_t kv_rows = 0;  // Chunk tokens.
  uint32_t sender = 0;   // Index of the sending node in its role.
  // Part windows: which reduction of the lane the part is of, from 1. Else 0.
  uint64_t reduction = 0;
  uint64_t reserved[2] = {0, 0};
};
static_assert(sizeof(WindowHeader) == 64);

// A sampled token, as replicas tell each other.
struct TokenEntry {
  uint64_t sequence = 0;
  uint32_t position = 0;
  int32_t token = 0;
  uint32_t finish = 0;  // FinishReason
  uint32_t reserved = 0;
};
static_assert(sizeof(TokenEntry) == 24);

struct WindowShape {
  uint32_t compute_nodes = 0;
  uint32_t memory_nodes = 0;
  uint32_t lanes = 0;
  uint32_t rows_max = 0;     // Decode rows of a lane.
  uint32_t kv_rows_max = 0;  // Chunk tokens of a step.
  uint32_t plan_ahead = 1;   // Steps of a lane that are planned and not yet done.
  // Partition token_range: spans of a sequence, each answered by a partial. Else 0.
  uint32_t spans_max = 0;
  // Chunk tokens whose context moves on too, with their attention outputs: where replicas have
  // stages. Else 0: a step with chunks stays on one node.
  uint32_t context_chunk_rows = 0;
  // Of the widest context between two slices; known to compute nodes, used by them alone.
  size_t context_row_bytes = 0;
  uint32_t shards = 1;
  size_t part_row_bytes = 0;  // Of the widest sum over shards; known to compute nodes alone too.
  std::vector<AttentionDescriptor> layers;
};

// The offsets, fixed at configuration.
class WindowLayout {
 public:
  // Errors: kInvalidArgument  a zero count, or windows of one kind beyond 64 GiB.
  static absl::Status Check(const WindowShape& shape);

  explicit WindowLayout(WindowShape shape);

  const WindowShape& shape() const { return shape_; }
  uint32_t layer_count() const { return static_cast<uint32_t>(shape_.layers.size()); }

  // Of the last chunk: with it all of the unit is there.
  uint64_t SignalValue(uint64_t step, uint32_t layer) const {
    return ((step - 1) * shape_.layers.size() + layer + 1) * kRowChunksMax;
  }
  // The inverse, of any chunk's value. Requires: value > 0.
  uint64_t StepOf(uint64_t value) const { return (UnitOf(value) - 1) / shape_.layers.size() + 1; }
  uint32_t LayerOf(uint64_t value) const {
    return static_cast<uint32_t>((UnitOf(value) - 1) % shape_.layers.size());
  }

  // Regions of memory nodes.
  size_t query_region_bytes() const;
  uint32_t query_word(uint32_t compute_node, uint32_t lane) const;
  uint32_t query_words() const { return shape_.compute_nodes * shape_.lanes; }
  // Behind these, one of each compute node, for the measuring of links (transport/link_probe.h).
  uint32_t query_region_words() const { return query_words() + shape_.compute_nodes; }
  uint32_t query_probe_word(uint32_t compute_node) const { return query_words() + compute_node; }
  size_t QueryWindow(uint32_t compute_node, uint32_t lane, uint64_t value) const;
  size_t query_window_bytes() const { return query_window_bytes_; }

  // Regions of compute nodes.
  size_t reply_region_bytes() const;
  uint32_t reply_word(uint32_t memory_node, uint32_t lane) const;
  uint32_t reply_words() const { return shape_.memory_nodes * shape_.lanes; }
  size_t ReplyWindow(uint32_t memory_node, uint32_t lane, uint64_t value) const;
  size_t reply_window_bytes() const { return reply_window_bytes_; }

  // In regions of compute nodes, behind the reply windows. With one replica there are none.
  size_t compute_region_bytes() const;
  uint32_t compute_region_words() const;
  uint32_t context_word(uint32_t compute_node, uint32_t lane) const;
  size_t ContextWindow(uint32_t compute_node, uint32_t lane) const;
  uint32_t token_word(uint32_t compute_node, uint32_t lane) const;
  size_t TokenWindow(uint32_t compute_node, uint32_t lane, uint64_t step) const;
  // With several shards, behind these.
  uint32_t part_word(uint32_t shard, uint32_t lane) const;
  size_t PartWindow(uint32_t shard, uint32_t lane, uint64_t count) const;
  // For the measuring of links: one of each memory node, then one of each compute node.
  uint32_t memory_probe_word(uint32_t memory_node) const { return data_words() + memory_node; }
  uint32_t compute_probe_word(uint32_t compute_node) const {
    return data_words() + shape_.memory_nodes + compute_node;
  }
  size_t context_window_bytes() const { return context_window_bytes_; }
  // One step samples at most so many tokens: of its rows, its chunks, and their forks.
  uint32_t token_rows_max() const { return 2 * shape_.rows_max + shape_.kv_rows_max; }

 private:
  uint32_t replica_words() const { return shape_.compute_nodes * shape_.lanes; }
  // Of a compute node's region, those for probes left out.
  uint32_t data_words() const {
    return reply_words() + (shape_.compute_nodes == 1 ? 0 : 2 * replica_words()) + part_words();
  }
  uint32_t part_words() const { return shape_.shards == 1 ? 0 : shape_.shards * shape_.lanes; }

  WindowShape shape_;
  size_t query_window_bytes_ = 0;
  size_t reply_window_bytes_ = 0;
  size_t context_window_bytes_ = 0;
  size_t token_window_bytes_ = 0;
  size_t part_window_bytes_ = 0;
};

// Compares a received header with what the plan says. Errors: kAborted  older (epoch or unit):
// refuse and count; kInternal  anything else that differs: a fault of the sender.
absl::Status CheckHeader(const WindowHeader& header, const WindowHeader& expected);

}  // namespace lamina::plan
