// SPDX-License-Identifier: Apache-2.0
//
// Whether a TCP port answers, and if not in which way: that tells a program that does not run from
// a firewall that drops, and both from a network that does not go there.

#pragma once

#include <cstdint>
#include <string>

#include "client/doctor/finding.h"
#include "common/clock.h"

namespace lamina::doctor {

enum class Reach : uint8_t {
  kReached,
  kRefused,     // The host answers: nobody listens at the port, or a firewall says no.
  kSilent,      // Nothing answers: a firewall drops, or the host is down.
  kNoRoute,     // This host, or one on the way, knows no way there.
  kNoSuchHost,  // The name has no address.
  kMalformed,   // Not HOST:PORT.
};

struct TcpReach {
  Reach reach = Reach::kMalformed;
  std::string message;  // The system's message; empty when reached.
  // Numeric, without ports, of the connection's two ends, when reached.
  std::string own_address;
  std::string peer_address;
};

// Connects to "HOST:PORT", or "[HOST]:PORT", and hangs up again. Takes `wait` at most for each
// address of the host, and what resolving its name takes.
TcpReach ReachTcp(const std::string& address, Nanos wait);

// What to say of a port that was not reached. `check` names the finding, `server` is the command
// that listens there.
Finding Unreached(const TcpReach& reach, State state, const std::string& check,
                  const std::string& address, const std::string& server);

}  // namespace lamina::doctor
