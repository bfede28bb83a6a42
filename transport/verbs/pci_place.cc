// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/pci_place.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace lamina::transport {

absl::string_view NameOf(PciDistance distance) {
  switch (distance) {
    case PciDistance::kSwitch:
      return "behind one PCIe switch";
    case PciDistance::kRootComplex:
      return "below one root complex";
    case PciDistance::kNumaNode:
      return "on one NUMA node";
    case PciDistance::kHost:
      return "across NUMA nodes";
  }
  return "unknown";
}

PciDistance DistanceOf(const PciPlace& a, const PciPlace& b) {
  size_t common = 0;
  while (common < std::min(a.path.size(), b.path.size()) && a.path[common] == b.path[common]) {
    ++common;
  }
  if (common > 1) {
    return PciDistance::kSwitch;
  }
  if (common == 1) {
    return PciDistance::kRootComplex;
  }
  return a.numa_node >= 0 && a.numa_node == b.numa_node ? PciDistance::kNumaNode
                                                        : PciDistance::kHost;
}

PciPlace FindPciPlace(const std::string& link) {
  PciPlace place;
  std::error_code error;
  const std::filesystem::path device = std::filesystem::canonical(link, error);
  if (error) {
    return place;
  }
  for (const std::filesystem::path& part : device) {
    const std::string name = part.string();
    // The first folder named "pci..." above a device on PCI is its root complex.
    if (!place.path.empty() || name.rfind("pci", 0) == 0) {
      place.path.push_back(name);
    }
  }
  if (!(std::ifstream(device / "numa_node") >> place.numa_node)) {
    place.numa_node = -1;
  }
  return place;
}

}  // namespace lamina::transport
