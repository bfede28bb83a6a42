// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_descriptor.h"

#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "transport/descriptor_frame.h"

namespace lamina::transport {
namespace {

constexpr absl::string_view kMagic = "LMNASHM2";
constexpr size_t kBodyBytes = kShmDescriptorBytes - kDescriptorBodyAt;

void AppendHandle(std::string& body, const ShmDescriptor& descriptor) {
  AppendField(body, static_cast<uint32_t>(descriptor.handle.bytes.size()));
  AppendField(body, descriptor.handle.offset);
  body += descriptor.handle.bytes;
}

}  // namespace

std::string EncodeShmDescriptor(const ShmDescriptor& descriptor) {
  LAMINA_CHECK(descriptor.handle.bytes.size() <= kShmHandleBytesMax);
  std::string body;
  AppendField(body, descriptor.host);
  AppendField(body, descriptor.pid);
  AppendField(body, descriptor.fd);
  AppendField(body, descriptor.epoch);
  AppendField(body, descriptor.key);
  AppendField(body, descriptor.data_bytes);
  AppendField(body, descriptor.signal_words);
  AppendHandle(body, descriptor);
  return FrameDescriptor(kMagic, body);
}

absl::StatusOr<ShmDescriptor> DecodeShmDescriptor(absl::string_view bytes) {
  LAMINA_ASSIGN_OR_RETURN(absl::string_view rest, DescriptorBody("shm", kMagic, bytes));
  if (rest.size() < kBodyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shm: descriptor of ", bytes.size(), " bytes, expected at least ", kShmDescriptorBytes));
  }
  ShmDescriptor descriptor;
  TakeField(rest, descriptor.host);
  TakeField(rest, descriptor.pid);
  TakeField(rest, descriptor.fd);
  TakeField(rest, descriptor.epoch);
  TakeField(rest, descriptor.key);
  TakeField(rest, descriptor.data_bytes);
  TakeField(rest, descriptor.signal_words);
  uint32_t handle_bytes = 0;
  TakeField(rest, handle_bytes);
  TakeField(rest, descriptor.handle.offset);
  if (rest.size() != handle_bytes || handle_bytes > kShmHandleBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("shm: descriptor with a handle of ", rest.size(),
                                                   " bytes, expected ", handle_bytes, ", at most ",
                                                   kShmHandleBytesMax));
  }
  descriptor.handle.bytes = std::string(rest);
  return descriptor;
}

uint64_t ShmHandleChecksum(const ShmDescriptor& descriptor) {
  std::string fields;
  AppendHandle(fields, descriptor);
  return DescriptorChecksum(fields);
}

uint64_t HostFingerprint() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return file >> id ? DescriptorChecksum(id) : 0;
}

}  // namespace lamina::transport
