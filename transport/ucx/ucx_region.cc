// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "transport/put_check.h"
#include "transport/ucx/ucx_region_internal.h"

namespace lamina::transport {

UcxRegion::UcxRegion(UcxMemory memory, UcxDescriptor descriptor, Retire retire)
    : memory_(std::move(memory)),
      descriptor_(std::move(descriptor)),
      data_(reinterpret_cast<std::byte*>(descriptor_.data_address), descriptor_.data_bytes),
      retire_(std::move(retire)) {}

UcxRegion::~UcxRegion() { retire_(*this, std::move(memory_)); }

std::atomic_ref<uint64_t> UcxRegion::Signal(uint32_t word) const {
  return std::atomic_ref<uint64_t>(
      *reinterpret_cast<uint64_t*>(memory_.host.data() + word * kUcxSignalStride));
}

MemoryChoice UcxRegion::memory() const {
  return {
      .path = MemoryPath::kRegistered, .device = memory_.device_memory()->name(), .why_not = ""};
}

absl::Status UcxRegion::Land(size_t, size_t bytes) const {
  return bytes == 0 ? absl::OkStatus() : memory_.device_memory()->FlushPeerWrites();
}

uint64_t UcxRegion::LoadSignal(uint32_t word) const {
  LAMINA_CHECK(word < descriptor_.signal_words);
  // Acquire: the data that came before the signal is visible.
  return Signal(word).load(std::memory_order_acquire);
}

bool UcxRegion::Deliver(const UcxMessage& message, const void* data, size_t bytes) {
  const bool inside = bytes == message.data_bytes && message.offset <= data_.size() &&
                      bytes <= data_.size() - message.offset &&
                      (message.value == 0 || message.word < descriptor_.signal_words);
  if (!inside) {
    return false;
  }
  std::byte* const to = data_.data() + message.offset;
  DeviceMemory* const device = memory_.device_memory();
  if (bytes > 0 && device == nullptr) {
    std::memcpy(to, data, bytes);
  } else if (bytes > 0 && !device->CopyIn(to, static_cast<const std::byte*>(data), bytes).ok()) {
    return false;  // The waiter meets its deadline.
  }
  if (message.value != 0) {
    // Release: the data of this message, and of all before it, comes first.
    Signal(message.word).store(message.value, std::memory_order_release);
  }
  return true;
}

UcxRemoteRegion::UcxRemoteRegion(UcxTransport& transport, const UcxDescriptor& descriptor,
                                 std::shared_ptr<const WatchedRegion> watched, UcxPeer& peer,
                                 UcpRemoteKey key, UcpRemoteKey data_key)
    : transport_(transport),
      watched_(std::move(watched)),
      peer_(peer),
      key_(std::move(key)),
      data_key_(std::move(data_key)),
      region_(descriptor.region),
      address_(descriptor.address),
      data_address_(descriptor.data_address),
      data_bytes_(descriptor.data_bytes),
      direct_(peer.IsDirect(key_.get(), address_) &&
              (data_key_ == nullptr || peer.IsDirect(data_key_.get(), data_address_))),
      raised_(descriptor.signal_words) {}

std::string UcxRemoteRegion::path() const {
  return absl::StrCat("ucx ", peer_.lanes(), direct_ ? "" : " (messages)");
}

absl::Status UcxRemoteRegion::CheckPut(size_t offset, size_t bytes,
                                       const SignalUpdate* signal) const {
  return CheckPutArguments("ucx", data_bytes_, raised_, offset, bytes, signal);
}

absl::Status UcxRemoteRegion::CheckPeer() const {
  // Acquire: pairs with the watch's thread.
  switch (watched_->state.load(std::memory_order_acquire)) {
    case OwnerState::kRegionDestroyed:
      return absl::UnavailableError("ucx: the owner has destroyed the region");
    case OwnerState::kGone:
      return absl::UnavailableError("ucx: the peer is gone: its connection ended");
    case OwnerState::kThere:
      break;
  }
  if (peer_.failure() != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("ucx: the endpoint failed: ", ucs_status_string(peer_.failure())));
  }
  return absl::OkStatus();
}

}  // namespace lamina::transport
