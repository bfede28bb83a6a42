// SPDX-License-Identifier: Apache-2.0
//
// shm://: a Put is a memcpy into memory that both processes map, and a signal is a store.
//
// A Put is complete when it returns, so nothing is ever pending and no
// queue can be full. There is no system call in a Put, unless the waiter sleeps or a device copies.
//
// Data may lie in a device's memory, with the signal words in the host's: senders map it by CUDA's
// IPC and copy there, and raise the signal when the copy is done. A region whose device shares no
// memory is refused with kFailedPrecondition, to be staged (staging/device_transport.h); where a
// sender cannot map it, the data goes through the shared memory.
// See: docs/adr/0085-cuda-ipc-in-shm.md.
//
// Limits: one host, one user, one process namespace. A peer that was killed looks like one that is
//         silent: only the deadline of a Wait, or the control plane, can tell; where its device's
//         memory is mapped, Puts ask. A peer that destroyed its region refuses Puts with
//         kUnavailable.

#pragma once

#include <memory>

#include "common/device_memory.h"
#include "transport/transport.h"

namespace lamina::transport {

// `device`, which outlives it, for regions and sources there; null: there is none.
std::unique_ptr<Transport> MakeShmTransport(DeviceMemory* device = nullptr);

}  // namespace lamina::transport
