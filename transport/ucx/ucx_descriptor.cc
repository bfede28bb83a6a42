// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_descriptor.h"

#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/descriptor_checksum.h"

namespace lamina::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "the form is little-endian");

constexpr absl::string_view kMagic = "LMNAUCX1";
constexpr size_t kVersionAt = 7;

template <typename T>
void Append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void AppendString(std::string& bytes, const std::string& value) {
  Append(bytes, static_cast<uint32_t>(value.size()));
  bytes += value;
}

template <typename T>
bool Take(absl::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) {
    return false;
  }
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

bool TakeString(absl::string_view& bytes, std::string& value) {
  uint32_t size = 0;
  if (!Take(bytes, size) || bytes.size() < size) {
    return false;
  }
  value.assign(bytes.data(), size);
  bytes.remove_prefix(size);
  return true;
}

}  // namespace

std::string EncodeUcxDescriptor(const UcxDescriptor& descriptor) {
  std::string body;
  Append(body, descriptor.epoch);
  Append(body, descriptor.region);
  Append(body, descriptor.address);
  Append(body, descriptor.data_bytes);
  Append(body, descriptor.signal_words);
  AppendString(body, descriptor.watch);
  AppendString(body, descriptor.worker);
  AppendString(body, descriptor.key);
  std::string bytes(kMagic);
  Append(bytes, DescriptorChecksum(body));
  return bytes + body;
}

absl::StatusOr<UcxDescriptor> DecodeUcxDescriptor(absl::string_view bytes) {
  if (bytes.size() < kMagic.size() || bytes.substr(0, kVersionAt) != kMagic.substr(0, kVersionAt)) {
    return absl::InvalidArgumentError("ucx: these bytes are not a descriptor of a ucx:// region");
  }
  if (bytes[kVersionAt] != kMagic[kVersionAt]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ucx: descriptor of version '", bytes.substr(kVersionAt, 1), "', this build reads '",
        kMagic.substr(kVersionAt), "': run one version of Lamina on all nodes"));
  }
  absl::string_view rest = bytes.substr(kMagic.size());
  uint64_t checksum = 0;
  if (!Take(rest, checksum) || checksum != DescriptorChecksum(rest)) {
    return absl::InvalidArgumentError("ucx: descriptor damaged on its way: wrong checksum");
  }
  UcxDescriptor descriptor;
  const bool whole = Take(rest, descriptor.epoch) && Take(rest, descriptor.region) &&
                     Take(rest, descriptor.address) && Take(rest, descriptor.data_bytes) &&
                     Take(rest, descriptor.signal_words) && TakeString(rest, descriptor.watch) &&
                     TakeString(rest, descriptor.worker) && TakeString(rest, descriptor.key) &&
                     rest.empty();
  if (!whole || descriptor.worker.empty() || descriptor.key.empty() ||
      descriptor.data_bytes > kUcxDataBytesMax || descriptor.signal_words > kUcxSignalWordsMax) {
    return absl::InvalidArgumentError("ucx: descriptor of an impossible form");
  }
  return descriptor;
}

}  // namespace lamina::transport
