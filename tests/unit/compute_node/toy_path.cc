// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/compute_node/toy_path.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/status_macros.h"

namespace lamina::compute_node {

absl::Status ToyPath::BeginStep(Lane& lane, const PathRows& rows) {
  lanes_[lane.index] = {};
  return store_.BeginStep(lane, rows);
}

absl::Status ToyPath::WhileWeightsCome(Lane& lane) {
  EXPECT_FALSE(lanes_[lane.index].asked.has_value()) << "the layer before has ended";
  ++*waits_;
  return absl::OkStatus();
}

// New K and V go to the store at once; the rows attend when the sequences' KV has come.
absl::Status ToyPath::Attend(Lane& lane) {
  const auto qkv = context_.executor.QkvRows(lane.slice, lane.positions.size(), lane.buffers);
  lanes_[lane.index] = {.asked = lane.slice, .polls_left = kPolls};
  return store_.Store(lane.index, lane.slice, qkv);
}

bool ToyPath::Await(Lane& lane) {
  EXPECT_EQ(lanes_[lane.index].asked, lane.slice - 1);
  return lanes_[lane.index].asked.has_value();
}

absl::StatusOr<bool> ToyPath::Poll(Lane& lane) {
  LaneState& state = lanes_[lane.index];
  if (!state.asked.has_value()) {
    return true;
  }
  if (--state.polls_left > 0) {
    return false;
  }
  const uint32_t layer = *std::exchange(state.asked, std::nullopt);
  const size_t rows = lane.positions.size();
  LAMINA_RETURN_IF_ERROR(store_
                             .Attend(lane.index, layer,
                                     context_.executor.QkvRows(layer, rows, lane.buffers),
                                     context_.executor.AttentionRows(layer, rows, lane.buffers))
                             .status());
  return true;
}

absl::Status ToyPathMaker::Reserve(const plan::EpochConfig& config, const plan::Stage& stage) {
  LAMINA_ASSIGN_OR_RETURN(store_, make_store_(LocalKv::DeviceOptions(config, stage, /*node=*/0)));
  return absl::OkStatus();
}

std::unique_ptr<AttentionPath> ToyPathMaker::Make(const WorkerContext& context) {
  return std::make_unique<ToyPath>(context, *store_, &steps_ended_, &waits_);
}

}  // namespace lamina::compute_node
