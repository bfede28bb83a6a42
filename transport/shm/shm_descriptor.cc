// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_descriptor.h"

#include <bit>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/descriptor_checksum.h"

namespace lamina::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "the form is little-endian");

constexpr absl::string_view kMagic = "LMNASHM1";
constexpr size_t kVersionAt = 7;
constexpr size_t kBodyAt = 16;

// Copies fields out of, or into, consecutive bytes.
template <typename T>
void Append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
void Take(absl::string_view& bytes, T& value) {
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
}

}  // namespace

std::string EncodeShmDescriptor(const ShmDescriptor& descriptor) {
  std::string body;
  body.reserve(kShmDescriptorBytes);
  Append(body, descriptor.host);
  Append(body, descriptor.pid);
  Append(body, descriptor.fd);
  Append(body, descriptor.epoch);
  Append(body, descriptor.key);
  Append(body, descriptor.data_bytes);
  Append(body, descriptor.signal_words);
  body.resize(kShmDescriptorBytes - kBodyAt, '\0');

  std::string bytes(kMagic);
  Append(bytes, DescriptorChecksum(body));
  return bytes + body;
}

absl::StatusOr<ShmDescriptor> DecodeShmDescriptor(absl::string_view bytes) {
  if (bytes.size() < kMagic.size() || bytes.substr(0, kVersionAt) != kMagic.substr(0, kVersionAt)) {
    return absl::InvalidArgumentError("shm: these bytes are not a descriptor of a shm:// region");
  }
  if (bytes[kVersionAt] != kMagic[kVersionAt]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shm: descriptor of version '", bytes.substr(kVersionAt, 1), "', this build reads '",
        kMagic.substr(kVersionAt), "': run one version of Lamina on all nodes"));
  }
  if (bytes.size() != kShmDescriptorBytes) {
    return absl::InvalidArgumentError(absl::StrCat("shm: descriptor of ", bytes.size(),
                                                   " bytes, expected ", kShmDescriptorBytes));
  }
  absl::string_view rest = bytes.substr(kMagic.size());
  uint64_t checksum = 0;
  Take(rest, checksum);
  if (checksum != DescriptorChecksum(rest)) {
    return absl::InvalidArgumentError("shm: descriptor damaged on its way: wrong checksum");
  }
  ShmDescriptor descriptor;
  Take(rest, descriptor.host);
  Take(rest, descriptor.pid);
  Take(rest, descriptor.fd);
  Take(rest, descriptor.epoch);
  Take(rest, descriptor.key);
  Take(rest, descriptor.data_bytes);
  Take(rest, descriptor.signal_words);
  return descriptor;
}

uint64_t HostFingerprint() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return file >> id ? DescriptorChecksum(id) : 0;
}

}  // namespace lamina::transport
