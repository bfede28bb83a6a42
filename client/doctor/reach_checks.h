// SPDX-License-Identifier: Apache-2.0
//
// Checks that try things: each transport, between two ends in this process, the token file, and the
// coordinator.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/doctor/finding.h"
#include "common/clock.h"

namespace lamina::doctor {

// Where a list of transports is from: a cluster file wants them all, and that this build has one
// says not that anybody does.
enum class TransportsOf : uint8_t { kClusterFile, kBuild };

// Latency and bandwidth of each scheme of `transports`, like {"shm", "verbs"}, and which of them a
// cluster file with this list gets. Takes twice `each` for every one that works.
Findings CheckTransports(const std::vector<std::string>& transports, Nanos each,
                         TransportsOf of = TransportsOf::kClusterFile);

// Whether a coordinator answers, and is of `version`. `server` is "HOST:PORT". It is asked over TLS
// where `tls_ca` names the file of its CA.
Findings CheckCoordinator(const std::string& server, const std::string& version,
                          const std::string& tls_ca = "");

// Whether the coordinator of a cluster file can serve at `listen` with the secret in `token_file`,
// which is empty where the file names none.
Finding CheckSecret(const std::string& token_file, const std::string& listen);

}  // namespace lamina::doctor
