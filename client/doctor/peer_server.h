// SPDX-License-Identifier: Apache-2.0
//
// PeerServer: the end of `lamina doctor --serve` of checks between two hosts. It tells version and
// clock, and is the other end of links by any transport of this build, one at a time.
//
// Threading: gRPC's own threads; one more answers while a link is open.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/doctor/interfaces.h"
#include "common/cluster_secret.h"
#include "common/port_range.h"

namespace lamina::doctor {

struct PeerServerOptions {
  std::string listen;  // HOST:PORT; port 0 picks one.
  std::string version;
  std::string ucx_uri = "ucx://";       // With this host's options.
  std::string verbs_uri = "verbs://";   // With this host's options.
  PortRange ports = {};                 // Ports to pick from for port 0.
  std::function<int64_t()> unix_nanos;  // This host's clock.
  std::vector<Interface> interfaces;    // Interfaces of this host.
  ClusterSecret secret = {};            // Links are opened for those who prove that they know it.
};

class PeerServer {
 public:
  // Errors: kUnavailable         it cannot listen there.
  //         kFailedPrecondition  that is not this host's loopback, and there is no secret.
  static absl::StatusOr<std::unique_ptr<PeerServer>> Start(const PeerServerOptions& options);
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  const std::string& address() const { return address_; }  // With the port that was picked.

 private:
  struct Impl;

  PeerServer();
  static absl::StatusOr<std::unique_ptr<PeerServer>> StartAt(const std::string& listen,
                                                             const PeerServerOptions& options);

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

// Nanoseconds since 1970.
int64_t UnixNanos();

}  // namespace lamina::doctor
