// SPDX-License-Identifier: Apache-2.0
//
// The backends, found by URI scheme.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cluster_secret.h"
#include "common/device_memory.h"
#include "transport/transport.h"

namespace lamina::transport {

// Makes the backend that `uri` names: "shm://", "ucx://", "fake://NAME"; or one behind a decorator:
// "throttle(bandwidth=1GiB,latency=20us)+shm://", see decorators/link_model.h.
//
// With `device`, which outlives it, regions and sources may lie in its memory: registered as the
// backend can, else through staging buffers (staging/device_transport.h), and Region::memory() says
// which.
//
// Peers that open its regions, and whose regions it opens, prove that they know `secret` where the
// backend has a handshake of its own (ucx, verbs); docs/security.md says what guards the others.
//
// Errors: kInvalidArgument  unknown scheme; lists the known ones and names the nearest.
//         kUnimplemented    a known scheme that this build lacks; says how to get it.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(absl::string_view uri,
                                                         DeviceMemory* device = nullptr,
                                                         const ClusterSecret& secret = {});

// Schemes that MakeTransport can make in this build.
std::vector<std::string> BuiltTransports();

}  // namespace lamina::transport
