// SPDX-License-Identifier: Apache-2.0
//
// A device on the processor with memory of its own, which counts what it is asked for. What it
// captures does nothing when it is replayed but say so.

#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/compute_device.h"
#include "kernels/dense.h"

namespace lamina::compute_node {

class CountingDevice final : public kernels::ComputeDevice {
 public:
  explicit CountingDevice(ThreadPool& pool)
      : cpu_(kernels::MakeCpuComputeDevice(kernels::MakeReferenceDense(DType::kBF16),
                                           kernels::CpuAttention(), pool)) {}

  // Copies since the last call, as bytes of each.
  std::vector<size_t> TakeCopies() { return std::exchange(copies_, {}); }
  int synchronized() const { return synchronized_; }
  int captured() const { return captured_; }
  int replayed() const { return *replayed_; }
  // The `count`-th capture from now on fails.
  void FailCapture(int count) { fails_in_ = count; }
  // There is no memory of the device from now on.
  void FailAllocations() { has_memory_ = false; }
  // What MakeSampler() makes, once.
  void SampleWith(std::unique_ptr<kernels::RowSampler> sampler) { sampler_ = std::move(sampler); }

  const std::string& name() const override { return cpu_->name(); }
  bool is_host() const override { return false; }
  kernels::Dense& dense() override { return cpu_->dense(); }
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::StatusOr<kernels::Buffer> Allocate(size_t bytes) override {
    if (!has_memory_) {
      return absl::ResourceExhaustedError("no memory of the device");
    }
    return cpu_->Allocate(bytes);
  }
  absl::StatusOr<kernels::Buffer> AllocateHost(size_t bytes) override {
    return cpu_->Allocate(bytes);
  }
  void CopyRows(const kernels::RowsCopy& copy) override {
    if (copy.row_bytes * copy.rows > 0) {
      copies_.push_back(copy.row_bytes * copy.rows);
    }
    cpu_->CopyRows(copy);
  }
  absl::Status Synchronize() override {
    ++synchronized_;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<kernels::ChunkAttention>> MakeChunkAttention(
      const kernels::ChunkAttentionOptions& options) override {
    return cpu_->MakeChunkAttention(options);
  }
  absl::StatusOr<std::unique_ptr<kernels::KvDevice>> MakeKvDevice(
      const kernels::KvDeviceOptions& options) override {
    return cpu_->MakeKvDevice(options);
  }
  absl::StatusOr<double> MeasureReads() override { return cpu_->MeasureReads(); }
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> work) override {
    ++timed_;
    return cpu_->SecondsOf(work);
  }
  int timed() const { return timed_; }
  absl::StatusOr<std::unique_ptr<kernels::RowSampler>> MakeSampler(
      const kernels::RowSamplerOptions& options) override {
    if (sampler_ != nullptr) {
      return std::move(sampler_);
    }
    return cpu_->MakeSampler(options);
  }
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MakeChannel(
      const kernels::ChannelOptions& options) override {
    return cpu_->MakeChannel(options);
  }
  absl::StatusOr<std::unique_ptr<kernels::CapturedGraph>> Capture(
      absl::FunctionRef<void()> work) override {
    if (--fails_in_ == 0) {
      return absl::ResourceExhaustedError("no memory for a capture");
    }
    ++captured_;
    work();
    return std::make_unique<CountedWork>(replayed_);
  }

 private:
  class CountedWork final : public kernels::CapturedGraph {
   public:
    explicit CountedWork(std::shared_ptr<int> replayed) : replayed_(std::move(replayed)) {}
    void Replay() override { ++*replayed_; }

   private:
    const std::shared_ptr<int> replayed_;
  };

  const std::unique_ptr<kernels::ComputeDevice> cpu_;
  std::vector<size_t> copies_;
  int synchronized_ = 0;
  int timed_ = 0;
  int captured_ = 0;
  int fails_in_ = 0;
  bool has_memory_ = true;
  std::unique_ptr<kernels::RowSampler> sampler_;
  std::shared_ptr<int> replayed_ = std::make_shared<int>(0);
};

}  // namespace lamina::compute_node
