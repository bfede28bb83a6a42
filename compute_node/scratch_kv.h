// SPDX-License-Identifier: Apache-2.0
//
// ScratchKv: the memory of a node's scratch KV, which path makers keep from epoch to epoch.
//
// Threading: the node's control thread.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/kv_form.h"
#include "compute_node/scratch_attention.h"
#include "kernels/compute_device.h"
#include "plan/epoch_config.h"
#include "plan/stages.h"

namespace lamina::compute_node {

class ScratchKv {
 public:
  // Scratch of `node`, whose slices run on the device, which must outlive this.
  ScratchKv(std::string node, kernels::ComputeDevice& device)
      : node_(std::move(node)), device_(device) {}

  // Both do what PathMaker::Reserve() and Release() say of the scratch, whose prompts have K and V
  // of this form.
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage, KvForm form);
  void Release() { kernel_.reset(); }
  uint64_t bytes() const { return kernel_->bytes(); }

  // Requires: Reserve(). What it makes must not outlive the next Reserve() or Release().
  ScratchAttention Make(const WorkerContext& context) {
    return ScratchAttention(context, *kernel_, first_layer_);
  }

 private:
  const std::string node_;
  kernels::ComputeDevice& device_;
  uint32_t first_layer_ = 0;
  kernels::ChunkAttentionOptions options_;
  std::unique_ptr<kernels::ChunkAttention> kernel_;
};

}  // namespace lamina::compute_node
