// SPDX-License-Identifier: Apache-2.0
//
// UcxRegion and UcxRemoteRegion: the two ends of one region over UCX; UcxPeer: the endpoint that
// all views of one peer's regions share.
//
// Threading: as transport.h says.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/device_memory.h"
#include "transport/transport.h"
#include "transport/ucx/peer_watch.h"
#include "transport/ucx/ucp_handles_internal.h"
#include "transport/ucx/ucx_descriptor.h"

namespace lamina::transport {

// Before each active message; then its data. As hosts of one byte order have it.
struct UcxMessage {
  WatchId region;
  uint64_t offset;  // Where the data goes in the region.
  uint64_t value;   // Value of the signal; 0 for none.
  uint32_t word;    // Word of the signal.
  uint32_t data_bytes;
};
static_assert(sizeof(UcxMessage) == 40);

// What lies behind a region: signal words and data in the host's memory, or the words there and the
// data in a device's.
struct UcxMemory {
  UcpMemory host;
  DeviceAllocation device;          // Empty for data in the host's memory; outlives its
  std::optional<UcpMemory> mapped;  // registration.

  DeviceMemory* device_memory() const { return device.memory(); }
};

class UcxRegion final : public Region, private DeviceRegion {
 public:
  // Called when the region is destroyed; takes its memory, to which a peer may still put for a
  // while.
  using Retire = std::function<void(UcxRegion& region, UcxMemory memory)>;

  UcxRegion(UcxMemory memory, UcxDescriptor descriptor, Retire retire);
  ~UcxRegion() override;
  UcxRegion(const UcxRegion&) = delete;
  UcxRegion& operator=(const UcxRegion&) = delete;

  absl::Span<std::byte> bytes() override { return data_; }
  uint32_t signal_words() const override { return descriptor_.signal_words; }
  const DeviceRegion* device() const override {
    return memory_.device_memory() == nullptr ? nullptr : this;
  }
  DirectMemory direct() override { return {}; }
  uint64_t LoadSignal(uint32_t word) const override;
  std::string Descriptor() const override { return EncodeUcxDescriptor(descriptor_); }

  const UcxDescriptor& fields() const { return descriptor_; }
  // Copies the data and raises the signal; false, and no signal raised, where the message is
  // outside or the device fails.
  bool Deliver(const UcxMessage& message, const void* data, size_t bytes);

 private:
  MemoryChoice memory() const override;
  absl::Status Land(size_t offset, size_t bytes) const override;
  std::atomic_ref<uint64_t> Signal(uint32_t word) const;

  UcxMemory memory_;
  const UcxDescriptor descriptor_;
  const absl::Span<std::byte> data_;
  const Retire retire_;
};

class UcxPeer {
 public:
  // Errors: kUnavailable  no transport of UCX reaches the worker at `address`.
  static absl::StatusOr<std::unique_ptr<UcxPeer>> Connect(ucp_worker_h worker, const WatchId& id,
                                                          const std::string& address);
  ~UcxPeer();
  UcxPeer(const UcxPeer&) = delete;
  UcxPeer& operator=(const UcxPeer&) = delete;

  // Ends all that is under way, as failed; returns when UCX reads no source any more.
  void Cut();

  const WatchId& id() const { return id_; }
  ucp_ep_h endpoint() const { return endpoint_; }
  const std::string& lanes() const { return lanes_; }
  // Whether UCX puts into memory of that key without help of the peer's processor. An emulated put
  // of UCX 1.13 ends the *target's* process when its sender dies, and so is never used.
  bool IsDirect(ucp_rkey_h key, uint64_t address) const;

  // The first failure counts.
  void Fail(ucs_status_t status) { failure_ = failure_ == UCS_OK ? status : failure_; }
  ucs_status_t failure() const { return failure_; }

  uint32_t views = 0;
  uint32_t pending = 0;  // Operations of all views.

 private:
  UcxPeer(ucp_worker_h worker, const WatchId& id) : worker_(worker), id_(id) {}

  const ucp_worker_h worker_;
  const WatchId id_;
  ucp_ep_h endpoint_ = nullptr;
  std::string lanes_;
  bool has_remote_writes_ = false;
  ucs_status_t failure_ = UCS_OK;
};

class UcxTransport;

// A view of a peer's region.
class UcxRemoteRegion final : public RemoteRegion {
 public:
  UcxRemoteRegion(UcxTransport& transport, const UcxDescriptor& descriptor,
                  std::shared_ptr<const WatchedRegion> watched, UcxPeer& peer, UcpRemoteKey key,
                  UcpRemoteKey data_key);
  ~UcxRemoteRegion() override;
  UcxRemoteRegion(const UcxRemoteRegion&) = delete;
  UcxRemoteRegion& operator=(const UcxRemoteRegion&) = delete;

  size_t size_bytes() const override { return data_bytes_; }
  uint32_t signal_words() const override { return static_cast<uint32_t>(raised_.size()); }
  std::string path() const override;
  DirectMemory direct() override { return {}; }

  absl::Status CheckPut(size_t offset, size_t bytes, const SignalUpdate* signal) const;
  // Whether the peer is known to be gone, and how.
  absl::Status CheckPeer() const;

 private:
  friend class UcxTransport;

  UcxTransport& transport_;
  const std::shared_ptr<const WatchedRegion> watched_;
  UcxPeer& peer_;
  const UcpRemoteKey key_;
  const UcpRemoteKey data_key_;  // Null where `key_` is that of the data too.
  const WatchId region_;
  const uint64_t address_;  // Address of the first signal word there.
  const uint64_t data_address_;
  const uint64_t data_bytes_;
  const bool direct_;             // By puts; else by active messages.
  std::vector<uint64_t> raised_;  // The greatest value put to each word.
  uint32_t pending_ = 0;          // Operations whose source UCX may still read.
};

}  // namespace lamina::transport
