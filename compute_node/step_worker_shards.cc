// SPDX-License-Identifier: Apache-2.0
//
// What the shards of a replica tell each other: their parts of sums. Each puts its own to all
// others and sums in the order of shards, so that all have the same bits. The windows alternate,
// and so do the buffers that are put from (window_layout.h).

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"
#include "control/epoch_shape.h"
#include "transport/put_all.h"

namespace lamina::compute_node {

// The nodes of the own replica and stage.
void StepWorker::FindShards() {
  const core::Stage own = control::StageOf(options_.config, options_.node);
  shard_nodes_.assign(own.shard.count, options_.node);
  for (uint32_t node = 0; node < options_.config.stages.size() && own.shard.count > 1; ++node) {
    const core::Stage& stage = options_.config.stages[node];
    if (stage.replica == own.replica && stage.first_layer == own.first_layer) {
      shard_nodes_[stage.shard.index] = node;
    }
  }
  parts_.reserve(shard_nodes_.size());
}

// The last slice runs on the rows that are sampled or scored; forks share one.
absl::Status StepWorker::KeepTailRows(Lane& lane) {
  lane.kept_rows.clear();
  for (TailRow& row : lane.tail) {
    if (lane.kept_rows.empty() || lane.kept_rows.back() != row.row) {
      lane.kept_rows.push_back(row.row);
    }
    row.row = static_cast<uint32_t>(lane.kept_rows.size() - 1);
  }
  executor_.KeepRows(lane.kept_rows, lane.buffers);
  for (size_t i = 0; i < lane.kept_rows.size(); ++i) {
    lane.token_ids[i] = lane.token_ids[lane.kept_rows[i]];
    lane.positions[i] = lane.positions[lane.kept_rows[i]];
  }
  lane.token_ids.resize(lane.kept_rows.size());
  lane.positions.resize(lane.kept_rows.size());
  return executor_.SetRows(Rows(lane), lane.buffers);
}

// The part lies in PartOfSum() behind its header, and goes out with it at once.
absl::Status StepWorker::SendPart(Lane& lane, std::string& blamed) {
  const uint32_t index = IndexOf(lane);
  std::vector<std::byte>& part = PartOfSum(lane);
  const core::WindowHeader header{.lane = index,
                                  .epoch = options_.config.epoch,
                                  .step = lane.plan.step,
                                  .layer = lane.slice,
                                  .rows = static_cast<uint32_t>(lane.positions.size()),
                                  .kv_rows = static_cast<uint32_t>(lane.reductions),
                                  .sender = options_.node};
  std::memcpy(part.data(), &header, sizeof(header));
  const size_t bytes =
      sizeof(header) + lane.positions.size() * executor_.PartRowBytes(lane.slice, lane.op);
  const transport::SignalUpdate signal{.word = layout_.part_word(shard_.index, index),
                                       .value = lane.reductions};
  const size_t window = layout_.PartWindow(shard_.index, index, lane.reductions);
  for (const uint32_t node : shard_nodes_) {
    if (node == options_.node) {
      continue;
    }
    blamed = options_.config.compute_nodes[node];
    control::LinkCounters& link = *compute_links_[node];
    LAMINA_RETURN_IF_ERROR(Put(*replicas_[node], link, window, {part.data(), bytes}, &signal));
    CountSent(
        link, bytes,
        LapOf(lane, control::WorkPart::kReduce, lane.slice, static_cast<uint8_t>(node), bytes));
  }
  blamed.clear();
  transport_.Progress();
  return absl::OkStatus();
}

// Of another shard; if none is missing, any other's.
uint32_t StepWorker::NextMissingPart(const Lane& lane) const {
  uint32_t shard = 0;
  while (shard < shard_nodes_.size() && IsHere(lane, shard)) {
    ++shard;
  }
  return shard < shard_nodes_.size() ? shard : (shard_.index == 0 ? 1 : 0);
}

// Sums, once all parts are here.
absl::StatusOr<bool> StepWorker::TakeParts(Lane& lane, std::string& blamed) {
  const uint32_t index = IndexOf(lane);
  if (!IsHere(lane, NextMissingPart(lane))) {
    return false;
  }
  const auto rows = static_cast<uint32_t>(lane.positions.size());
  const size_t bytes = rows * executor_.PartRowBytes(lane.slice, lane.op);
  parts_.clear();
  for (uint32_t shard = 0; shard < shard_nodes_.size(); ++shard) {
    const uint32_t node = shard_nodes_[shard];
    const std::byte* part = PartOfSum(lane).data();
    if (node != options_.node) {
      part = region_.bytes().data() + layout_.PartWindow(shard, index, lane.reductions);
      core::WindowHeader header;
      std::memcpy(&header, part, sizeof(header));
      blamed = options_.config.compute_nodes[node];
      LAMINA_RETURN_IF_ERROR(CheckWindow(header,
                                         {.lane = index,
                                          .epoch = options_.config.epoch,
                                          .step = lane.plan.step,
                                          .layer = lane.slice,
                                          .rows = rows,
                                          .kv_rows = static_cast<uint32_t>(lane.reductions),
                                          .sender = node},
                                         blamed));
      control::AddTo(counters_.bytes_received, sizeof(header) + bytes);
    }
    parts_.push_back(reinterpret_cast<const float*>(part + sizeof(core::WindowHeader)));
  }
  blamed.clear();
  if (rows > 0) {
    executor_.Reduce(lane.slice, lane.op, parts_, rows, lane.buffers);
  }
  LapOf(lane, control::WorkPart::kReduce, lane.slice);
  return true;
}

}  // namespace lamina::compute_node
