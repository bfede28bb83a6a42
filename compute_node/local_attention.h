// SPDX-License-Identifier: Apache-2.0
//
// LocalAttention: rows attend at the compute node itself, over KV that is here (local_kv.h): the
// attention of a slice is a call, and nothing is awaited behind it. Where the next slice runs on
// another stage, all outputs go there with the context.
//
// Where the device lets them, slices store k and v in the call that makes them: in the last launch
// of a slice that was captured, which finds the slots of the step at their place in memory.
//
// Threading: as AttentionPath. Allocation: per step, none per slice.

#pragma once

#include <vector>

#include "compute_node/attention_path.h"
#include "compute_node/local_kv.h"
#include "compute_node/worker_context.h"
#include "kernels/kv_device.h"

namespace lamina::compute_node {

class LocalAttention final : public AttentionPath {
 public:
  // The device is one that was made for what the node runs in the epoch
  // (LocalKv::DeviceOptions()), and the tails are its. References must outlive this.
  LocalAttention(const WorkerContext& context, const plan::Stage& stage, kernels::KvDevice& device,
                 plan::Tails& tails)
      : context_(context),
        kv_(context.config, stage, device, &tails),
        stored_by_slice_(context.config.layers.size(), false) {}

  absl::Status Open() override { return kv_.Begin(); }
  absl::Status Apply(const plan::StepPlan& plan) override { return kv_.Apply(plan); }
  void PrepareLane(Lane& lane) override;
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& /*lane*/) override { return false; }
  absl::StatusOr<bool> Poll(Lane& /*lane*/) override { return true; }
  uint32_t RowsFromElsewhere(const PathRows& rows) const override { return rows.decode.first; }

 private:
  const WorkerContext& context_;
  LocalKv kv_;
  std::vector<bool> stored_by_slice_;  // [slices with attention]
};

}  // namespace lamina::compute_node
