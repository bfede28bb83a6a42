// SPDX-License-Identifier: Apache-2.0
//
// Which interface of this host belongs to a network, and at which of its addresses peers are to try
// it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina {

// Whether `address`, as inet_pton() takes it, lies in `network`: an address and the length of its
// prefix, "10.1.0.0/16". False where either is none, or they are of two families.
bool IsInNetwork(absl::string_view address, absl::string_view network);

// The name of the first interface that is up and has an address in `network`, or that is called so.
// Errors: kNotFound  there is none; names the addresses that there are.
absl::StatusOr<std::string> InterfaceOf(absl::string_view network);

// IPv6, or IPv4 mapped into it; in the network's order.
using AddressBytes = std::array<uint8_t, 16>;

struct InterfaceAddress {
  std::string interface;
  AddressBytes address = {};
};

// Addresses of the interfaces that are up, without loopback and link-local ones, as the system
// lists them. Empty where it lists none.
std::vector<InterfaceAddress> InterfaceAddresses();

// At most `count_max` of these, those first at which peers on other hosts are likeliest to reach
// this one: those of `networks`, each a network or the name of an interface (none if it is empty),
// then others, and last those of the bridges between containers of one host. Otherwise in the order
// in which they come.
std::vector<AddressBytes> AddressesForPeers(std::vector<InterfaceAddress> addresses,
                                            absl::Span<const std::string> networks,
                                            size_t count_max);

}  // namespace lamina
