// SPDX-License-Identifier: Apache-2.0
//
// Host memory that kernels can use: what the emulation allocated, and what was registered with it,
// no page twice, and unregistered by the address it was registered by, as the driver has it.
//
// Threading: any thread.

#pragma once

#include <cstddef>

#include "tests/support/cuda_emulation/cuda_error.h"

namespace lamina::cuda_emulation {

cudaError_t RegisterHost(const void* data, size_t bytes);
cudaError_t UnregisterHost(const void* data);
bool IsRegistered(const void* address);

// Whole pages. Null: there is not so much.
void* AllocateHost(size_t bytes);
// Whether it was allocated.
bool FreeHost(void* data);

// Whether a kernel can touch the address: of either kind, or the device's.
bool IsVisible(const void* address);

// How many pieces are registered now.
size_t RegisteredPieces();

// Whether registrations fail, with cudaErrorMemoryAllocation, as where too much is locked.
void FailRegistrations(bool fail);

}  // namespace lamina::cuda_emulation
