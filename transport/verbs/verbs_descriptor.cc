// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_descriptor.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "transport/descriptor_frame.h"

namespace lamina::transport {
namespace {

constexpr absl::string_view kMagic = "LMNAVRB3";
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
  uint32_t data_rkey;
  uint8_t addresses[kVerbsAddressesMax][16];
  uint64_t data_address;
  uint64_t device_words;
  uint8_t reserved[8];
};
static_assert(kDescriptorBodyAt + sizeof(Body) == kVerbsDescriptorBytes);

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
               .address_count = static_cast<uint16_t>(descriptor.addresses.size()),
               .data_rkey = descriptor.data_rkey,
               .data_address = descriptor.data_address,
               .device_words = descriptor.device_words};
  for (size_t i = 0; i < descriptor.addresses.size(); ++i) {
    std::memcpy(body.addresses[i], descriptor.addresses[i].data(), 16);
  }
  return FrameDescriptor(kMagic, {reinterpret_cast<const char*>(&body), sizeof body});
}

absl::StatusOr<VerbsDescriptor> DecodeVerbsDescriptor(absl::string_view bytes) {
  LAMINA_ASSIGN_OR_RETURN(absl::string_view rest, DescriptorBody("verbs", kMagic, bytes));
  Body body;
  if (rest.size() != sizeof body) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: descriptor of ", bytes.size(),
                                                   " bytes, expected ", kVerbsDescriptorBytes));
  }
  TakeField(rest, body);
  if (body.data_bytes > kVerbsDataBytesMax || body.signal_words > kSignalWordsMax ||
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
                                .tcp_port = body.tcp_port,
                                .data_rkey = body.data_rkey,
                                .data_address = body.data_address,
                                .device_words = body.device_words};
  descriptor.addresses.resize(body.address_count);
  for (size_t i = 0; i < descriptor.addresses.size(); ++i) {
    std::memcpy(descriptor.addresses[i].data(), body.addresses[i], 16);
  }
  return descriptor;
}

}  // namespace lamina::transport
