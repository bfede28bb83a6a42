// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda_emulation/device_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <mutex>
#include <string>

namespace lamina::cuda_emulation {
namespace {

constexpr size_t kBytesMax = size_t{1} << 40;
constexpr int kOpen = PROT_READ | PROT_WRITE;

constexpr size_t kPageBytes = 4096;

struct Piece {
  size_t bytes = 0;
  size_t offset = 0;
  bool imported = false;
};

struct Heap {
  std::mutex mutex;
  std::map<void*, Piece> pieces;
  int file = memfd_create("emulated CUDA device", MFD_CLOEXEC);
  size_t file_bytes = 0;
  int users = 0;
  bool open = false;

  void Open(bool opens) {
    if (open == opens) {
      return;  // Closing and opening takes its time.
    }
    open = opens;
    const int protection = opens ? kOpen : PROT_NONE;
    for (const auto& [data, piece] : pieces) {
      mprotect(data, piece.bytes, protection);
    }
  }

  // Maps a file with such a piece; null where it cannot be mapped.
  void* Map(int from, const Piece& piece) {
    void* const data = mmap(nullptr, piece.bytes, open ? kOpen : PROT_NONE,
                            MAP_SHARED | MAP_NORESERVE, from, static_cast<off_t>(piece.offset));
    if (data == MAP_FAILED) {
      return nullptr;
    }
    pieces.emplace(data, piece);
    return data;
  }

  // The piece that holds the address, or the end.
  auto Find(const void* address) {
    const auto next = pieces.upper_bound(const_cast<void*>(address));
    if (next == pieces.begin()) {
      return pieces.end();
    }
    const auto found = std::prev(next);
    const auto offset = static_cast<const char*>(address) - static_cast<char*>(found->first);
    return static_cast<size_t>(offset) < found->second.bytes ? found : pieces.end();
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
  const size_t end = heap.file_bytes + (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (ftruncate(heap.file, static_cast<off_t>(end)) != 0) {
    return nullptr;
  }
  void* const data = heap.Map(heap.file, {.bytes = bytes, .offset = heap.file_bytes});
  heap.file_bytes = end;
  return data;
}

bool FreeDevice(void* data) {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  const auto found = heap.pieces.find(data);
  if (found == heap.pieces.end()) {
    return false;
  }
  const Piece piece = found->second;
  munmap(data, piece.bytes);
  if (!piece.imported) {
    fallocate(heap.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(piece.offset), static_cast<off_t>(piece.bytes));
  }
  heap.pieces.erase(found);
  return true;
}

bool IsDevice(const void* address) {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  return heap.Find(address) != heap.pieces.end();
}

bool ExportDevice(const void* address, DevicePiece* piece) {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  const auto found = heap.Find(address);
  struct stat info = {};
  if (found == heap.pieces.end() || found->second.imported || fstat(heap.file, &info) != 0) {
    return false;
  }
  *piece = {.process = getpid(),
            .file = heap.file,
            .inode = info.st_ino,
            .offset = found->second.offset,
            .bytes = found->second.bytes};
  return true;
}

void* ImportDevice(const DevicePiece& piece) {
  if (piece.process == getpid() || piece.bytes > kBytesMax) {
    return nullptr;
  }
  const std::string path =
      "/proc/" + std::to_string(piece.process) + "/fd/" + std::to_string(piece.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  struct stat info = {};
  void* data = nullptr;
  if (file >= 0 && fstat(file, &info) == 0 && info.st_ino == piece.inode) {
    Heap& heap = TheHeap();
    const std::lock_guard lock(heap.mutex);
    data = heap.Map(file, {.bytes = piece.bytes, .offset = piece.offset, .imported = true});
  }
  if (file >= 0) {
    close(file);  // The mapping holds it.
  }
  return data;
}

void CloseDevice() {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  if (heap.users == 0) {
    heap.Open(false);
  }
}

bool CloseUnderWork() {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  if (heap.users == 1) {
    heap.Open(false);
  }
  return heap.users == 1;
}

void OpenDevice() {
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  heap.Open(true);
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
