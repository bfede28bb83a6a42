// SPDX-License-Identifier: Apache-2.0
//
// kernels/window_channel.h on a CUDA device, with the kernels of kernels/cuda/wait.h: windows are
// registered with the driver, so that kernels read, write and poll them where they are.

#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/device.h"
#include "kernels/window_channel.h"

namespace lamina::kernels::cuda {

// Lane i uses streams[i]; lanes may have the same one. Streams outlive the channel, as does
// `usable`, which is lowered when a call to the device fails; null: nobody wants to know. By a
// thread whose device is set (OpenDevice()), as SetPeers(). Waits for the kernels that it tries:
// loading one may wait for those that run, and these may be waiting.
// Errors: kInvalidArgument  no peers, no lanes, streams for other than all lanes, a timeout of 0,
//                           no sends kept; those of RegisteredMemory::Create() and
//                           MemoryArena::Create().
absl::StatusOr<std::unique_ptr<WindowChannel>> MakeCudaWindowChannel(
    const ChannelOptions& options, absl::Span<const Stream* const> streams,
    std::atomic<bool>* usable = nullptr);

}  // namespace lamina::kernels::cuda
