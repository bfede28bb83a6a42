// SPDX-License-Identifier: Apache-2.0
//
// Which interface of this host belongs to a network.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina {

// Whether `address`, as inet_pton() takes it, lies in `network`: an address and the length of its
// prefix, "10.1.0.0/16". False where either is none, or they are of two families.
bool IsInNetwork(absl::string_view address, absl::string_view network);

// The name of the first interface that is up and has an address in `network`, or that is called so.
// Errors: kNotFound  there is none; names the addresses that there are.
absl::StatusOr<std::string> InterfaceOf(absl::string_view network);

}  // namespace lamina
