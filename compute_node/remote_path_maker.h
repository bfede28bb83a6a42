// SPDX-License-Identifier: Apache-2.0
//
// RemotePathMaker: attention at memory nodes. Keeps the scratch KV of prompts between epochs.

#pragma once

#include <memory>
#include <string>
#include <utility>

#include "compute_node/path_maker.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

class RemotePathMaker final : public PathMaker {
 public:
  // Of the node `node`, whose slices run on the device. The device must outlive this.
  RemotePathMaker(std::string node, kernels::ComputeDevice& device)
      : node_(std::move(node)), device_(device) {}

  plan::AttentionPath kind() const override { return plan::AttentionPath::kRemote; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override;
  void Release() override { chunks_.reset(); }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  const std::string node_;
  kernels::ComputeDevice& device_;
  uint32_t first_layer_ = 0;
  kernels::ChunkAttentionOptions options_;
  std::unique_ptr<kernels::ChunkAttention> chunks_;
};

}  // namespace lamina::compute_node
