// SPDX-License-Identifier: Apache-2.0
//
// FetchPathMaker: attention here, over K and V that memory nodes send, of which path recompute
// makes some here. Keeps the scratch KV of prompts between epochs.

#pragma once

#include <memory>
#include <string>
#include <utility>

#include "compute_node/path_maker.h"
#include "compute_node/scratch_kv.h"
#include "kernels/attention.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

class FetchPathMaker final : public PathMaker {
 public:
  // Makes the path `kind`, fetch or recompute, of `node`, whose slices run on the device.
  // References must outlive this.
  FetchPathMaker(plan::AttentionPath kind, std::string node, kernels::ComputeDevice& device,
                 const kernels::AttentionKernel& kernel)
      : kind_(kind), device_(device), kernel_(kernel), scratch_(std::move(node), device) {}

  plan::AttentionPath kind() const override { return kind_; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override;
  void Release() override { scratch_.Release(); }
  uint64_t kv_bytes() const override { return scratch_.bytes(); }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  const plan::AttentionPath kind_;
  kernels::ComputeDevice& device_;
  const kernels::AttentionKernel& kernel_;
  ScratchKv scratch_;
  uint64_t windows_bytes_ = 0;
};

}  // namespace lamina::compute_node
