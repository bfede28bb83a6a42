// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_descriptor.h"

#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "transport/descriptor_checksum.h"

namespace lamina::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "the form is little-endian");

constexpr absl::string_view kMagic = "LMNAVRB1";
constexpr size_t kVersionAt = 7;
constexpr uint64_t kDataBytesMax = uint64_t{1} << 46;
constexpr uint32_t kSignalWordsMax = 1u << 20;

struct Body {
  uint64_t host;
  uint64_t owner[2];
  uint64_t region;
  uint64_t epoch;
  uint64_t data_bytes;
  uint64_t address;
  uint32_t rkey;
  uint32_t signal_words;
  uint16_t tcp_port;
  uint16_t address_count;
  uint32_t zero;
  uint8_t addresses[kVerbsAddressesMax][16];
  uint8_t reserved[24];
};
static_assert(sizeof(Body) + 16 == kVerbsDescriptorBytes);

}  // namespace

std::string EncodeVerbsDescriptor(const VerbsDescriptor& descriptor) {
  LAMINA_CHECK(descriptor.addresses.size() <= kVerbsAddressesMax);
  Body body = {.host = descriptor.host,
               .owner = {descriptor.owner[0], descriptor.owner[1]},
               .region = descriptor.region,
               .epoch = descriptor.epoch,
               .data_bytes = descriptor.data_bytes,
               .address = descriptor.address,
               .rkey = descriptor.rkey,
               .signal_words = descriptor.signal_words,
               .tcp_port = descriptor.tcp_port,
               .address_count = static_cast<uint16_t>(descriptor.addresses.size())};
  for (size_t i = 0; i < descriptor.addresses.size(); ++i) {
    std::memcpy(body.addresses[i], descriptor.addresses[i].data(), 16);
  }
  const absl::string_view bytes(reinterpret_cast<const char*>(&body), sizeof body);
  const uint64_t checksum = DescriptorChecksum(bytes);
  return absl::StrCat(kMagic, absl::string_view(reinterpret_cast<const char*>(&checksum), 8),
                      bytes);
}

absl::StatusOr<VerbsDescriptor> DecodeVerbsDescriptor(absl::string_view bytes) {
  if (bytes.size() < kMagic.size() || bytes.substr(0, kVersionAt) != kMagic.substr(0, kVersionAt)) {
    return absl::InvalidArgumentError(
        "verbs: these bytes are not a descriptor of a verbs:// region");
  }
  if (bytes[kVersionAt] != kMagic[kVersionAt]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "verbs: descriptor of version '", bytes.substr(kVersionAt, 1), "', this build reads '",
        kMagic.substr(kVersionAt), "': run one version of Lamina on all nodes"));
  }
  if (bytes.size() != kVerbsDescriptorBytes) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: descriptor of ", bytes.size(),
                                                   " bytes, expected ", kVerbsDescriptorBytes));
  }
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + kMagic.size(), sizeof checksum);
  const absl::string_view rest = bytes.substr(kMagic.size() + sizeof checksum);
  if (checksum != DescriptorChecksum(rest)) {
    return absl::InvalidArgumentError("verbs: descriptor damaged on its way: wrong checksum");
  }
  Body body;
  std::memcpy(&body, rest.data(), sizeof body);
  if (body.data_bytes > kDataBytesMax || body.signal_words > kSignalWordsMax ||
      body.address_count > kVerbsAddressesMax) {
    return absl::InvalidArgumentError("verbs: descriptor of an impossible size");
  }
  VerbsDescriptor descriptor = {.host = body.host,
                                .owner = {body.owner[0], body.owner[1]},
                                .region = body.region,
                                .epoch = body.epoch,
                                .data_bytes = body.data_bytes,
                                .address = body.address,
                                .rkey = body.rkey,
                                .signal_words = body.signal_words,
                                .tcp_port = body.tcp_port};
  descriptor.addresses.resize(body.address_count);
  for (size_t i = 0; i < descriptor.addresses.size(); ++i) {
    std::memcpy(descriptor.addresses[i].data(), body.addresses[i], 16);
  }
  return descriptor;
}

}  // namespace lamina::transport
