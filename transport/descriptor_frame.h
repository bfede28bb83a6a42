// SPDX-License-Identifier: Apache-2.0
//
// What the descriptors of all backends have in common: bytes that travel over the control plane.
//
//   bytes     field      little-endian
//   [0, 8)    magic      seven letters and a digit, the version of the form
//   [8, 16)   checksum   FNV-1a, 64 bits, of the body; it finds damage and mix-ups and is no
//                        signature
//   [16, ..)  body       the backend's fields, without gaps

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::transport {

static_assert(std::endian::native == std::endian::little, "the form is little-endian");

inline constexpr size_t kDescriptorBodyAt = 16;

// FNV-1a, 64 bits.
constexpr uint64_t DescriptorChecksum(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

// Requires: `magic` has 8 characters.
std::string FrameDescriptor(absl::string_view magic, absl::string_view body);

// The body, a view into `bytes`. `scheme` is named in messages.
// Errors: kInvalidArgument  another magic or version, or the checksum is wrong.
absl::StatusOr<absl::string_view> DescriptorBody(absl::string_view scheme, absl::string_view magic,
                                                 absl::string_view bytes);

template <typename T>
void AppendField(std::string& body, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  body.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// False where `body` is too short for it; then nothing is taken.
template <typename T>
bool TakeField(absl::string_view& body, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (body.size() < sizeof value) {
    return false;
  }
  std::memcpy(&value, body.data(), sizeof value);
  body.remove_prefix(sizeof value);
  return true;
}

}  // namespace lamina::transport
