// SPDX-License-Identifier: Apache-2.0
//
// What compute nodes take of their devices' memory, for people.

#pragma once

#include <string>
#include <vector>

#include "client/client.h"

namespace lamina::cli {

// "c0 weights 1.0 GiB, windows ...: 1.2 GiB of 2.0 GiB", a line for each compute node, where memory
// is what the cluster's policy is about, or has a bound. Else none. Behind it, where K and V come
// to the node, what the formula of the policy's paper says of it.
std::vector<std::string> MemoryLines(const client::ClusterStatus& status);

}  // namespace lamina::cli
