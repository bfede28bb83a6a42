// SPDX-License-Identifier: Apache-2.0
//
// What regions have to do with devices: DeviceRegion, for data that lies in a device's memory, and
// DirectMemory, for data in the host's that a device uses by itself.
//
// Threading: as Region's.

#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/landings.h"
#include "common/outbox.h"
#include "transport/memory_choice.h"

namespace lamina::transport {

// Where a device of this process has a region: an own one, which it reads and polls, or a peer's,
// which it writes and raises. Empty where the transport alone may move its data. Valid as long as
// the Region or RemoteRegion that gave it.
//
// Bytes and words outside `pages` are addresses of the device's own memory: a region that is
// polled_by_device has its bytes there, and its words too, if the device orders the writes of NICs.
//
// With an `outbox` it is not the peer's memory but a copy of its places: whoever writes there has
// announced it, and a proxy sends it (common/outbox.h). Without one it is shared with the peer.
//
// Word w is a uint64_t at words + w * word_stride, 8-byte aligned and changed as a whole. Who
// raises words this way keeps the rules of signals: one sender a word, values that only grow, the
// data first (release order of the system's scope). The word may go on to be raised by Put(), with
// greater values. No sleeper is woken: waiters look at least every millisecond, those on a region
// that is written_by_devices sooner. Who waits this way looks by acquire loads of the system's
// scope.
struct DirectMemory {
  absl::Span<std::byte> bytes;  // The data, as Region::bytes().
  std::byte* words = nullptr;
  size_t word_stride = 0;
  absl::Span<std::byte> pages;   // Whole pages of the host that hold what is the host's of it: what
                                 // to register.
  Outbox* outbox = nullptr;      // A peer's region may have one.
  Landings* landings = nullptr;  // An own region has one where a thread raises its words.

  bool empty() const { return words == nullptr; }
};

// A Region of MemoryKind::kDevice. Its signals say that data has come; Land() brings the data the
// last step.
class DeviceRegion {
 public:
  virtual ~DeviceRegion() = default;

  // Whose memory it is, and how the network reaches it. Over shm:// it may get worse once, when the
  // first peer opens the region.
  virtual MemoryChoice memory() const = 0;

  // Makes what visible signals cover in [offset, offset + bytes) visible to work that the device is
  // given from now on. Called by the thread that waits.
  // Errors: kInternal  the device failed.
  // Cost:   staging: a copy of the range to the device; else what the device asks for a flush.
  // Requires: the range lies in the Region.
  virtual absl::Status Land(size_t offset, size_t bytes) const = 0;
};

}  // namespace lamina::transport
