// SPDX-License-Identifier: Apache-2.0
//
// RemotePathMaker: attention at memory nodes, over K and V of one form: that of path remote, or
// INT8 of path remote_int8. Keeps the scratch KV of prompts between epochs.

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
  // Makes the path `kind` of `node`, whose slices run on the device. The device must outlive this.
  RemotePathMaker(plan::AttentionPath kind, std::string node, kernels::ComputeDevice& device)
      : kind_(kind), device_(device), scratch_(std::move(node), device) {}

  plan::AttentionPath kind() const override { return kind_; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override {
    return scratch_.Reserve(config, stage, config.KvFormOf(kind_));
  }
  void Release() override { scratch_.Release(); }
  uint64_t kv_bytes() const override { return scratch_.bytes(); }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  const plan::AttentionPath kind_;
  kernels::ComputeDevice& device_;
  ScratchKv scratch_;
};

}  // namespace lamina::compute_node
