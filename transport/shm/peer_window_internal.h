// SPDX-License-Identifier: Apache-2.0
//
// PeerWindow: how a sender writes the data of a region that lies in a device's memory.
//
// Whether the owner's driver shares the memory is known when the region is made, whether a sender's
// driver takes it only when that opens the region. Each such region therefore has room for its data
// in the shared memory too, and the first sender that opens it says, for all, which one counts:
//
//   kMapped  the device's memory: senders map it and copy there
//   kStaged  the shared memory: Land() copies from there
//
// See: docs/adr/0085-cuda-ipc-in-shm.md.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/device_memory.h"
#include "transport/shm/shared_mapping_internal.h"
#include "transport/shm/shm_descriptor.h"

namespace lamina::transport {

inline constexpr size_t kShmReasonBytesMax = 480;

enum class ShmReach : uint32_t { kUndecided, kMapped, kStaged };
static_assert(std::atomic<ShmReach>::is_always_lock_free);

// In the shared memory. Decided once; then constant.
struct ShmDecision {
  std::atomic<ShmReach> reach;
  std::atomic<uint32_t> why_bytes;  // Length of `why`, once it has been written.
  char why[kShmReasonBytesMax];     // Why kStaged.

  // What all senders do: `wanted`, or what was decided before.
  ShmReach Decide(ShmReach wanted);
  void Explain(absl::string_view reason);
  std::string Why() const;
};

class PeerWindow {
 public:
  // `file` is the region's, and kept while the memory is mapped: it holds the lock that tells the
  // owner. `device` may be null: then nothing is mapped.
  // Errors: kUnavailable  the device's memory cannot be reached, and another sender has decided
  //                       that it is written there; or the owner destroys the region just now.
  static absl::StatusOr<PeerWindow> Open(const ShmDescriptor& descriptor, FileDescriptor file,
                                         DeviceMemory* device, ShmDecision& decision);
  PeerWindow() = default;

  // The data in the device's memory; null where it is staged.
  std::byte* mapped() const { return memory_.data(); }

  // Whether the process that allocated it has died: then CUDA says nothing of what writing does.
  // False where the kernel does not tell. Cost: a system call.
  bool OwnerIsGone() const;

 private:
  // Errors: kUnavailable  says why not.
  absl::Status Map(const ShmDescriptor& descriptor, DeviceMemory* device);

  FileDescriptor file_;   // Before memory_: that is closed first.
  FileDescriptor owner_;  // The process, as the kernel's file of it (pidfd).
  PeerMemory memory_;
};

}  // namespace lamina::transport
