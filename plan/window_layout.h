// SPDX-License-Identifier: Apache-2.0
//
// WindowLayout: where data lies in the registered regions of compute and memory nodes, and which
// signal value announces which unit. Both ends compute it from the same configuration; nothing of
// it travels.
//
// Every receiver has one region. A memory node's region holds a query window for each (compute
// node, lane, parity); a compute node's holds a reply window for each (memory node, lane, parity),
// with path fetch as many for K and V, and with several replicas, behind these, a context window
// for each (compute node, lane) and a token window for each (compute node, lane, step modulo
// plan_ahead), and with shards a part window for each (shard, lane, parity). A window is a
// WindowHeader and rows. One signal word belongs to each (sender, lane, kind).
//
//   query window   header | rows x [q | k | v] bf16 | kv_rows x [k | v | activation] bf16
//   reply window   header | rows x [attention output] bf16
//   fetched window header | a piece of K and V, in tiles, or of activations (fetch_pieces.h)
//   context window header | for each value of the context: rows x value
//   (with stages: of decode and chunk rows, then chunk rows x [attention output] bf16)
//   token window   header | rows x TokenEntry
//   token sets     header | for each layer and run of rows: a set of tokens (token_sets.h)
//   part window    header | rows x [part of a sum over shards] f32
//
// Query and reply windows are written and read by the classes of plan/query_window.h and
// plan/reply_window.h. Which kinds of windows there are is a table (window_layout.cc): whose
// region, which senders, how many windows take turns, how large, which signal words. A new path or
// stream adds a row to it.
//
// A unit is one attention: (step, layer). Units count from 1: (step - 1) * layers + layer + 1,
// steps counting from 1. Rows of a unit go out, and outputs come back, in up to kSubBatchesMax
// chunks (sub_batches.h), each with a signal value of its own; the last one's is unit *
// kSubBatchesMax, however many there are. So values only grow and the plan determines them. Windows
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

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/attention_descriptor.h"
#include "plan/row_pieces.h"
#include "plan/window_header.h"
#include "plan/window_kinds.h"

namespace lamina::plan {

struct WindowShape {
  uint32_t compute_nodes = 0;
  uint32_t memory_nodes = 0;
  uint32_t lanes = 0;
  uint32_t rows_max = 0;     // Decode rows of a lane.
  uint32_t kv_rows_max = 0;  // Chunk tokens of a step.
  uint32_t plan_ahead = 1;   // Steps of a lane that are planned and not yet done.
  // Partition token_range, where rows attend at memory nodes: spans of a sequence, each answered by
  // a partial. Else 0.
  uint32_t spans_max = 0;
  // Chunk tokens whose context moves on too, with their attention outputs: where replicas have
  // stages. Else 0: a step with chunks stays on one node.
  uint32_t context_chunk_rows = 0;
  // Bytes of the widest context between two slices; known to compute nodes, used by them alone.
  size_t context_row_bytes = 0;
  uint64_t fetch_bytes = 0;       // Bytes of one window for K and V; 0: there are none.
  uint64_t token_set_bytes = 0;   // Bytes of the token sets of a step; 0: there are none.
  uint32_t activation_width = 0;  // Elements of what tokens without queries bring besides k and v.
  uint32_t shards = 1;
  // Bytes of the widest sum over shards; known to compute nodes alone too.
  size_t part_row_bytes = 0;
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

  // The value of the last chunk: with it all of the unit is there.
  uint64_t SignalValue(uint64_t step, uint32_t layer) const {
    return ((step - 1) * shape_.layers.size() + layer + 1) * kSubBatchesMax;
  }
  // The inverse, of any chunk's value. Requires: value > 0.
  uint64_t StepOf(uint64_t value) const { return (UnitOf(value) - 1) / shape_.layers.size() + 1; }
  uint32_t LayerOf(uint64_t value) const {
    return static_cast<uint32_t>((UnitOf(value) - 1) % shape_.layers.size());
  }

  const WindowGroup& group(WindowKind kind) const { return groups_[static_cast<size_t>(kind)]; }
  // The signal word of a (sender, lane), and where its window of turn `turn` begins.
  uint32_t Word(WindowKind kind, uint32_t sender, uint32_t lane) const {
    return group(kind).first_word + sender * group(kind).lanes + lane;
  }
  size_t Window(WindowKind kind, uint32_t sender, uint32_t lane, uint64_t turn) const {
    const WindowGroup& of = group(kind);
    return of.first_byte +
           ((size_t{sender} * of.lanes + lane) * of.turns + turn % of.turns) * of.window_bytes;
  }

  // Regions of memory nodes.
  size_t query_region_bytes() const { return group(WindowKind::kTokenSets).bytes_end(); }
  uint32_t query_region_words() const {
    return static_cast<uint32_t>(group(WindowKind::kTokenSets).words_end());
  }
  uint32_t query_words() const { return group(WindowKind::kQuery).words(); }
  uint32_t query_word(uint32_t compute_node, uint32_t lane) const {
    return Word(WindowKind::kQuery, compute_node, lane);
  }
  size_t QueryWindow(uint32_t compute_node, uint32_t lane, uint64_t value) const {
    return Window(WindowKind::kQuery, compute_node, lane, UnitOf(value));
  }
  size_t query_window_bytes() const { return group(WindowKind::kQuery).window_bytes; }
  uint32_t query_probe_word(uint32_t compute_node) const {
    return Word(WindowKind::kQueryProbe, compute_node, 0);
  }

  // Regions of compute nodes.
  // As far as memory nodes write there.
  size_t reply_region_bytes() const { return group(WindowKind::kFetched).bytes_end(); }
  size_t compute_region_bytes() const { return group(WindowKind::kPart).bytes_end(); }
  uint32_t compute_region_words() const {
    return static_cast<uint32_t>(group(WindowKind::kComputeProbe).words_end());
  }
  uint32_t reply_words() const { return group(WindowKind::kReply).words(); }
  uint32_t reply_word(uint32_t memory_node, uint32_t lane) const {
    return Word(WindowKind::kReply, memory_node, lane);
  }
  size_t ReplyWindow(uint32_t memory_node, uint32_t lane, uint64_t value) const {
    return Window(WindowKind::kReply, memory_node, lane, UnitOf(value));
  }
  size_t reply_window_bytes() const { return group(WindowKind::kReply).window_bytes; }
  uint32_t context_word(uint32_t compute_node, uint32_t lane) const {
    return Word(WindowKind::kContext, compute_node, lane);
  }
  size_t ContextWindow(uint32_t compute_node, uint32_t lane) const {
    return Window(WindowKind::kContext, compute_node, lane, 0);
  }
  size_t context_window_bytes() const { return group(WindowKind::kContext).window_bytes; }
  uint32_t token_word(uint32_t compute_node, uint32_t lane) const {
    return Word(WindowKind::kToken, compute_node, lane);
  }
  size_t TokenWindow(uint32_t compute_node, uint32_t lane, uint64_t step) const {
    return Window(WindowKind::kToken, compute_node, lane, step);
  }
  uint32_t part_word(uint32_t shard, uint32_t lane) const {
    return Word(WindowKind::kPart, shard, lane);
  }
  size_t PartWindow(uint32_t shard, uint32_t lane, uint64_t count) const {
    return Window(WindowKind::kPart, shard, lane, count);
  }
  uint32_t memory_probe_word(uint32_t memory_node) const {
    return Word(WindowKind::kReplyProbe, memory_node, 0);
  }
  uint32_t compute_probe_word(uint32_t compute_node) const {
    return Word(WindowKind::kComputeProbe, compute_node, 0);
  }

  // One step samples at most so many tokens: of its rows, its chunks, and their forks.
  uint32_t token_rows_max() const { return 2 * shape_.rows_max + shape_.kv_rows_max; }

 private:
  using Groups = std::array<WindowGroup, kWindowKinds>;
  static Groups GroupsOf(const WindowShape& shape);

  WindowShape shape_;
  Groups groups_;
};

}  // namespace lamina::plan
