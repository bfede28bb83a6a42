// SPDX-License-Identifier: Apache-2.0
//
// ToyPath: an attention path of the tests' own, the smallest one that needs KV before it can
// attend: K and V of all sequences lie in a store that is far away, and come here some polls after
// they were asked for. It shows what a strategy that fetches has to write, and that the worker
// takes one.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compute_node/attention_path.h"
#include "compute_node/local_kv.h"
#include "compute_node/path_maker.h"
#include "compute_node/worker_context.h"
#include "kernels/kv_device.h"

namespace lamina::compute_node {

class ToyPath final : public AttentionPath {
 public:
  // Polls from asking for KV to its arrival.
  static constexpr int kPolls = 3;

  // Adds the steps that have ended to `steps_ended`, and how often weights were awaited to `waits`.
  ToyPath(const WorkerContext& context, kernels::KvDevice& store, int* steps_ended, int* waits)
      : context_(context),
        store_(context.config, plan::StageOf(context.config, context.node), store),
        lanes_(context.config.lanes),
        steps_ended_(steps_ended),
        waits_(waits) {}

  absl::Status Open() override { return store_.Begin(); }
  absl::Status Apply(const plan::StepPlan& plan) override { return store_.Apply(plan); }
  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  absl::Status WhileWeightsCome(Lane& lane) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override;
  absl::StatusOr<bool> Poll(Lane& lane) override;
  std::optional<Nanos> PollPause(const Lane& /*lane*/) const override { return 0; }
  void EndStep(Lane& /*lane*/) override { ++*steps_ended_; }

 private:
  struct LaneState {
    std::optional<uint32_t> asked;  // The layer whose KV is on its way.
    int polls_left = 0;
  };

  const WorkerContext& context_;
  LocalKv store_;
  std::vector<LaneState> lanes_;
  int* const steps_ended_;
  int* const waits_;
};

class ToyPathMaker final : public PathMaker {
 public:
  explicit ToyPathMaker(kernels::KvDeviceMaker make_store) : make_store_(std::move(make_store)) {}

  plan::AttentionPath kind() const override { return plan::AttentionPath::kLocal; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override;
  void Release() override { store_.reset(); }
  uint64_t kv_bytes() const override { return store_->bytes(); }
  std::string Describe() const override { return "a store far away"; }
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

  int steps_ended() const { return steps_ended_; }
  int waits() const { return waits_; }

 private:
  const kernels::KvDeviceMaker make_store_;
  std::unique_ptr<kernels::KvDevice> store_;
  int steps_ended_ = 0;
  int waits_ = 0;
};

}  // namespace lamina::compute_node
