// SPDX-License-Identifier: Apache-2.0
//
// The network interfaces of this host, by address, and whether the MTUs of two hosts agree.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/doctor/finding.h"

namespace lamina::doctor {

struct Interface {
  std::string name;
  std::string address;  // Numeric.
  uint32_t mtu = 0;     // Bytes.
};

// One for each address of each interface that is up.
std::vector<Interface> ListInterfaces();

// The interface with an address; one without a name where none has it (a translated address).
Interface WithAddress(const std::vector<Interface>& interfaces, const std::string& address);

// What the MTUs of the two ends of a connection mean. Pure.
Finding CheckMtu(const Interface& here, const Interface& there);

}  // namespace lamina::doctor
