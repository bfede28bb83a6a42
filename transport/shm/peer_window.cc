// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "transport/shm/peer_window_internal.h"

namespace lamina::transport {

ShmReach ShmDecision::Decide(ShmReach wanted) {
  ShmReach before = ShmReach::kUndecided;
  return reach.compare_exchange_strong(before, wanted) ? wanted : before;
}

void ShmDecision::Explain(absl::string_view reason) {
  const size_t bytes = std::min(reason.size(), kShmReasonBytesMax);
  std::memcpy(why, reason.data(), bytes);
  why_bytes.store(static_cast<uint32_t>(bytes), std::memory_order_release);
}

std::string ShmDecision::Why() const {
  const uint32_t bytes = why_bytes.load(std::memory_order_acquire);
  return {why, std::min<size_t>(bytes, kShmReasonBytesMax)};
}

absl::StatusOr<PeerWindow> PeerWindow::Open(const ShmDescriptor& descriptor, FileDescriptor file,
                                            DeviceMemory* device, ShmDecision& decision) {
  if (!LockShared(file)) {
    return absl::UnavailableError(
        absl::StrCat("shm: process ", descriptor.pid, " has destroyed the region"));
  }
  PeerWindow window;
  window.file_ = std::move(file);
  const absl::Status mapped = window.Map(descriptor, device);
  const ShmReach all = decision.Decide(mapped.ok() ? ShmReach::kMapped : ShmReach::kStaged);
  if (mapped.ok() && all == ShmReach::kMapped) {
    return window;
  }
  if (all == ShmReach::kMapped) {
    return absl::UnavailableError(absl::StrCat(
        "shm: ", mapped.message(), "; other senders write the device's memory of process ",
        descriptor.pid, " already: let all senders of a window reach its device, or none"));
  }
  if (!mapped.ok()) {
    decision.Explain(mapped.message());
    LogWarning("shm: puts to process ", descriptor.pid,
               " through a staging buffer: ", mapped.message());
  }
  return PeerWindow();
}

absl::Status PeerWindow::Map(const ShmDescriptor& descriptor, DeviceMemory* device) {
  if (device == nullptr) {
    return absl::UnavailableError("CUDA IPC: a sender uses no device");
  }
  absl::StatusOr<PeerMemory> memory = PeerMemory::Open(*device, descriptor.handle);
  if (!memory.ok()) {
    return absl::UnavailableError(absl::StrCat("CUDA IPC: ", memory.status().message()));
  }
  memory_ = *std::move(memory);
  owner_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, descriptor.pid, 0)));
  return absl::OkStatus();
}

bool PeerWindow::OwnerIsGone() const {
  pollfd owner = {.fd = owner_.get(), .events = POLLIN, .revents = 0};
  return owner.fd >= 0 && poll(&owner, 1, 0) == 1;
}

}  // namespace lamina::transport
