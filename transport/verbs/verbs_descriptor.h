// SPDX-License-Identifier: Apache-2.0
//
// VerbsDescriptor: what a peer needs to open a region, as 240 bytes that travel over the control
// plane.
//
//   bytes       field          little-endian
//   [0, 8)      magic          "LMNAVRB3"; the digit is the version of this form
//   [8, 16)     checksum       FNV-1a, 64 bits, of bytes [16, 240)
//   [16, 24)    host           hash of the host's boot id
//   [24, 40)    owner          128 random bits of the owner's Transport
//   [40, 48)    region         number, unique to the owner
//   [48, 56)    epoch
//   [56, 64)    data_bytes
//   [64, 72)    address        of the first signal word, at the owner
//   [72, 76)    rkey           of the signal words
//   [76, 80)    signal_words
//   [80, 82)    tcp_port       where the owner listens
//   [82, 84)    address_count  0 to 8
//   [84, 88)    data_rkey
//   [88, 216)   addresses      16 bytes each, IPv6 or mapped IPv4, network order
//   [216, 224)  data_address   at the owner; its device's, if the data lies in a device's memory
//   [224, 232)  device_words   of words in that memory, data_rkey's, which are raised too, in front
//   of
//                              the others; 0: there are none
//   [232, 240)  zero

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::transport {

inline constexpr size_t kVerbsDescriptorBytes = 240;
inline constexpr size_t kVerbsAddressesMax = 8;
inline constexpr uint64_t kVerbsDataBytesMax = uint64_t{1} << 46;

struct VerbsDescriptor {
  uint64_t host = 0;
  std::array<uint64_t, 2> owner = {};
  uint64_t region = 0;
  uint64_t epoch = 0;
  uint64_t data_bytes = 0;
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t signal_words = 0;
  uint16_t tcp_port = 0;
  uint32_t data_rkey = 0;
  uint64_t data_address = 0;
  uint64_t device_words = 0;
  std::vector<std::array<uint8_t, 16>> addresses;

  friend bool operator==(const VerbsDescriptor&, const VerbsDescriptor&) = default;
};

// Requires: at most kVerbsAddressesMax addresses.
std::string EncodeVerbsDescriptor(const VerbsDescriptor& descriptor);

// Errors: kInvalidArgument  another length, magic or version, the checksum is wrong, or a size that
//                           no region has.
absl::StatusOr<VerbsDescriptor> DecodeVerbsDescriptor(absl::string_view bytes);

}  // namespace lamina::transport
