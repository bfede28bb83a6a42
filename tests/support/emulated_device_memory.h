// SPDX-License-Identifier: Apache-2.0
//
// EmulatedDeviceMemory: a device's memory for tests. It is the host's, mapped twice: at the
// addresses that transports are given, where by default the processor may not touch it, and at
// those that a test uses to look at it as the device would. So a transport that reads or writes the
// device's memory by itself ends the program. Peers map the same pages once more, also within one
// process: ThreadSanitizer sees the words of a region at two places there, and their order at none.
//
// Threading: any thread.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/device_memory.h"

namespace lamina::test_support {

struct EmulatedDeviceOptions {
  bool guarded = true;       // The processor may not touch it.
  bool peer_access = false;  // Drivers pin it by its address; needs `guarded` off.
  bool dmabuf = true;        // By the kernel's udmabuf; without it, a file that is none.
  bool flush = true;         // FlushPeerWrites() works.
  bool ordered = false;      // OrdersPeerWrites().
  bool exports = true;       // ExportToPeers() works.
  bool opens = true;         // OpenPeer() works.
  DeviceAddresses addresses = DeviceAddresses::kOpaque;  // kHost needs `guarded` off.
};

class EmulatedDeviceMemory final : public DeviceMemory {
 public:
  explicit EmulatedDeviceMemory(const EmulatedDeviceOptions& options = {}) : options_(options) {}
  ~EmulatedDeviceMemory() override;  // Requires: all was freed.

  const std::string& name() const override { return name_; }
  DeviceAddresses addresses() const override { return options_.addresses; }
  absl::StatusOr<absl::Span<std::byte>> Allocate(size_t bytes) override;
  void Free(absl::Span<std::byte> allocated) override;
  absl::StatusOr<int> ExportDmabuf(absl::Span<const std::byte> pages) override;
  absl::Status CheckPeerAccess() override;
  absl::StatusOr<PeerHandle> ExportToPeers(absl::Span<const std::byte> bytes) override;
  absl::StatusOr<std::byte*> OpenPeer(const PeerHandle& handle) override;
  void ClosePeer(const PeerHandle& handle) override;
  absl::Status CopyIn(std::byte* device, const std::byte* host, size_t bytes) override;
  absl::Status CopyOut(std::byte* host, const std::byte* device, size_t bytes) override;
  absl::Status CopyAcross(std::byte* to, const std::byte* from, size_t bytes) override;
  bool OrdersPeerWrites() const override { return options_.ordered; }
  absl::Status FlushPeerWrites() override;

  // The device's own view of some of its memory.
  absl::Span<std::byte> Seen(absl::Span<const std::byte> device) const;

  // What any device of this process, or a peer's that it opened, sees there; memory that is no
  // device's is itself.
  static absl::Span<std::byte> SeenByItsOwner(absl::Span<const std::byte> bytes);

  // From now on every copy fails.
  void Break() { broken_ = true; }

  uint64_t copies_in() const { return copies_in_; }
  uint64_t copies_out() const { return copies_out_; }
  uint64_t bytes_in() const { return bytes_in_; }
  uint64_t copies_across() const { return copies_across_; }
  uint64_t flushes() const { return flushes_; }
  uint64_t allocated_bytes() const { return allocated_bytes_; }
  static size_t peers_open();  // Mappings of other processes' memory in this one.

 private:
  const EmulatedDeviceOptions options_;
  const std::string name_ = "emulated:0";
  std::atomic<bool> broken_{false};
  std::atomic<uint64_t> copies_in_{0};
  std::atomic<uint64_t> copies_out_{0};
  std::atomic<uint64_t> copies_across_{0};
  std::atomic<uint64_t> bytes_in_{0};
  std::atomic<uint64_t> flushes_{0};
  std::atomic<uint64_t> allocated_bytes_{0};
};

}  // namespace lamina::test_support
