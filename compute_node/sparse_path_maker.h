// SPDX-License-Identifier: Apache-2.0
//
// SparsePathMaker: attention here, over K and V of chosen tokens that memory nodes send; with
// partition token_range of all that do not stay here. Keeps the scratch KV of prompts between
// epochs.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compute_node/path_maker.h"
#include "compute_node/resident_int8.h"
#include "kernels/attention.h"
#include "kernels/compute_device.h"
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"
#include "plan/resident_room.h"

namespace lamina::compute_node {

class SparsePathMaker final : public PathMaker {
 public:
  // Slices run on the device. As many tokens stay here as `resident_bytes` have room for.
  // References must outlive this.
  SparsePathMaker(const kernels::ComputeDevice& device, const kernels::AttentionKernel& kernel,
                  uint64_t resident_bytes)
      : device_(device), kernel_(kernel), resident_bytes_(resident_bytes) {}

  plan::AttentionPath kind() const override { return plan::AttentionPath::kSparse; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override;
  void Release() override {
    scratch_.reset();
    int8_.reset();
    resident_.reset();
    resident_int8_.reset();
    room_ = {};
  }
  // Sums of weights count with the most that they may take.
  uint64_t kv_bytes() const override { return scratch_bytes() + kept_bytes() + sums_bytes_; }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  uint64_t scratch_bytes() const {
    return scratch_->bytes() + (int8_.has_value() ? int8_->bytes() : 0);
  }
  uint64_t kept_bytes() const {
    return (resident_.has_value() ? resident_->bytes() : 0) +
           (resident_int8_.has_value() ? resident_int8_->bytes() : 0);
  }
  // As much as `resident_bytes` have room for in this epoch.
  plan::ResidentRoom RoomIn(const plan::EpochConfig& config) const;
  // Errors: as kernels::KvArena::Create().
  absl::Status ReserveResident(const plan::EpochConfig& config, const plan::ResidentRoom& room);

  const kernels::ComputeDevice& device_;
  const kernels::AttentionKernel& kernel_;
  const uint64_t resident_bytes_;
  std::optional<kernels::KvArena> scratch_;
  std::optional<kernels::Int8Arena> int8_;  // Where K and V are INT8: of the same tokens.
  std::optional<kernels::KvArena> resident_;
  std::optional<Int8Residents> resident_int8_;  // In its place, where K and V are INT8.
  plan::ResidentRoom room_;                     // Both have so much.
  std::vector<AttentionDescriptor> layers_;     // Attention layers of the arenas.
  uint64_t sums_bytes_ = 0;
  uint64_t windows_bytes_ = 0;
};

}  // namespace lamina::compute_node
