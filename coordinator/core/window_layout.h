// SPDX-License-Identifier: Apache-2.0
//
// WindowLayout: where data lies in the registered regions of compute and memory nodes, and which
// signal value announces which unit. Both ends compute it from the same configuration; nothing of
// it travels.
//
// Every receiver has one region. A memory node's region holds a query window for each (compute
// node, lane, parity); a compute node's holds a reply window for each (memory node, lane, parity).
// A window is a WindowHeader and rows. One signal word belongs to each (sender, lane).
//
//   query window   header | rows x [q | k | v] bf16 | kv_rows x [k | v] bf16     (kv_rows: prompt
//   chunks) reply window   header | rows x [attention output] bf16
//
// A unit is one attention: (step, layer). Its signal value is (step - 1) * layers + layer + 1,
// steps counting from 1, so values only grow and the plan determines them. Windows alternate by the
// value's parity. A sender may write unit u + 2 only after it has consumed the reply to unit u: the
// reply is the credit that frees the window.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/attention_descriptor.h"

namespace lamina::core {

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
  uint64_t reserved[3] = {0, 0, 0};
};
static_assert(sizeof(WindowHeader) == 64);

struct WindowShape {
  uint32_t compute_nodes = 0;
  uint32_t memory_nodes = 0;
  uint32_t lanes = 0;
  uint32_t rows_max = 0;     // Decode rows of a lane.
  uint32_t kv_rows_max = 0;  // Chunk tokens of a step.
  std::vector<AttentionDescriptor> layers;
};

// The offsets, fixed at configuration.
class WindowLayout {
 public:
  // Errors: kInvalidArgument  a zero count, or windows beyond 64 GiB.
  static absl::Status Check(const WindowShape& shape);

  explicit WindowLayout(WindowShape shape);

  const WindowShape& shape() const { return shape_; }
  uint32_t layer_count() const { return static_cast<uint32_t>(shape_.layers.size()); }

  uint64_t SignalValue(uint64_t step, uint32_t layer) const {
    return (step - 1) * shape_.layers.size() + layer + 1;
  }
  // The inverse. Requires: value > 0.
  uint64_t StepOf(uint64_t value) const { return (value - 1) / shape_.layers.size() + 1; }
  uint32_t LayerOf(uint64_t value) const {
    return static_cast<uint32_t>((value - 1) % shape_.layers.size());
  }

  // Regions of memory nodes.
  size_t query_region_bytes() const;
  uint32_t query_word(uint32_t compute_node, uint32_t lane) const;
  uint32_t query_words() const { return shape_.compute_nodes * shape_.lanes; }
  size_t QueryWindow(uint32_t compute_node, uint32_t lane, uint64_t value) const;
  size_t query_window_bytes() const { return query_window_bytes_; }

  // Regions of compute nodes.
  size_t reply_region_bytes() const;
  uint32_t reply_word(uint32_t memory_node, uint32_t lane) const;
  uint32_t reply_words() const { return shape_.memory_nodes * shape_.lanes; }
  size_t ReplyWindow(uint32_t memory_node, uint32_t lane, uint64_t value) const;
  size_t reply_window_bytes() const { return reply_window_bytes_; }

 private:
  WindowShape shape_;
  size_t query_window_bytes_ = 0;
  size_t reply_window_bytes_ = 0;
};

// Compares a received header with what the plan says. Errors: kAborted  older (epoch or unit):
// refuse and count; kInternal  anything else that differs: a fault of the sender.
absl::Status CheckHeader(const WindowHeader& header, const WindowHeader& expected);

}  // namespace lamina::core
