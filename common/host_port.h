// SPDX-License-Identifier: Apache-2.0
//
// Addresses as users write them: 127.0.0.1:7400, example.org:443, [::1]:7400.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

struct HostPort {
  std::string host;  // Without brackets.
  uint16_t port = 0;
};

// None if `address` is not host:port with a port of 0 to 65535. An IPv6 address must be in
// brackets: else where its port begins could not be told.
std::optional<HostPort> ParseHostPort(absl::string_view address);

// `address` with another port; of one that is no host:port, the whole with it behind.
std::string WithPort(absl::string_view address, int port);

// Where a process of this host reaches who listens at `address`: 0.0.0.0 and [::], which are all
// addresses of both families, become 127.0.0.1.
std::string ReachedFromHere(absl::string_view address);

// Whether only processes of this host reach `host`, without brackets, by that name or address:
// localhost, 127.0.0.0/8 and ::1. Names are not looked up.
bool IsLoopback(absl::string_view host);

// Whether a client can connect to `address`: a host:port with a port from 1 on, or unix:path. gRPC
// takes more, and what lacks a port it tries for ever at that of HTTPS.
bool IsServerAddress(absl::string_view address);

}  // namespace lamina
