// SPDX-License-Identifier: Apache-2.0
#include "config/hosts_config.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lamina {
namespace {

constexpr size_t kInterfaceBytesMax = 15;  // Linux's IFNAMSIZ without its end.

bool IsPrefix(absl::string_view network) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(network, absl::MaxSplits('/', 1));
  unsigned char bytes[sizeof(in6_addr)];
  uint32_t bits = 0;
  if (!absl::SimpleAtoi(parts.second, &bits)) {
    return false;
  }
  return (inet_pton(AF_INET, parts.first.c_str(), bytes) == 1 && bits <= 32) ||
         (inet_pton(AF_INET6, parts.first.c_str(), bytes) == 1 && bits <= 128);
}

bool IsInterface(absl::string_view network) {
  return network.size() <= kInterfaceBytesMax &&
         std::all_of(network.begin(), network.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' || c == '@';
         });
}

}  // namespace

absl::Status CheckNetwork(absl::string_view key, absl::string_view network) {
  if (network.empty() || IsPrefix(network) || IsInterface(network)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(key, ": '", network, "' is not a network like 10.1.0.0/16, nor an interface"));
}

}  // namespace lamina
