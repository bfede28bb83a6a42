// SPDX-License-Identifier: Apache-2.0
//
// What a stage or shard has of a small random model: its graph, the weights of its slices alone,
// and their executor, on the suite's device.

#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/attention_descriptor.h"
#include "compute_node/slice_executor.h"
#include "compute_node/weight_source.h"
#include "model/model.h"
#include "model/shard.h"
#include "plan/stages.h"
#include "tests/support/random_model.h"
#include "tests/unit/kernels/compute_device_suite.h"

namespace lamina::compute_node {

class PartOfModel {
 public:
  PartOfModel(const test_support::RandomModelSpec& spec, plan::Stage stage, uint32_t shards = 1)
      : device_(kernels::SuiteComputeDevice(DType::kBF16, pool_)),
        weights_(*device_, WeightForm::kBF16) {
    const std::string directory = absl::StrCat(::testing::TempDir(), "/part_", getpid());
    std::filesystem::create_directories(directory);
    EXPECT_TRUE(test_support::WriteRandomModel(spec, directory).ok());
    model_ = *model::OpenModel(directory);
    if (shards > 1) {
      UseShard(shards, stage.shard);
    }
    graph_ = *model::ShardGraph(model_.graph, stage.shard);
    executor_ = *SliceExecutor::Create(graph_, weights_, *device_, /*head_columns=*/64);
    const uint32_t end = stage.first_layer + stage.layers;
    const bool last = end + 1 == executor_->slice_count();
    const std::vector<model::OpId> ops = executor_->program().OpsOf(
        stage.first_layer, last ? end + 1 : end, /*head=*/stage.shard.index == 0);
    EXPECT_TRUE(weights_.Load(executor_->program(), *model_.weights, ops, [](double) {}).ok());
    for (uint32_t slice = stage.first_layer; slice < end; ++slice) {
      layers_.push_back(executor_->attention(slice).descriptor);
    }
    std::filesystem::remove_all(directory);
  }

  SliceExecutor& executor() { return *executor_; }
  // The part's own layers, each with the heads that it has there.
  const std::vector<AttentionDescriptor>& layers() const { return layers_; }

 private:
  // An even part; its index is there already.
  void UseShard(uint32_t shards, ShardPart& part) {
    const model::ShardWidths widths = *model::ShardWidthsOf(model_.graph);
    part.count = shards;
    part.heads = widths.heads / shards;
    part.columns = widths.columns / shards;
    part.first_head = part.index * part.heads;
    part.first_column = part.index * part.columns;
  }

  ThreadPool pool_{{}};
  std::unique_ptr<kernels::ComputeDevice> device_;
  ResidentWeights weights_;
  model::Model model_;
  model::Graph graph_;
  std::unique_ptr<SliceExecutor> executor_;
  std::vector<AttentionDescriptor> layers_;
};

}  // namespace lamina::compute_node
