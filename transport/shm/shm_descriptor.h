// SPDX-License-Identifier: Apache-2.0
//
// ShmDescriptor: what a peer needs to open a region, as 80 bytes that travel over the control
// plane, and the handle of a device's memory behind them.
//
//   bytes     field          little-endian
//   [0, 8)    magic          "LMNASHM2"; the digit is the version of this form
//   [8, 16)   checksum       FNV-1a, 64 bits, of the bytes from 16 on
//   [16, 24)  host           hash of the host's boot id
//   [24, 28)  pid            of the owner, as its /proc shows it
//   [28, 32)  fd             of the owner
//   [32, 40)  epoch
//   [40, 56)  key            128 random bits, also in the region's header
//   [56, 64)  data_bytes
//   [64, 68)  signal_words
//   [68, 72)  handle_bytes   0 where the data lies in the host's memory; at most 256
//   [72, 80)  handle_offset  of the data in the allocation that the handle names
//   [80, ..)  handle         see PeerHandle in common/device_memory.h

#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/device_memory.h"

namespace lamina::transport {

inline constexpr size_t kShmDescriptorBytes = 80;  // Without a handle.
inline constexpr size_t kShmHandleBytesMax = 256;

struct ShmDescriptor {
  uint64_t host = 0;
  uint32_t pid = 0;
  uint32_t fd = 0;
  uint64_t epoch = 0;
  std::array<uint64_t, 2> key = {};
  uint64_t data_bytes = 0;
  uint32_t signal_words = 0;
  PeerHandle handle;

  bool on_device() const { return !handle.bytes.empty(); }

  friend bool operator==(const ShmDescriptor&, const ShmDescriptor&) = default;
};

// Requires: a handle of at most kShmHandleBytesMax.
std::string EncodeShmDescriptor(const ShmDescriptor& descriptor);

// Errors: kInvalidArgument  another length, magic or version, or the checksum is wrong.
absl::StatusOr<ShmDescriptor> DecodeShmDescriptor(absl::string_view bytes);

// Covers the fields that say where a device's memory is.
uint64_t ShmHandleChecksum(const ShmDescriptor& descriptor);

// Identifies this boot of this host. 0 where the kernel does not tell.
uint64_t HostFingerprint();

}  // namespace lamina::transport
