// SPDX-License-Identifier: Apache-2.0
//
// MemoryPair: the same numbers in a device's memory and in the host's, pinned.
//
// Memory: taken from two arenas.   Threading: the stream's thread.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

inline constexpr uint64_t kPieceAlignment = 256;  // Alignment of a MemoryArena's pieces.

// The most bytes of an arena that a piece takes.
template <typename T>
uint64_t BytesOf(uint64_t count) {
  return count * sizeof(T) + kPieceAlignment;
}

template <typename T>
struct MemoryPair {
  T* device = nullptr;
  T* pinned = nullptr;

  absl::Status Take(uint64_t count, MemoryArena& device_arena, MemoryArena& pinned_arena) {
    LAMINA_ASSIGN_OR_RETURN(device, device_arena.Take<T>(count));
    LAMINA_ASSIGN_OR_RETURN(pinned, pinned_arena.Take<T>(count));
    return absl::OkStatus();
  }
  absl::Status Send(size_t count, const Stream& stream) const {
    return CopyAsync(device, pinned, count * sizeof(T), stream);
  }
  absl::Status Fetch(size_t count, const Stream& stream) const {
    return CopyAsync(pinned, device, count * sizeof(T), stream);
  }
};

}  // namespace lamina::kernels::cuda
