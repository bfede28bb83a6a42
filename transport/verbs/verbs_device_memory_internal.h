// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device in the device of RDMA: by a dmabuf, else by its address (peermem).

#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/device_memory.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_handles_internal.h"

namespace lamina::transport {

struct VerbsDeviceMemory {
  VerbsMemory memory;
  MemoryChoice choice;
};

// Registers `bytes` under their addresses: by dmabuf whole pages only. What peers may write is
// registered only where `device` can flush such writes.
// Errors: kFailedPrecondition  neither way works here; says why of each.
absl::StatusOr<VerbsDeviceMemory> RegisterVerbsDeviceMemory(ibv_pd* domain, DeviceMemory& device,
                                                            absl::Span<const std::byte> bytes,
                                                            int access);

}  // namespace lamina::transport
