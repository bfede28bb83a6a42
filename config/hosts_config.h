// SPDX-License-Identifier: Apache-2.0
//
// What a cluster file says of clusters of several hosts: certificates, where the programs are, and
// the network of the data.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lamina {

// PEM files. `ca` alone suits a process that only calls: clients, the gateway.
struct TlsConfig {
  std::string ca;           // Whose certificates are believed.
  std::string certificate;  // Of this process, with what lies between it and the CA.
  std::string key;

  // Whether gRPC is encrypted.
  bool is_set() const { return !ca.empty(); }
  friend bool operator==(const TlsConfig&, const TlsConfig&) = default;
};

// Of deploy/cluster.sh, for hosts that it starts nodes on.
struct BundleConfig {
  std::string dir;  // A bundle that is there already. Empty: it is copied to each host.

  friend bool operator==(const BundleConfig&, const BundleConfig&) = default;
};

// Errors: kInvalidArgument  a certificate without its key or the reverse, or either without `ca`.
absl::Status CheckTls(const TlsConfig& tls);

// Errors: kInvalidArgument  `network` is neither empty, nor an IPv4 or IPv6 address with the length
//                           of its prefix, nor the name of an interface.
absl::Status CheckNetwork(absl::string_view key, absl::string_view network);

}  // namespace lamina
