// SPDX-License-Identifier: Apache-2.0
//
// Host memory that was registered with the emulation: no page twice, and unregistered by the
// address it was registered by, as the driver has it.
//
// Threading: any thread.

#pragma once

#include <cstddef>

#include "tests/support/cuda_emulation/cuda_error.h"

namespace lamina::cuda_emulation {

cudaError_t RegisterHost(const void* data, size_t bytes);
cudaError_t UnregisterHost(const void* data);
bool IsRegistered(const void* address);

// How many pieces are registered now.
size_t RegisteredPieces();

// Whether registrations fail, with cudaErrorMemoryAllocation, as where too much is locked.
void FailRegistrations(bool fail);

}  // namespace lamina::cuda_emulation
