// SPDX-License-Identifier: Apache-2.0
//
// DeviceTransport: another transport whose regions and sources may also lie in a device's memory.
// What the transport below registers itself (verbs:// by dmabuf or peermem, ucx:// with CUDA) goes
// straight through; for the rest there is a staging buffer in the host's memory:
//
//   region   peers write a region of the same size in the host's memory, with the signal words;
//            Land() copies from there to the device
//   source   a mirror of the same size; Put() copies into it, then puts from there
//
// So the host needs as much memory again as is registered, twice as much for regions, all of it
// taken when they are made: a Put neither waits for a buffer nor is refused for want of one. One
// that is refused for another reason, a full queue say, has copied in vain.
//
// Which path a region got, and why not a better one: Region::memory(). For each there is a line in
// the log. See: docs/adr/0061-windows-in-device-memory.md, docs/adr/0062-staging.md.

#pragma once

#include <memory>

#include "common/device_memory.h"
#include "transport/transport.h"

namespace lamina::transport {

// `device` must outlive the result, and be the one that `inner` was made with, if any.
std::unique_ptr<Transport> OverDevice(std::unique_ptr<Transport> inner, DeviceMemory& device);

}  // namespace lamina::transport
