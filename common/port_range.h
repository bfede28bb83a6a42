// SPDX-License-Identifier: Apache-2.0
//
// PortRange: the TCP ports that a firewall lets through, "23000-23099". Where the system would pick
// a port (port 0), one of these is taken instead.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/host_port.h"

namespace lamina {

struct PortRange {
  uint16_t first = 0;  // 0: no range; the system picks.
  uint16_t last = 0;   // The last one of them.

  bool is_set() const { return first != 0; }
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

// "23000-23099", or one port. Errors: kInvalidArgument  it is neither, or not from 1 to 65535.
absl::StatusOr<PortRange> ParsePortRange(absl::string_view text);

std::string ToString(const PortRange& range);

// Calls `bind` with ports of the range, or with 0 where it is not set, until it returns true.
// Returns whether it did.
template <typename Bind>
bool BindWithin(const PortRange& range, Bind bind) {
  for (uint32_t port = range.first; port <= range.last; ++port) {
    if (bind(static_cast<uint16_t>(port))) {
      return true;
    }
  }
  return false;
}

// The result of `open`, a status or StatusOr, for the address `listen`; of port 0 with the ports of
// the range instead, until one is free. An address at which the system finds no port either is
// tried no further.
template <typename Open>
auto OpenWithin(const PortRange& range, const std::string& listen, Open open) {
  auto opened = open(listen);
  const std::optional<HostPort> at = ParseHostPort(listen);
  if (!opened.ok() || !range.is_set() || !at.has_value() || at->port != 0) {
    return opened;
  }
  BindWithin(range, [&](uint16_t port) {
    opened = open(WithPort(listen, port));
    return opened.ok();
  });
  return opened;
}

}  // namespace lamina
