// SPDX-License-Identifier: Apache-2.0
//
// Addresses and flags as they stand in a command that is printed here and typed on another host.

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lamina::cli {

// Empty where the system tells none.
std::string ThisHostsName();

// Where `host` finds the server that this host, called `this_host`, reaches at `server`: a loopback
// address is of no use elsewhere, and HOST_OF_THE_COORDINATOR stands in its place.
std::string ServerSeenFrom(absl::string_view host, absl::string_view this_host,
                           const std::string& server);

// `address` that a program of `this_host` listens at, as other hosts connect to it: by the host's
// name where it is all addresses, 0.0.0.0 or [::].
std::string ListenerSeenFromElsewhere(const std::string& address, absl::string_view this_host);

// " --cluster-token-file FILE", as a shell takes it; empty without a file.
std::string TokenFlag(absl::string_view token_file);

}  // namespace lamina::cli
