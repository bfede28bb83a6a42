// SPDX-License-Identifier: Apache-2.0
//
// The windows of a compute node, which peers write: where they lie in an epoch, and how the
// processor reads them. They lie in the memory of the node's device where that is to wait for them
// itself and polls there; else in the host's.
// See: docs/adr/0183-devices-wait-over-networks.md.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/cluster_secret.h"
#include "common/device_memory.h"
#include "plan/epoch_config.h"
#include "plan/window_layout.h"
#include "transport/transport.h"

namespace lamina::compute_node {

struct OwnWindowOptions {
  std::string node;
  std::string transport_uri;
  ClusterSecret secret = {};       // For the transport.
  DeviceMemory* memory = nullptr;  // The device's; null where it has none. Outlives the result.
};

struct OwnWindows {
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Region> region;
};

// Makes the transport of the epoch, and the region. `config` is as the node's shard works with it,
// whose index is `own`.
// Errors: those of MakeTransport() and CreateRegion().
absl::StatusOr<OwnWindows> MakeOwnWindows(const plan::EpochConfig& config, uint32_t own,
                                          const plan::WindowLayout& layout,
                                          const OwnWindowOptions& options);

// How the processor reads windows once their signals are there. Those in a device's memory it
// copies to a mirror in the host's, by a stream that no wait holds up.
//
// Threading: the data thread. Allocation: when it is made.
class WindowReader {
 public:
  // `device` has the region's memory; null: the host has. Both outlive this.
  WindowReader(transport::Region& region, DeviceMemory* device);

  bool on_device() const { return region_.device() != nullptr; }
  // As large as the region; empty unless that is on the device.
  absl::Span<const std::byte> mirror() const { return mirror_; }

  // Where the bytes lie for the processor, until the same are read again.
  // Errors: kInternal  the device failed. Cost: on the device, a flush and a copy.
  absl::StatusOr<const std::byte*> Read(size_t offset, size_t bytes);

  // The header of a window of so many bytes, all of which the device sees in what it is given from
  // now on. Errors, cost: as Read().
  absl::StatusOr<plan::WindowHeader> ReadHeader(size_t window, size_t bytes);

 private:
  absl::Status CopyOut(size_t offset, size_t bytes);

  transport::Region& region_;
  DeviceMemory* const device_;
  std::vector<std::byte> mirror_;
};

}  // namespace lamina::compute_node
