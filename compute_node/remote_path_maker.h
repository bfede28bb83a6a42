// SPDX-License-Identifier: Apache-2.0
//
// RemotePathMaker: attention at memory nodes. Keeps the scratch KV of prompts between epochs.

#pragma once

#include <memory>
#include <string>
#include <utility>

#include "compute_node/path_maker.h"
#include "compute_node/scratch_kv.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

class RemotePathMaker final : public PathMaker {
 public:
  // Makes the path of `node`, whose slices run on the device. The device must outlive this.
  RemotePathMaker(std::string node, kernels::ComputeDevice& device)
      : device_(device), scratch_(std::move(node), device) {}

  plan::AttentionPath kind() const override { return plan::AttentionPath::kRemote; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override {
    return scratch_.Reserve(config, stage);
  }
  void Release() override { scratch_.Release(); }
  uint64_t kv_bytes() const override { return scratch_.bytes(); }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  kernels::ComputeDevice& device_;
  ScratchKv scratch_;
};

}  // namespace lamina::compute_node
