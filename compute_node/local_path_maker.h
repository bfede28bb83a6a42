// SPDX-License-Identifier: Apache-2.0
//
// LocalPathMaker: attention over KV of the compute node. Keeps the KV device between epochs, with
// what its slots hold as long as its shape stays.

#pragma once

#include <memory>
#include <string>
#include <utility>

#include "compute_node/path_maker.h"
#include "kernels/compute_device.h"
#include "kernels/kv_device.h"
#include "plan/tails.h"

namespace lamina::compute_node {

class LocalPathMaker final : public PathMaker {
 public:
  // Makes the path of `node`, whose slices run on `compute`, which must outlive this. `holds_kv`:
  // the node's cluster file has KV there.
  LocalPathMaker(std::string node, kernels::ComputeDevice& compute, bool holds_kv)
      : node_(std::move(node)), compute_(compute), holds_kv_(holds_kv) {}

  plan::AttentionPath kind() const override { return plan::AttentionPath::kLocal; }
  absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) override;
  void Release() override { kv_.reset(); }
  uint64_t kv_bytes() const override { return kv_->bytes(); }
  uint64_t kv_arena() const override { return arena_; }
  std::string Describe() const override;
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override;

 private:
  const std::string node_;
  kernels::ComputeDevice& compute_;
  const bool holds_kv_;
  plan::Stage stage_;  // What the node runs in the epoch, and
  plan::Stage part_;   // of what the device holds K and V: the same but for the replica's number.
  kernels::KvDeviceOptions options_;
  uint64_t arena_ = 0;
  std::unique_ptr<kernels::KvDevice> kv_;
  plan::Tails tails_{0};  // With slots of INT8: who has which.
};

}  // namespace lamina::compute_node
