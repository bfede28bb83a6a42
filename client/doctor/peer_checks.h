// SPDX-License-Identifier: Apache-2.0
//
// Checks between this host and another one, where `lamina doctor --serve` runs.

#pragma once

#include <string>
#include <vector>

#include "client/doctor/finding.h"
#include "common/cluster_secret.h"

namespace lamina::doctor {

struct PeerCheckOptions {
  std::string address;                  // HOST:PORT of the other doctor.
  std::vector<std::string> transports;  // Schemes, in the order of the cluster file.
  std::string version;                  // Version of this program.
  std::string ucx_uri = "ucx://";       // With this host's options.
  std::string verbs_uri = "verbs://";   // With this host's options.
  ClusterSecret secret = {};            // As the other doctor's.
};

// Whether it can be reached, and if not in which way; its version, how far its clock is off,
// whether the MTUs agree and large packets cross, and latency and bandwidth of each transport;
// which of them a cluster of both gets. What cannot be reached, or loses large packets, is not
// looked at further.
Findings CheckPeer(const PeerCheckOptions& options);

}  // namespace lamina::doctor
