// SPDX-License-Identifier: Apache-2.0
//
// UcxDescriptor: what a peer needs to open a region over UCX, as bytes that travel over the control
// plane.
//
//   bytes     field          little-endian
//   [0, 8)    magic          "LMNAUCX2"; the digit is the version of this form
//   [8, 16)   checksum       FNV-1a, 64 bits, of all bytes from 16 on
//   [16, 24)  epoch
//   [24, 40)  region         128 random bits
//   [40, 48)  address        of the first signal word, in the owner's memory
//   [48, 56)  data_bytes
//   [56, 60)  signal_words
//   [60, 68)  data_address   of the data
//   then, each as a 32-bit length and that many bytes: watch (PeerWatchAddress), worker (address of
//   UCX), key (packed remote key of UCX), data_key (the same, of data in a device's memory; else
//   empty, and `key` is that of the data too)

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::transport {

struct UcxDescriptor {
  uint64_t epoch = 0;
  std::array<uint64_t, 2> region = {};
  uint64_t address = 0;
  uint64_t data_bytes = 0;
  uint32_t signal_words = 0;
  uint64_t data_address = 0;
  std::string watch;
  std::string worker;
  std::string key;
  std::string data_key;

  friend bool operator==(const UcxDescriptor&, const UcxDescriptor&) = default;
};

std::string EncodeUcxDescriptor(const UcxDescriptor& descriptor);

// Errors: kInvalidArgument  another magic, version or length, an impossible size, or the checksum
// is
//                           wrong.
absl::StatusOr<UcxDescriptor> DecodeUcxDescriptor(absl::string_view bytes);

// Signal words lie first, one on each cache line, then the data.
inline constexpr size_t kUcxSignalStride = 64;
inline constexpr uint32_t kUcxSignalWordsMax = 1u << 20;
inline constexpr uint64_t kUcxDataBytesMax = uint64_t{1} << 46;
constexpr uint64_t UcxDataOffset(uint32_t signal_words) {
  return uint64_t{signal_words} * kUcxSignalStride;
}

}  // namespace lamina::transport
