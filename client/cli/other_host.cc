// SPDX-License-Identifier: Apache-2.0
#include "client/cli/other_host.h"

#include <unistd.h>

#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/host_port.h"

namespace lamina::cli {

std::string ThisHostsName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string ServerSeenFrom(absl::string_view host, absl::string_view this_host,
                           const std::string& server) {
  const std::optional<HostPort> address = ParseHostPort(server);
  const bool elsewhere = !IsLoopback(host) && host != this_host;
  if (!elsewhere || (address.has_value() && !IsLoopback(address->host))) {
    return server;
  }
  return absl::StrCat("HOST_OF_THE_COORDINATOR:",
                      address.has_value() ? absl::StrCat(address->port) : "PORT");
}

std::string ListenerSeenFromElsewhere(const std::string& address, absl::string_view this_host) {
  const std::optional<HostPort> parsed = ParseHostPort(address);
  if (!parsed.has_value() || (parsed->host != "0.0.0.0" && parsed->host != "::") ||
      this_host.empty()) {
    return address;
  }
  return absl::StrCat(this_host, ":", parsed->port);
}

std::string TokenFlag(absl::string_view token_file) {
  if (token_file.empty()) {
    return "";
  }
  const bool plain = token_file.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyz"
                         "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789_-./") == absl::string_view::npos;
  return plain ? absl::StrCat(" --cluster-token-file ", token_file)
               : absl::StrCat(" --cluster-token-file '",
                              absl::StrReplaceAll(token_file, {{"'", "'\\''"}}), "'");
}

}  // namespace lamina::cli
