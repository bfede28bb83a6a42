// SPDX-License-Identifier: Apache-2.0
#include "plan/window_layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::plan {
namespace {

constexpr size_t kWindowAlignment = 4096;
constexpr size_t kElementBytes = 2;  // bf16
constexpr double kRegionBytesMax = 64.0 * (uint64_t{1} << 30);

size_t Align(size_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

struct RowBytes {
  size_t qkv = 0;
  size_t kv = 0;
  size_t q = 0;
  size_t partial = 0;
};

RowBytes WidestRows(const WindowShape& shape) {
  RowBytes widest;
  for (const AttentionDescriptor& layer : shape.layers) {
    widest.qkv = std::max(widest.qkv, layer.qkv_width() * kElementBytes);
    widest.kv = std::max(widest.kv, 2 * layer.kv_width() * kElementBytes);
    widest.q = std::max(widest.q, layer.q_width() * kElementBytes);
    widest.partial =
        std::max(widest.partial, layer.query_heads * (size_t{layer.head_dim} + 1) * sizeof(float));
  }
  return widest;
}

// Of all windows of one kind on one node.
absl::Status CheckKind(absl::string_view kind, double bytes) {
  return bytes <= kRegionBytesMax
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(
                   kind, " would take ", FormatBytes(static_cast<uint64_t>(bytes)), ", more than ",
                   FormatBytes(static_cast<uint64_t>(kRegionBytesMax)),
                   "; lower pipeline.lanes, limits.running_max or prefill.chunk_tokens"));
}

}  // namespace

absl::Status WindowLayout::Check(const WindowShape& shape) {
  if (shape.compute_nodes == 0 || shape.memory_nodes == 0 || shape.lanes == 0 ||
      shape.rows_max == 0 || shape.plan_ahead == 0 || shape.layers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window shape has a zero: compute_nodes ", shape.compute_nodes, " memory_nodes ",
        shape.memory_nodes, " lanes ", shape.lanes, " rows_max ", shape.rows_max, " plan_ahead ",
        shape.plan_ahead, " layers ", shape.layers.size()));
  }
  const RowBytes rows = WidestRows(shape);
  const double lanes = shape.lanes;
  const double rows_max = shape.rows_max;
  LAMINA_RETURN_IF_ERROR(
      CheckKind("query windows", 2 * lanes * shape.compute_nodes *
                                     (rows_max * static_cast<double>(rows.qkv) +
                                      shape.kv_rows_max * static_cast<double>(rows.kv))));
  const double reply_row = shape.spans_max == 0
                               ? static_cast<double>(rows.q)
                               : shape.spans_max * static_cast<double>(rows.partial);
  LAMINA_RETURN_IF_ERROR(
      CheckKind("reply windows", 2 * lanes * shape.memory_nodes * rows_max * reply_row));
  const double chunk_rows = shape.context_chunk_rows;
  LAMINA_RETURN_IF_ERROR(
      CheckKind("context windows between compute nodes",
                lanes * shape.compute_nodes *
                    ((rows_max + chunk_rows) * static_cast<double>(shape.context_row_bytes) +
                     chunk_rows * static_cast<double>(rows.q))));
  return shape.shards == 1 ? absl::OkStatus()
                           : CheckKind("part windows between shards",
                                       2 * lanes * shape.shards * (rows_max + shape.kv_rows_max) *
                                           static_cast<double>(shape.part_row_bytes));
}

WindowLayout::WindowLayout(WindowShape shape) : shape_(std::move(shape)) {
  const RowBytes rows = WidestRows(shape_);
  query_window_bytes_ =
      Align(sizeof(WindowHeader) + shape_.rows_max * rows.qkv + shape_.kv_rows_max * rows.kv);
  reply_window_bytes_ =
      Align(sizeof(WindowHeader) +
            shape_.rows_max * (shape_.spans_max == 0 ? rows.q : shape_.spans_max * rows.partial));
  const size_t chunk_rows = shape_.context_chunk_rows;
  context_window_bytes_ =
      Align(sizeof(WindowHeader) + (shape_.rows_max + chunk_rows) * shape_.context_row_bytes +
            chunk_rows * rows.q);
  token_window_bytes_ = Align(sizeof(WindowHeader) + token_rows_max() * sizeof(TokenEntry));
  part_window_bytes_ =
      Align(sizeof(WindowHeader) + (shape_.rows_max + shape_.kv_rows_max) * shape_.part_row_bytes);
}

size_t WindowLayout::query_region_bytes() const { return query_words() * 2 * query_window_bytes_; }

uint32_t WindowLayout::query_word(uint32_t compute_node, uint32_t lane) const {
  return compute_node * shape_.lanes + lane;
}

size_t WindowLayout::QueryWindow(uint32_t compute_node, uint32_t lane, uint64_t value) const {
  return (size_t{query_word(compute_node, lane)} * 2 + UnitOf(value) % 2) * query_window_bytes_;
}

size_t WindowLayout::reply_region_bytes() const { return reply_words() * 2 * reply_window_bytes_; }

uint32_t WindowLayout::reply_word(uint32_t memory_node, uint32_t lane) const {
  return memory_node * shape_.lanes + lane;
}

size_t WindowLayout::ReplyWindow(uint32_t memory_node, uint32_t lane, uint64_t value) const {
  return (size_t{reply_word(memory_node, lane)} * 2 + UnitOf(value) % 2) * reply_window_bytes_;
}

size_t WindowLayout::compute_region_bytes() const {
  if (shape_.compute_nodes == 1) {
    return reply_region_bytes();
  }
  return reply_region_bytes() +
         replica_words() * (context_window_bytes_ + shape_.plan_ahead * token_window_bytes_) +
         part_words() * 2 * part_window_bytes_;
}

uint32_t WindowLayout::compute_region_words() const {
  return data_words() + shape_.memory_nodes + shape_.compute_nodes;
}

uint32_t WindowLayout::context_word(uint32_t compute_node, uint32_t lane) const {
  return reply_words() + compute_node * shape_.lanes + lane;
}

size_t WindowLayout::ContextWindow(uint32_t compute_node, uint32_t lane) const {
  return reply_region_bytes() +
         (size_t{compute_node} * shape_.lanes + lane) * context_window_bytes_;
}

uint32_t WindowLayout::token_word(uint32_t compute_node, uint32_t lane) const {
  return reply_words() + replica_words() + compute_node * shape_.lanes + lane;
}

size_t WindowLayout::TokenWindow(uint32_t compute_node, uint32_t lane, uint64_t step) const {
  const size_t word = size_t{compute_node} * shape_.lanes + lane;
  return reply_region_bytes() + replica_words() * context_window_bytes_ +
         (word * shape_.plan_ahead + step % shape_.plan_ahead) * token_window_bytes_;
}

uint32_t WindowLayout::part_word(uint32_t shard, uint32_t lane) const {
  return reply_words() + 2 * replica_words() + shard * shape_.lanes + lane;
}

size_t WindowLayout::PartWindow(uint32_t shard, uint32_t lane, uint64_t count) const {
  const size_t word = size_t{shard} * shape_.lanes + lane;
  return reply_region_bytes() +
         replica_words() * (context_window_bytes_ + shape_.plan_ahead * token_window_bytes_) +
         (word * 2 + count % 2) * part_window_bytes_;
}

absl::Status CheckHeader(const WindowHeader& header, const WindowHeader& expected) {
  const auto differs = [](const char* field, uint64_t found, uint64_t wanted) {
    return absl::StrCat("window header: ", field, " ", found, " where the plan says ", wanted);
  };
  if (header.magic != WindowHeader::kMagic) {
    return absl::InternalError(differs("magic", header.magic, WindowHeader::kMagic));
  }
  if (header.epoch < expected.epoch) {
    return absl::AbortedError(differs("epoch", header.epoch, expected.epoch));
  }
  if (header.epoch == expected.epoch && header.lane == expected.lane &&
      std::pair(header.step, header.layer) < std::pair(expected.step, expected.layer)) {
    return absl::AbortedError(differs("step", header.step, expected.step));
  }
  if (header.epoch != expected.epoch) {
    return absl::InternalError(differs("epoch", header.epoch, expected.epoch));
  }
  if (header.lane != expected.lane) {
    return absl::InternalError(differs("lane", header.lane, expected.lane));
  }
  if (header.step != expected.step) {
    return absl::InternalError(differs("step", header.step, expected.step));
  }
  if (header.layer != expected.layer) {
    return absl::InternalError(differs("layer", header.layer, expected.layer));
  }
  if (header.rows != expected.rows) {
    return absl::InternalError(differs("rows", header.rows, expected.rows));
  }
  if (header.kv_rows != expected.kv_rows) {
    return absl::InternalError(differs("kv_rows", header.kv_rows, expected.kv_rows));
  }
  if (header.reduction != expected.reduction) {
    return absl::InternalError(differs("reduction", header.reduction, expected.reduction));
  }
  if (header.sender != expected.sender) {
    return absl::InternalError(differs("sender", header.sender, expected.sender));
  }
  return absl::OkStatus();
}

}  // namespace lamina::plan
