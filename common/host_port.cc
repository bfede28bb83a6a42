// SPDX-License-Identifier: Apache-2.0
#include "common/host_port.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lamina {

std::optional<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) {
    return std::nullopt;
  }
  absl::string_view host = address.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) {
    host = host.substr(1, host.size() - 2);
  } else if (host.empty() || host.find_first_of(":[]") != absl::string_view::npos) {
    return std::nullopt;
  }
  const absl::string_view digits = address.substr(colon + 1);
  uint32_t port = 0;
  if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(digits, &port) || port > UINT16_MAX) {
    return std::nullopt;
  }
  return HostPort{.host = std::string(host), .port = static_cast<uint16_t>(port)};
}

std::string WithPort(absl::string_view address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

std::string ReachedFromHere(absl::string_view address) {
  const std::optional<HostPort> parsed = ParseHostPort(address);
  const bool everywhere = parsed.has_value() && (parsed->host == "0.0.0.0" || parsed->host == "::");
  return everywhere ? absl::StrCat("127.0.0.1:", parsed->port) : std::string(address);
}

bool IsLoopback(absl::string_view host) {
  const bool digits = std::all_of(host.begin(), host.end(),
                                  [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
  return host == "localhost" || host == "::1" || (digits && absl::StartsWith(host, "127."));
}

bool IsServerAddress(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) {
    return true;
  }
  const std::optional<HostPort> parsed = ParseHostPort(address);
  return parsed.has_value() && parsed->port != 0;
}

}  // namespace lamina
