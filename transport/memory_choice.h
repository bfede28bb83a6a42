// SPDX-License-Identifier: Apache-2.0
//
// Where memory lies that a transport moves, and how the network reaches it.
// See: docs/adr/0061-windows-in-device-memory.md.

#pragma once

#include <cstdint>
#include <string>

namespace lamina::transport {

enum class MemoryKind : uint8_t {
  kHost,
  kDevice,  // Memory of the DeviceMemory that the Transport was made with (registry.h).
};

// How the network reaches memory, best first.
enum class MemoryPath : uint8_t {
  kHost,        // It is the host's.
  kDmabuf,      // A device's, reached by a dmabuf.
  kPeermem,     // A device's, reached by its address: a module of the kernel knows whose it is.
  kIpc,         // A device's, mapped in the peer's process (CUDA IPC).
  kRegistered,  // A device's, reached by a library that knows such memory (UCX with CUDA).
  kStaging,     // A device's, not reached: copied through a buffer in the host's memory.
};

struct MemoryChoice {
  MemoryPath path = MemoryPath::kHost;
  std::string device;   // "cuda:0"; empty for the host's.
  std::string why_not;  // Why not by a better path; empty when it is the best.
};

// "host memory", with the reason if there is one; "memory of cuda:0 by dmabuf"; "memory of cuda:0
// through a staging buffer (dmabuf:
// ...)".
std::string DescribeMemory(const MemoryChoice& choice);

}  // namespace lamina::transport
