// SPDX-License-Identifier: Apache-2.0
//
// StreamCopy: a copy into memory that nobody reads soon, past this core's caches. An ordinary store
// has the line that it changes read from memory before, and puts others out of the caches for it:
// two ways over the bus for each byte in place of one.
//
// Threading: pure functions.

#pragma once

#include <cstddef>

namespace lamina::kernels {

// memcpy() by stores that bypass the caches, where the processor has such and `to` is aligned for
// them. Other threads may see them out of order: call EndStreamCopies() before any is told.
void StreamCopy(void* to, const void* from, size_t bytes);

// What this thread has copied is there for whoever it tells from now on.
void EndStreamCopies();

}  // namespace lamina::kernels
