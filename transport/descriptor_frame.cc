// SPDX-License-Identifier: Apache-2.0
#include "transport/descriptor_frame.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::transport {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kVersionAt = 7;

}  // namespace

std::string FrameDescriptor(absl::string_view magic, absl::string_view body) {
  LAMINA_CHECK(magic.size() == kMagicBytes);
  std::string bytes(magic);
  AppendField(bytes, DescriptorChecksum(body));
  return absl::StrCat(bytes, body);
}

absl::StatusOr<absl::string_view> DescriptorBody(absl::string_view scheme, absl::string_view magic,
                                                 absl::string_view bytes) {
  if (bytes.size() < kMagicBytes || bytes.substr(0, kVersionAt) != magic.substr(0, kVersionAt)) {
    return absl::InvalidArgumentError(
        absl::StrCat(scheme, ": these bytes are not a descriptor of a ", scheme, ":// region"));
  }
  if (bytes[kVersionAt] != magic[kVersionAt]) {
    return absl::InvalidArgumentError(absl::StrCat(
        scheme, ": descriptor of version '", bytes.substr(kVersionAt, 1), "', this build reads '",
        magic.substr(kVersionAt), "': run one version of Lamina on all nodes"));
  }
  absl::string_view body = bytes.substr(kMagicBytes);
  uint64_t checksum = 0;
  if (!TakeField(body, checksum) || checksum != DescriptorChecksum(body)) {
    return absl::InvalidArgumentError(
        absl::StrCat(scheme, ": descriptor damaged on its way: wrong checksum"));
  }
  return body;
}

}  // namespace lamina::transport
