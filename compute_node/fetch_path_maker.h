// SPDX-License-Identifier: Apache-2.0
//
// FetchPathMaker: attention here, over K and V that memory nodes send, of which paths recompute and
// hybrid make some here; with partition token_range they come span by span. Keeps the scratch KV of
// prompts between epochs, and the memory of activations that stay here.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "compute_node/path_maker.h"
#include "compute_node/scratch_kv.h"
#include "kernels/activation_arena.h"
#include "kernels/attention.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

class FetchPathMaker final : public PathMaker {
 public:
  // Makes the path `kind`, fetch, recompute or hybrid, of `node`, whose slices run on the device.
  // References must outlive this.
  FetchPathMaker(plan::AttentionPath kind, std::string node, kernels::ComputeDevice& device,
                 const kernels::AttentionKernel& kernel)
      : kind_(kind), device_(device), kernel_(kernel), scratch_(std::move(node), device) {}

  plan::AttentionPath kind() const override { return kind_; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override;
  void Release() override {
    scratch_.Release();
    resident_.reset();
  }
  uint64_t kv_bytes() const override { return scratch_.bytes() + resident_bytes(); }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  uint64_t resident_bytes() const { return resident_.has_value() ? resident_->bytes() : 0; }
  // Whether K and V of some tokens are made from their numbers.
  bool MakesFromTokens(const plan::EpochConfig& config) const {
    return kind_ == plan::AttentionPath::kRecompute && config.made_tokens_max > 0;
  }
  // Activations that stay. Errors: as kernels::ActivationArena::Create().
  absl::Status ReserveResident(const plan::EpochConfig& config);

  const plan::AttentionPath kind_;
  kernels::ComputeDevice& device_;
  const kernels::AttentionKernel& kernel_;
  ScratchKv scratch_;
  std::optional<kernels::ActivationArena> resident_;
  uint32_t resident_layers_ = 0;
  uint32_t resident_width_ = 0;
  uint64_t windows_bytes_ = 0;
  // So many tokens of a lane's step at most have K and V made from their numbers.
  uint32_t made_tokens_ = 0;
};

}  // namespace lamina::compute_node
