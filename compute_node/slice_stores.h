// SPDX-License-Identifier: Apache-2.0
//
// Slices that put k and v of their rows into slots as they make them, in the call of their last op
// before q, k and v are complete, where the device has such a call and its KV slots in its memory
// (kernels/dense.h, FinishQkv()).
//
// Threading: the executor's thread.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "compute_node/slice_executor.h"
#include "kernels/kv_device.h"

namespace lamina::compute_node {

struct SliceStore {
  uint32_t slice = 0;
  kernels::KvPlanes planes;
};

// Whether the slice can: rope is its last op, and calls take no rows of the host's memory.
bool CanStore(const SliceExecutor& executor, uint32_t slice);

// Has these slices do so with rows of these buffers, by RowInputs::slots, as
// ValueBuffers::StoreInto() says. Requires: CanStore() each.
void StoreInto(const SliceExecutor& executor, absl::Span<const SliceStore> stores,
               ValueBuffers& buffers);

}  // namespace lamina::compute_node
