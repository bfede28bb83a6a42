// SPDX-License-Identifier: Apache-2.0
//
// What UCX is told by variables, since it takes it in no other way: of which interface its data
// goes, and at which ports it listens. It reads them when it is first used; what the environment
// has already stays.
//
// Threading: before UCX is used, while no other thread reads the environment.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/port_range.h"

namespace lamina {

// Has UCX take data over the interface of `network` (common/network.h) alone, and listen at ports
// of `ports` alone. Empty, or not set: as UCX chooses. Returns the interface, empty for any.
// Errors: of InterfaceOf().
absl::StatusOr<std::string> KeepUcxTo(const std::string& network, const PortRange& ports);

}  // namespace lamina
