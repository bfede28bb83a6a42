// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/host_memory.h"

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

#include "tests/support/cuda_emulation/device_heap.h"

namespace lamina::cuda_emulation {
namespace {

constexpr size_t kPageBytes = 4096;

using Pieces = std::map<uintptr_t, size_t>;  // Bytes by address.

bool Holds(const Pieces& pieces, uintptr_t address) {
  const auto next = pieces.upper_bound(address);
  return next != pieces.begin() && address - std::prev(next)->first < std::prev(next)->second;
}

struct Registry {
  std::mutex mutex;
  Pieces pieces;
  Pieces allocated;
  bool fail = false;

  // The last piece that begins at or before the address, if any.
  auto Before(uintptr_t address) {
    const auto next = pieces.upper_bound(address);
    return next == pieces.begin() ? pieces.end() : std::prev(next);
  }
};

Registry& Registered() {
  static auto* const registry = new Registry;  // Lives as long as the threads of any test.
  return *registry;
}

}  // namespace

cudaError_t RegisterHost(const void* data, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  Registry& registry = Registered();
  const std::lock_guard lock(registry.mutex);
  if (data == nullptr || bytes == 0) {
    return cudaErrorInvalidValue;
  }
  if (registry.fail) {
    return cudaErrorMemoryAllocation;
  }
  const auto before = registry.Before(address + bytes - 1);
  if (before != registry.pieces.end() && before->first + before->second > address) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  registry.pieces.emplace(address, bytes);
  return cudaSuccess;
}

cudaError_t UnregisterHost(const void* data) {
  Registry& registry = Registered();
  const std::lock_guard lock(registry.mutex);
  return registry.pieces.erase(reinterpret_cast<uintptr_t>(data)) == 1
             ? cudaSuccess
             : cudaErrorHostMemoryNotRegistered;
}

bool IsRegistered(const void* address) {
  Registry& registry = Registered();
  const std::lock_guard lock(registry.mutex);
  return Holds(registry.pieces, reinterpret_cast<uintptr_t>(address));
}

void* AllocateHost(size_t bytes) {
  const size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const data = std::aligned_alloc(kPageBytes, whole);
  if (data != nullptr) {
    Registry& registry = Registered();
    const std::lock_guard lock(registry.mutex);
    registry.allocated.emplace(reinterpret_cast<uintptr_t>(data), whole);
  }
  return data;
}

bool FreeHost(void* data) {
  Registry& registry = Registered();
  const std::lock_guard lock(registry.mutex);
  if (registry.allocated.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
    return false;
  }
  std::free(data);
  return true;
}

bool IsVisible(const void* address) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  Registry& registry = Registered();
  {
    const std::lock_guard lock(registry.mutex);
    if (Holds(registry.pieces, place) || Holds(registry.allocated, place)) {
      return true;
    }
  }
  return IsDevice(address);
}

size_t RegisteredPieces() {
  Registry& registry = Registered();
  const std::lock_guard lock(registry.mutex);
  return registry.pieces.size();
}

void FailRegistrations(bool fail) {
  Registry& registry = Registered();
  const std::lock_guard lock(registry.mutex);
  registry.fail = fail;
}

}  // namespace lamina::cuda_emulation
