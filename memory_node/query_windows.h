// SPDX-License-Identifier: Apache-2.0
//
// Where a memory node's query windows lie in an epoch: the host's memory, or its device's.
// See: docs/adr/0086-query-windows-in-device-memory.md.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/cluster_secret.h"
#include "common/device_memory.h"
#include "common/window_place.h"
#include "control/node_handler.h"
#include "transport/memory_choice.h"
#include "transport/transport.h"

namespace lamina::memory_node {

struct QueryWindowOptions {
  std::string node;
  std::string transport_uri;
  ClusterSecret secret = {};       // For the transport.
  DeviceMemory* memory = nullptr;  // The device's; null where it has none. Outlives the result.
  WindowPlace place = WindowPlace::kAuto;
  bool device_waits = false;  // The device is to wait for windows itself, where it can.
};

struct QueryWindows {
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Region> region;
  transport::MemoryChoice memory;  // With kAuto, also why not the device's.

  bool on_device() const { return memory.path != transport::MemoryPath::kHost; }
};

// Makes the transport of the epoch, and the region. Where the device is to wait for windows itself,
// they lie in its memory if the transport lets it poll there; else kAuto leaves them in the host's,
// if the device can wait for these.
// Errors: those of MakeTransport() and CreateRegion(); kFailedPrecondition  kDevice, and the
//         transport does not reach its memory: says what was looked for, and what helps.
absl::StatusOr<QueryWindows> MakeQueryWindows(const plan::EpochConfig& config,
                                              const QueryWindowOptions& options);

}  // namespace lamina::memory_node
