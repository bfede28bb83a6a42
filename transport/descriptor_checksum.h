// SPDX-License-Identifier: Apache-2.0
//
// The checksum of every backend's descriptors. It finds damage and mix-ups; it is no signature.

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina::transport {

// FNV-1a, 64 bits.
constexpr uint64_t DescriptorChecksum(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace lamina::transport
