// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_descriptor.h"

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "transport/descriptor_frame.h"

namespace lamina::transport {
namespace {

constexpr absl::string_view kMagic = "LMNAUCX2";

void AppendString(std::string& body, const std::string& value) {
  AppendField(body, static_cast<uint32_t>(value.size()));
  body += value;
}

bool TakeString(absl::string_view& body, std::string& value) {
  uint32_t size = 0;
  if (!TakeField(body, size) || body.size() < size) {
    return false;
  }
  value.assign(body.data(), size);
  body.remove_prefix(size);
  return true;
}

}  // namespace

std::string EncodeUcxDescriptor(const UcxDescriptor& descriptor) {
  std::string body;
  AppendField(body, descriptor.epoch);
  AppendField(body, descriptor.region);
  AppendField(body, descriptor.address);
  AppendField(body, descriptor.data_bytes);
  AppendField(body, descriptor.signal_words);
  AppendField(body, descriptor.data_address);
  AppendString(body, descriptor.watch);
  AppendString(body, descriptor.worker);
  AppendString(body, descriptor.key);
  AppendString(body, descriptor.data_key);
  return FrameDescriptor(kMagic, body);
}

absl::StatusOr<UcxDescriptor> DecodeUcxDescriptor(absl::string_view bytes) {
  LAMINA_ASSIGN_OR_RETURN(absl::string_view rest, DescriptorBody("ucx", kMagic, bytes));
  UcxDescriptor descriptor;
  const bool whole =
      TakeField(rest, descriptor.epoch) && TakeField(rest, descriptor.region) &&
      TakeField(rest, descriptor.address) && TakeField(rest, descriptor.data_bytes) &&
      TakeField(rest, descriptor.signal_words) && TakeField(rest, descriptor.data_address) &&
      TakeString(rest, descriptor.watch) && TakeString(rest, descriptor.worker) &&
      TakeString(rest, descriptor.key) && TakeString(rest, descriptor.data_key) && rest.empty();
  if (!whole || descriptor.worker.empty() || descriptor.key.empty() ||
      descriptor.data_bytes > kUcxDataBytesMax || descriptor.signal_words > kUcxSignalWordsMax) {
    return absl::InvalidArgumentError("ucx: descriptor of an impossible form");
  }
  return descriptor;
}

}  // namespace lamina::transport
