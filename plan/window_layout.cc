// SPDX-License-Identifier: Apache-2.0
#include "plan/window_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/units.h"

namespace lamina::plan {
namespace {

constexpr size_t kWindowAlignment = 4096;
constexpr double kElementBytes = 2;  // bf16
constexpr double kRegionBytesMax = 64.0 * (uint64_t{1} << 30);

size_t Align(size_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

// Bytes in the widest layer of each. Exact: far below 2^53.
struct RowBytes {
  double qkv = 0;
  double kv = 0;
  double q = 0;
  double partial = 0;
};

RowBytes WidestRows(const WindowShape& shape) {
  RowBytes widest;
  for (const AttentionDescriptor& layer : shape.layers) {
    widest.qkv = std::max(widest.qkv, kElementBytes * layer.qkv_width());
    widest.kv =
        std::max(widest.kv, kElementBytes * (2.0 * layer.kv_width() + shape.activation_width));
    widest.q = std::max(widest.q, kElementBytes * layer.q_width());
    widest.partial =
        std::max(widest.partial, sizeof(float) * (layer.head_dim + 1.0) * layer.query_heads);
  }
  return widest;
}

}  // namespace

// The table of window kinds.
WindowLayout::Groups WindowLayout::GroupsOf(const WindowShape& shape) {
  const RowBytes rows = WidestRows(shape);
  const double rows_max = shape.rows_max;
  const double kv_rows = shape.kv_rows_max;
  const double chunk_rows = shape.context_chunk_rows;
  const double reply_row =
      shape.spans_max == 0 ? rows.q : static_cast<double>(shape.spans_max) * rows.partial;
  const uint32_t replicas = shape.compute_nodes == 1 ? 0 : shape.compute_nodes;
  const double tokens = 2 * rows_max + kv_rows;
  // In the order of WindowKind.
  Groups groups = {{
      {.name = "query windows",
       .to_memory_node = true,
       .senders = shape.compute_nodes,
       .lanes = shape.lanes,
       .turns = 2,
       .payload_max = rows_max * rows.qkv + kv_rows * rows.kv},
      {.to_memory_node = true, .senders = shape.compute_nodes},
      {.to_memory_node = true,
       .senders = shape.fetch_bytes == 0 ? 0 : shape.compute_nodes,
       .lanes = shape.lanes},
      {.name = "windows for token sets",
       .to_memory_node = true,
       .senders = shape.token_set_bytes == 0 ? 0 : shape.compute_nodes,
       .lanes = shape.lanes,
       .turns = 1,
       .payload_max = static_cast<double>(shape.token_set_bytes)},
      {.name = "reply windows",
       .senders = shape.memory_nodes,
       .lanes = shape.lanes,
       .turns = 2,
       .payload_max = rows_max * reply_row},
      {.name = "windows for K and V (fetch.window)",
       .senders = shape.fetch_bytes == 0 ? 0 : shape.memory_nodes,
       .lanes = shape.lanes,
       .turns = 2,
       .payload_max = static_cast<double>(shape.fetch_bytes)},
      {.name = "context windows between compute nodes",
       .senders = replicas,
       .lanes = shape.lanes,
       .turns = 1,
       .payload_max = (rows_max + chunk_rows) * static_cast<double>(shape.context_row_bytes) +
                      chunk_rows * rows.q},
      {.name = "token windows between compute nodes",
       .senders = replicas,
       .lanes = shape.lanes,
       .turns = shape.plan_ahead,
       .payload_max = tokens * sizeof(TokenEntry)},
      {.name = "part windows between shards",
       .senders = shape.shards == 1 ? 0 : shape.shards,
       .lanes = shape.lanes,
       .turns = 2,
       .payload_max = (rows_max + kv_rows) * static_cast<double>(shape.part_row_bytes)},
      {.senders = shape.memory_nodes},
      {.senders = shape.compute_nodes},
  }};
  return groups;
}

absl::Status WindowLayout::Check(const WindowShape& shape) {
  if (shape.compute_nodes == 0 || shape.memory_nodes == 0 || shape.lanes == 0 ||
      shape.rows_max == 0 || shape.plan_ahead == 0 || shape.layers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window shape has a zero: compute_nodes ", shape.compute_nodes, " memory_nodes ",
        shape.memory_nodes, " lanes ", shape.lanes, " rows_max ", shape.rows_max, " plan_ahead ",
        shape.plan_ahead, " layers ", shape.layers.size()));
  }
  for (const WindowGroup& group : GroupsOf(shape)) {
    const double bytes =
        static_cast<double>(group.senders) * group.lanes * group.turns * group.payload_max;
    if (bytes > kRegionBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(group.name, " would take ", FormatBytes(static_cast<uint64_t>(bytes)),
                       ", more than ", FormatBytes(static_cast<uint64_t>(kRegionBytesMax)),
                       "; lower pipeline.lanes, limits.running_max or prefill.chunk_tokens"));
    }
  }
  return absl::OkStatus();
}

WindowLayout::WindowLayout(WindowShape shape)
    : shape_(std::move(shape)), groups_(GroupsOf(shape_)) {
  size_t bytes[2] = {0, 0};    // Bytes of the groups before, by receiver.
  uint32_t words[2] = {0, 0};  // Words of the groups before, by receiver.
  for (WindowGroup& group : groups_) {
    if (group.turns > 0) {
      group.window_bytes = Align(sizeof(WindowHeader) + static_cast<size_t>(group.payload_max));
    }
    group.first_byte = bytes[group.to_memory_node];
    group.first_word = words[group.to_memory_node];
    bytes[group.to_memory_node] = group.bytes_end();
    words[group.to_memory_node] = static_cast<uint32_t>(group.words_end());
  }
}

}  // namespace lamina::plan
