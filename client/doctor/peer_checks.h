// SPDX-License-Identifier: Apache-2.0
//
// Checks between this host and another one, where `lamina doctor --serve` runs.

#pragma once

#include <string>
#include <vector>

#include "client/doctor/finding.h"

namespace lamina::doctor {

struct PeerCheckOptions {
  std::string address;                  // HOST:PORT of the other doctor.
  std::vector<std::string> transports;  // Schemes, in the order of the cluster file.
  std::string version;                  // Of this program.
  std::string verbs_uri = "verbs://";   // With this host's options.
};

// Whether it can be reached (nothing else is looked at when not), its version, how far its clock is
// off, and latency and bandwidth of each transport; which of them a cluster of both gets.
Findings CheckPeer(const PeerCheckOptions& options);

}  // namespace lamina::doctor
