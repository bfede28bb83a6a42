// SPDX-License-Identifier: Apache-2.0
//
// HostFacts: what the checks of this host look at, read once from the kernel.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/verbs/verbs_device.h"

namespace lamina::doctor {

struct HostFacts {
  std::vector<std::string> names;  // This host's name and addresses.
  uint64_t memlock_bytes = 0;      // UINT64_MAX: unlimited.
  uint64_t memory_available_bytes = 0;
  std::string memory_limit;  // What sets it, as nodes say it.
  std::string huge_pages;    // "always", "madvise" or "never"; empty: the kernel has none.
  std::vector<int> cores_online;
  std::vector<int> cores_isolated;
  std::vector<int> cores_allowed;        // By this process's affinity.
  std::map<int, std::vector<int>> numa;  // Cores of each node.
  bool memfd = false;                    // Whether shm:// can make its memory.
  uint64_t dev_shm_bytes = 0;            // Size of /dev/shm; 0: there is none.
  uint64_t file_size_max = UINT64_MAX;   // `ulimit -f`, in bytes; shared memory counts as a file.
  bool clock_synchronised = false;

  std::vector<transport::VerbsPort> ports;  // As libibverbs lists them.
  std::vector<std::string> kernel_devices;  // As the kernel lists them.
  struct Link {
    std::string interface;  // Network interface below; empty for InfiniBand.
    uint32_t interface_mtu = 0;
    int numa_node = -1;
  };
  std::map<std::string, Link> links;  // By device.
};

// Files below `root`, "" for this host's own; limits and affinity always of this process.
HostFacts CollectHostFacts(const std::string& root);

// Adds those of `hosts`, as a cluster file writes them, that are looked up as an address of this
// host.
void AddOwnNames(const std::vector<std::string>& hosts, HostFacts& facts);

}  // namespace lamina::doctor
