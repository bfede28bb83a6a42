// SPDX-License-Identifier: Apache-2.0
//
// PciPlace: where a device sits on this host's PCI Express, and how far two of them are apart.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lamina::transport {

struct PciPlace {
  // From the root complex to the device: {"pci0000:40", "0000:40:01.1", "0000:41:00.0"}. Empty for
  // a device that is not on PCI, like Soft-RoCE.
  std::vector<std::string> path;
  int numa_node = -1;  // -1: the kernel does not say.

  // Like "0000:41:00.0"; empty without a path.
  std::string address() const { return path.empty() ? "" : path.back(); }
};

// Nearest first.
enum class PciDistance : uint8_t {
  kSwitch,       // Below one switch or bridge: data need not pass the processor.
  kRootComplex,  // Below one root complex of the processor.
  kNumaNode,     // Below several root complexes of one NUMA node.
  kHost,         // Across NUMA nodes, or unknown.
};

// "behind one PCIe switch", ...
absl::string_view NameOf(PciDistance distance);

PciDistance DistanceOf(const PciPlace& a, const PciPlace& b);

// Returns the place of the device that `link`, like "/sys/class/infiniband/mlx5_0/device", stands
// for; without a path where it is none of PCI or not there. Does I/O.
PciPlace FindPciPlace(const std::string& link);

}  // namespace lamina::transport
