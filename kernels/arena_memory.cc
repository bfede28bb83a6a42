// SPDX-License-Identifier: Apache-2.0
#include "kernels/arena_memory.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/host_memory.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::kernels {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr uint64_t kPopulateBytes = uint64_t{64} << 20;
// A cluster stands still meanwhile. One core clears some 10 GB/s, which on two cores of a Zen 4 is
// all that memory gives; sockets of many channels have several times as much.
constexpr uint64_t kBytesPerThread = uint64_t{256} << 20;
constexpr uint64_t kThreadsMax = 16;

// A compute node has an arena for prompts, as long as the longest request, and one for what stays
// there.
constexpr char kRemedy[] =
    "; free memory, or lower the capacity of this memory node, of a compute node "
    "limits.sequence_tokens_max, or fetch.resident where the error names it";

// Asked before memory is taken: Linux would kill somebody later instead.
absl::Status CheckRoom(uint64_t bytes, uint64_t all) {
  const HostMemory memory = QueryHostMemory();
  if (bytes <= memory.available_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("no room for ", FormatBytes(all),
                                                   " of KV: ", memory.limit, " leaves ",
                                                   FormatBytes(memory.available_bytes), kRemedy));
}

// Touches one piece, so that later writes do not fault and a lack of memory shows now.
absl::Status PopulatePiece(char* start, uint64_t piece, uint64_t all) {
  // Others may take memory at the same time.
  LAMINA_RETURN_IF_ERROR(CheckRoom(piece, all));
  if (madvise(start, piece, MADV_POPULATE_WRITE) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINVAL) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "could not touch ", FormatBytes(all), " of KV memory: ", std::strerror(errno), kRemedy));
  }
  std::memset(start, 0, piece);  // Before Linux 5.14.
  return absl::OkStatus();
}

uint64_t CoresAllowed() {
  cpu_set_t mask;
  return sched_getaffinity(0, sizeof(mask), &mask) == 0 ? static_cast<uint64_t>(CPU_COUNT(&mask))
                                                        : 1;
}

// In pieces: one call keeps the address space locked, and other threads must be able to allocate
// meanwhile. Large arenas are touched by several threads.
absl::Status Populate(void* data, uint64_t bytes) {
  auto* start = static_cast<char*>(data);
  std::atomic<uint64_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  absl::Status status;
  const auto touch = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const uint64_t at = next.fetch_add(kPopulateBytes, std::memory_order_relaxed);
      if (at >= bytes) {
        return;
      }
      absl::Status done = PopulatePiece(start + at, std::min(kPopulateBytes, bytes - at), bytes);
      if (!done.ok()) {
        failed = true;
        const std::lock_guard lock(mutex);
        status.Update(std::move(done));
      }
    }
  };
  const uint64_t threads = std::min({bytes / kBytesPerThread, CoresAllowed(), kThreadsMax});
  std::vector<std::jthread> others;
  for (uint64_t thread = 1; thread < threads; ++thread) {
    others.emplace_back(touch);
  }
  touch();
  others.clear();  // Joins them.
  return status;
}

}  // namespace

absl::StatusOr<ArenaMemory> ArenaMemory::Create(uint64_t bytes) {
  ArenaMemory memory;
  memory.bytes_ = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  LAMINA_RETURN_IF_ERROR(CheckRoom(memory.bytes_, memory.bytes_));
  void* data = mmap(nullptr, memory.bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("the host refused ",
                                                     FormatBytes(memory.bytes_),
                                                     " for KV: ", std::strerror(errno), kRemedy));
  }
  memory.data_ = static_cast<std::byte*>(data);
  madvise(data, memory.bytes_, MADV_HUGEPAGE);  // Advice; 4K pages work too, 0-15% slower.
  LAMINA_RETURN_IF_ERROR(Populate(data, memory.bytes_));
  return memory;
}

ArenaMemory::ArenaMemory(ArenaMemory&& other) noexcept { *this = std::move(other); }

ArenaMemory& ArenaMemory::operator=(ArenaMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ArenaMemory::~ArenaMemory() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace lamina::kernels
