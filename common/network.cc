// SPDX-License-Identifier: Apache-2.0
#include "common/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

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

constexpr AddressBytes kMappedIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};

// What Docker, Podman, libvirt and Kubernetes call what they put between guests of one host.
constexpr absl::string_view kBridges[] = {"docker", "br-", "veth", "virbr", "podman", "cni"};

// "10.1.2.3", "fd00::1".
std::string TextOf(const AddressBytes& address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, address.data(), text, sizeof(text));
  return std::string(absl::StripPrefix(text, "::ffff:"));
}

// The address that peers of other hosts may use; none of loopback and link-local ones.
std::optional<AddressBytes> AddressOf(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0 ||
      (entry.ifa_flags & IFF_LOOPBACK) != 0) {
    return std::nullopt;
  }
  AddressBytes address = kMappedIpv4;
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr;
    std::memcpy(address.data() + 12, &v4, sizeof(v4));
    return address;
  }
  if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
    std::memcpy(address.data(), &v6, sizeof(v6));
    return IN6_IS_ADDR_LINKLOCAL(&v6) ? std::nullopt : std::optional(address);
  }
  return std::nullopt;
}

// Lower is likelier to be reached.
int RankOf(const InterfaceAddress& candidate, absl::Span<const std::string> networks) {
  const std::string text = TextOf(candidate.address);
  const bool wanted =
      std::any_of(networks.begin(), networks.end(), [&](const std::string& network) {
        return candidate.interface == network || IsInNetwork(text, network);
      });
  const bool bridges = std::any_of(
      std::begin(kBridges), std::end(kBridges),
      [&](absl::string_view prefix) { return absl::StartsWith(candidate.interface, prefix); });
  return wanted ? 0 : bridges ? 2 : 1;
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

std::vector<InterfaceAddress> InterfaceAddresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) {
    return addresses;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(found, freeifaddrs);
  for (const ifaddrs* next = found; next != nullptr; next = next->ifa_next) {
    if (const std::optional<AddressBytes> address = AddressOf(*next)) {
      addresses.push_back({.interface = next->ifa_name, .address = *address});
    }
  }
  return addresses;
}

std::vector<AddressBytes> AddressesForPeers(std::vector<InterfaceAddress> addresses,
                                            absl::Span<const std::string> networks,
                                            size_t count_max) {
  std::stable_sort(addresses.begin(), addresses.end(),
                   [&](const InterfaceAddress& a, const InterfaceAddress& b) {
                     return RankOf(a, networks) < RankOf(b, networks);
                   });
  addresses.resize(std::min(addresses.size(), count_max));
  std::vector<AddressBytes> chosen;
  for (const InterfaceAddress& address : addresses) {
    chosen.push_back(address.address);
  }
  return chosen;
}

}  // namespace lamina
