// SPDX-License-Identifier: Apache-2.0
//
// StreamingPathMaker: attention here, over K and V that memory nodes send, with heads that stream.
// Keeps the scratch KV of prompts between epochs.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compute_node/path_maker.h"
#include "kernels/attention.h"
#include "kernels/compute_device.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {

class StreamingPathMaker final : public PathMaker {
 public:
  // Slices run on the device. References must outlive this.
  StreamingPathMaker(const kernels::ComputeDevice& device, const kernels::AttentionKernel& kernel)
      : device_(device), kernel_(kernel) {}

  plan::AttentionPath kind() const override { return plan::AttentionPath::kStreaming; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override;
  void Release() override { scratch_.reset(); }
  uint64_t kv_bytes() const override { return scratch_->bytes(); }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  const kernels::ComputeDevice& device_;
  const kernels::AttentionKernel& kernel_;
  std::optional<kernels::KvArena> scratch_;
  std::vector<AttentionDescriptor> layers_;  // Attention layers of the scratch.
  uint64_t windows_bytes_ = 0;
  std::string heads_;  // For people.
};

}  // namespace lamina::compute_node
