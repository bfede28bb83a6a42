// SPDX-License-Identifier: Apache-2.0
#include "common/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lamina {
namespace {

// Bytes of an address in the network's order; none if it is none.
std::optional<std::vector<uint8_t>> Parse(absl::string_view text) {
  const std::string address(text);
  for (const auto& [family, size] :
       {std::pair(AF_INET, size_t{4}), std::pair(AF_INET6, size_t{16})}) {
    std::vector<uint8_t> bytes(size);
    if (inet_pton(family, address.c_str(), bytes.data()) == 1) {
      return bytes;
    }
  }
  return std::nullopt;
}

std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address != nullptr && address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  }
  return text;
}

}  // namespace

bool IsInNetwork(absl::string_view address, absl::string_view network) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(network, absl::MaxSplits('/', 1));
  const auto base = Parse(parts.first);
  const auto own = Parse(address);
  uint32_t bits = 0;
  if (!base.has_value() || !own.has_value() || base->size() != own->size() ||
      !absl::SimpleAtoi(parts.second, &bits) || bits > 8 * base->size()) {
    return false;
  }
  const uint32_t whole = bits / 8;
  const auto mask = static_cast<uint8_t>(0xff00U >> bits % 8);
  return std::memcmp(base->data(), own->data(), whole) == 0 &&
         (bits % 8 == 0 || ((*base)[whole] & mask) == ((*own)[whole] & mask));
}

absl::StatusOr<std::string> InterfaceOf(absl::string_view network) {
  ifaddrs* found = nullptr;
  getifaddrs(&found);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(found, freeifaddrs);
  std::vector<std::string> there;
  for (const ifaddrs* next = found; next != nullptr; next = next->ifa_next) {
    const std::string address = TextOf(next->ifa_addr);
    if ((next->ifa_flags & IFF_UP) == 0 || address.empty()) {
      continue;
    }
    if (next->ifa_name == network || IsInNetwork(address, network)) {
      return std::string(next->ifa_name);
    }
    there.push_back(absl::StrCat(next->ifa_name, " ", address));
  }
  return absl::NotFoundError(absl::StrCat("network: no interface of this host that is up is ",
                                          network, "; there are: ", absl::StrJoin(there, ", ")));
}

}  // namespace lamina
