// SPDX-License-Identifier: Apache-2.0
#include "tests/support/listening_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

namespace lamina::test_support {
namespace {

constexpr int kDescriptorsMax = 4096;

}  // namespace

std::vector<std::string> ListeningAddresses() {
  std::vector<std::string> found;
  for (int fd = 0; fd < kDescriptorsMax; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_storage at = {};
    socklen_t at_size = sizeof at;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&at), &at_size) != 0) {
      continue;
    }
    std::array<char, INET6_ADDRSTRLEN> text = {};
    if (at.ss_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(at).sin_addr, text.data(),
                text.size());
    } else if (at.ss_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(at).sin6_addr, text.data(),
                text.size());
    }
    found.emplace_back(text.data());
  }
  return found;
}

}  // namespace lamina::test_support
