// SPDX-License-Identifier: Apache-2.0
//
// A small random model on the suite's device, for tests of the slice executor.

#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compute_node/slice_executor.h"
#include "model/model.h"
#include "model/splitter.h"
#include "tests/support/random_model.h"
#include "tests/unit/kernels/compute_device_suite.h"

namespace lamina::compute_node {

// A model, its weights and its executor.
class Program {
 public:
  using DeviceMaker = std::function<std::unique_ptr<kernels::ComputeDevice>(ThreadPool& pool)>;

  // With the weights of the slices before `slices_end`; on the suite's device, or on another one.
  Program(const test_support::RandomModelSpec& spec, DType compute_type,
          uint32_t slices_end = UINT32_MAX, const DeviceMaker& make_device = nullptr,
          size_t tile_rows = SliceExecutor::kTileRows)
      : device_(make_device ? make_device(pool_)
                            : kernels::SuiteComputeDevice(compute_type, pool_)) {
    const std::string directory = absl::StrCat(::testing::TempDir(), "/slices_", getpid());
    std::filesystem::create_directories(directory);
    EXPECT_TRUE(test_support::WriteRandomModel(spec, directory).ok());
    auto opened = model::OpenModel(directory);
    EXPECT_TRUE(opened.ok()) << opened.status();
    model_ = *std::move(opened);
    auto split = model::SplitAtAttention(model_.graph);
    EXPECT_TRUE(split.ok()) << split.status();
    std::vector<model::OpId> ops;
    for (uint32_t slice = 0; slice < std::min<size_t>(slices_end, split->slices.size()); ++slice) {
      const auto& of_slice = split->slices[slice].ops;
      ops.insert(ops.end(), of_slice.begin(), of_slice.end());
    }
    auto weights = ModelWeights::Load(model_, *device_, ops, [](double) {});
    EXPECT_TRUE(weights.ok()) << weights.status();
    weights_.emplace(*device_, *std::move(weights));
    auto executor =
        SliceExecutor::Create(model_.graph, *weights_, *device_, /*head_columns=*/64, tile_rows);
    EXPECT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
    std::filesystem::remove_all(directory);
  }

  const model::Model& model() const { return model_; }
  SliceExecutor& executor() { return *executor_; }

 private:
  model::Model model_;
  ThreadPool pool_{{}};
  std::unique_ptr<kernels::ComputeDevice> device_;
  std::optional<ResidentWeights> weights_;
  std::unique_ptr<SliceExecutor> executor_;
};

// Returns one of five forms: "llama", "qwen2", "opt", "gpt_neox_parallel", "gpt_neox_sequential".
inline test_support::RandomModelSpec Spec(const std::string& type) {
  test_support::RandomModelSpec spec{.model_type = type, .seed = 5, .layers = 3, .vocabulary = 96};
  if (type == "llama") {
    spec.kv_heads = 2;
  } else if (type == "opt") {
    spec.attention_bias = true;
    spec.activation = "relu";
    spec.tied = true;
  } else if (type != "qwen2") {
    spec.model_type = "gpt_neox";
    spec.attention_bias = true;
    spec.activation = "gelu";
    spec.rotary_share = 0.5f;
    spec.parallel_residual = type == "gpt_neox_parallel";
  }
  return spec;
}

}  // namespace lamina::compute_node
