// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace lamina::doctor {
namespace {

uint32_t MtuOf(const char* name) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return 0;
  }
  ifreq request = {};
  std::strncpy(request.ifr_name, name, sizeof request.ifr_name - 1);
  const bool known = ioctl(fd, SIOCGIFMTU, &request) == 0;
  close(fd);
  return known ? static_cast<uint32_t>(request.ifr_mtu) : 0;
}

std::string Describe(const Interface& interface) {
  return interface.name.empty() ? "unknown (its address is translated on the way)"
                                : absl::StrCat(interface.mtu, " (", interface.name, ")");
}

}  // namespace

std::vector<Interface> ListInterfaces() {
  std::vector<Interface> interfaces;
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return interfaces;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    if ((one->ifa_flags & IFF_UP) == 0 || (family != AF_INET && family != AF_INET6)) {
      continue;
    }
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> text = {};
    if (getnameinfo(one->ifa_addr, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
        0) {
      interfaces.push_back(
          {.name = one->ifa_name, .address = text.data(), .mtu = MtuOf(one->ifa_name)});
    }
  }
  return interfaces;
}

Interface WithAddress(const std::vector<Interface>& interfaces, const std::string& address) {
  const auto found =
      std::find_if(interfaces.begin(), interfaces.end(),
                   [&](const Interface& interface) { return interface.address == address; });
  return found == interfaces.end() ? Interface{} : *found;
}

Finding CheckMtu(const Interface& here, const Interface& there) {
  Finding finding = {.check = "peer.mtu",
                     .found = absl::StrCat("here ", Describe(here), ", there ", Describe(there)),
                     .why =
                         "packets larger than the other end takes are lost; RDMA and TCP between "
                         "them stall or slow down"};
  if (!here.name.empty() && !there.name.empty() && here.mtu != there.mtu) {
    finding.state = State::kWarn;
    finding.fix = here.mtu < there.mtu
                      ? absl::StrCat("ip link set ", here.name, " mtu ", there.mtu, "   # here")
                      : absl::StrCat("ip link set ", there.name, " mtu ", here.mtu, "   # there");
  }
  return finding;
}

}  // namespace lamina::doctor
