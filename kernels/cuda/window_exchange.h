// SPDX-License-Identifier: Apache-2.0
//
// kernels/window_exchange.h on a CUDA device, with the kernels of kernels/cuda/wait.h: windows are
// registered with the driver, so that kernels read, write and poll them where they are.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/window_exchange.h"

namespace lamina::kernels::cuda {

// The stream outlives it. By a thread whose device is set (OpenDevice()), as SetPeers().
// Errors: kInvalidArgument  no peers, no lanes, a timeout of 0; those of RegisteredMemory::Create()
//         and MemoryArena::Create().
absl::StatusOr<std::unique_ptr<WindowExchange>> MakeCudaWindowExchange(
    const ExchangeOptions& options, const Stream& stream);

}  // namespace lamina::kernels::cuda
