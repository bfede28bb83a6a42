// SPDX-License-Identifier: Apache-2.0
//
// Errors that say: this transport does not work here. The coordinator answers one with the next
// transport of the cluster file's list, where any other error is the node's.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina::control {

// The same error, marked; `peer` names the node that it happened with, if it was one. OK stays OK.
absl::Status TransportFault(absl::Status status, absl::string_view peer = "");
// With the node at `index` of `peers`; with nobody if there are fewer.
absl::Status TransportFault(absl::Status status, const std::vector<std::string>& peers,
                            size_t index);

bool IsTransportFault(const absl::Status& status);
// Of a marked error; empty if there is none.
std::string PeerOf(const absl::Status& status);

}  // namespace lamina::control
