// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/device_heap.h"

#include <sys/mman.h>

#include <iterator>
#include <map>
#include <mutex>

namespace lamina::cuda_emulation {
namespace {

constexpr size_t kBytesMax = size_t{1} << 40;
constexpr int kOpen = PROT_READ | PROT_WRITE;

struct Heap {
  std::mutex mutex;
  std::map<void*, size_t> pieces;
  int users = 0;
  bool open = false;

  void Open(bool opens) {
    if (open == opens) {
      return;  // Closing and opening takes its time.
    }
    open = opens;
    const int protection = opens ? kOpen : PROT_NONE;
    for (const auto& [data, bytes] : pieces) {
      mprotect(data, bytes, protection);
    }
  }
};

Heap& TheHeap() {
  static auto* const heap = new Heap;  // Lives as long as the threads of any test.
  return *heap;
}

}  // namespace

void* AllocateDevice(size_t bytes) {
  if (bytes > kBytesMax) {
    return nullptr;
  }
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  void* const data = mmap(nullptr, bytes, heap.open ? kOpen : PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return nullptr;
  }
  heap.pieces.emplace(data, bytes);
  return data;
}

bool FreeDevice(void* data) {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  const auto found = heap.pieces.find(data);
  if (found == heap.pieces.end()) {
    return false;
  }
  munmap(data, found->second);
  heap.pieces.erase(found);
  return true;
}

bool IsDevice(const void* address) {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  const auto next = heap.pieces.upper_bound(const_cast<void*>(address));
  if (next == heap.pieces.begin()) {
    return false;
  }
  const auto& [data, bytes] = *std::prev(next);
  return static_cast<size_t>(static_cast<const char*>(address) - static_cast<char*>(data)) < bytes;
}

void CloseDevice() {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  if (heap.users == 0) {
    heap.Open(false);
  }
}

DeviceAccess::DeviceAccess() {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  ++heap.users;
  heap.Open(true);
}

DeviceAccess::~DeviceAccess() {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  --heap.users;
}

}  // namespace lamina::cuda_emulation
