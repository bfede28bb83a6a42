// SPDX-License-Identifier: Apache-2.0
//
// Errors that say: this transport does not work here. The coordinator answers one with the next
// transport of the cluster file's list, where any other error is the node's.

#pragma once

#include "absl/status/status.h"

namespace lamina::control {

// Returns the error, marked. OK stays OK.
absl::Status TransportFault(absl::Status status);

bool IsTransportFault(const absl::Status& status);

}  // namespace lamina::control
