// SPDX-License-Identifier: Apache-2.0
//
// What a cluster file says of clusters of several hosts: where the programs are, and the network of
// the data.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina {

// What deploy/cluster.sh takes to the hosts that it starts nodes on.
struct BundleConfig {
  std::string dir;  // A bundle that is there already. Empty: it is copied to each host.

  friend bool operator==(const BundleConfig&, const BundleConfig&) = default;
};

// Errors: kInvalidArgument  `network` is neither empty, nor an IPv4 or IPv6 address with the length
//                           of its prefix, nor the name of an interface.
absl::Status CheckNetwork(absl::string_view key, absl::string_view network);

}  // namespace lamina
