// SPDX-License-Identifier: Apache-2.0
//
// Errors that say whose they are. A node that reports one names the peer that it blames: the one it
// heard nothing from, or whose region or window was wrong. The status carries the name, so that the
// function that knows the peer is the only one that mentions it.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina::control {

// Returns the error blamed on `node`, or on nobody if that is empty. One that names a node already
// keeps it; OK stays OK.
absl::Status Blame(absl::Status status, absl::string_view node);

// Blames the node at `index` of `names`; nobody if there are fewer.
absl::Status Blame(absl::Status status, const std::vector<std::string>& names, size_t index);

// The node that the error is blamed on; empty: nobody.
std::string BlamedIn(const absl::Status& status);

}  // namespace lamina::control
