// SPDX-License-Identifier: Apache-2.0
//
// GPUs and RDMA devices of a host, how far apart they are, and by what RDMA can reach a GPU's
// memory.

#pragma once

#include <string>
#include <vector>

#include "client/doctor/finding.h"
#include "transport/verbs/pci_place.h"

namespace lamina::doctor {

struct GpuFacts {
  std::vector<transport::PciPlace> gpus;  // NVIDIA's.
  struct Nic {
    std::string device;  // "mlx5_0"
    transport::PciPlace place;
  };
  std::vector<Nic> nics;       // RDMA devices on PCI.
  bool driver = false;         // NVIDIA's is loaded,
  bool open_modules = false;   // and is the open one, which exports memory as dmabuf.
  bool dmabuf_kernel = false;  // The kernel has RDMA over dmabuf (5.12 and later).
  bool peermem = false;        // nvidia_peermem is loaded.
};

// Files below `root`, "" for this host's own.
GpuFacts CollectGpuFacts(const std::string& root);

// Pure. One finding on GPUs, and where there are RDMA devices too: the distance of each GPU to the
// nearest one, and the way to its memory.
Findings CheckGpus(const GpuFacts& facts);

}  // namespace lamina::doctor
