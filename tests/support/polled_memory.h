// SPDX-License-Identifier: Apache-2.0
//
// PolledMemory: the emulated CUDA device's memory, which drivers may pin by its address, of a
// device that orders the writes of NICs or does not. For programs with the emulation.

#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/cuda/window_memory.h"
#include "tests/support/cuda_emulation/device_heap.h"

namespace lamina::test_support {

class PolledMemory final : public DeviceMemory {
 public:
  explicit PolledMemory(bool ordered) : ordered_(ordered) {}

  const std::string& name() const override { return memory_->name(); }
  DeviceAddresses addresses() const override { return memory_->addresses(); }
  absl::StatusOr<absl::Span<std::byte>> Allocate(size_t bytes) override {
    return memory_->Allocate(bytes);
  }
  void Free(absl::Span<std::byte> allocated) override { memory_->Free(allocated); }
  absl::StatusOr<int> ExportDmabuf(absl::Span<const std::byte>) override {
    return absl::UnimplementedError("none here");
  }
  absl::Status CheckPeerAccess() override {
    if (open_ == nullptr) {  // To be pinned, memory must be open.
      open_ = std::make_unique<cuda_emulation::DeviceAccess>();
    }
    return absl::OkStatus();
  }
  absl::StatusOr<PeerHandle> ExportToPeers(absl::Span<const std::byte> bytes) override {
    return memory_->ExportToPeers(bytes);
  }
  absl::StatusOr<std::byte*> OpenPeer(const PeerHandle& handle) override {
    return memory_->OpenPeer(handle);
  }
  void ClosePeer(const PeerHandle& handle) override { memory_->ClosePeer(handle); }
  absl::Status CopyIn(std::byte* device, const std::byte* host, size_t bytes) override {
    return memory_->CopyIn(device, host, bytes);
  }
  absl::Status CopyOut(std::byte* host, const std::byte* device, size_t bytes) override {
    return memory_->CopyOut(host, device, bytes);
  }
  absl::Status CopyAcross(std::byte* to, const std::byte* from, size_t bytes) override {
    return memory_->CopyAcross(to, from, bytes);
  }
  bool OrdersPeerWrites() const override { return ordered_; }
  absl::Status FlushPeerWrites() override { return memory_->FlushPeerWrites(); }

 private:
  const bool ordered_;
  std::unique_ptr<cuda_emulation::DeviceAccess> open_;
  const std::unique_ptr<DeviceMemory> memory_ = kernels::cuda::OpenWindowMemory(0).value();
};

}  // namespace lamina::test_support
