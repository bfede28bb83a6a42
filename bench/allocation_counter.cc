// SPDX-License-Identifier: Apache-2.0
#include "bench/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

// In a file of their own: where the compiler could inline them it would take malloc and delete for
// a mismatched pair.
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) {
    return memory;
  }
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lamina::bench {

uint64_t AllocationsSoFar() { return allocations.load(std::memory_order_relaxed); }

}  // namespace lamina::bench
