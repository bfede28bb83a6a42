// SPDX-License-Identifier: Apache-2.0
#include "kernels/arena_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/host_memory.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::kernels {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr uint64_t kPopulateBytes = uint64_t{64} << 20;

// A compute node has an arena for prompts, as long as the longest request.
constexpr char kRemedy[] =
    "; free memory, or lower the capacity of this memory node, of a compute node "
    "limits.sequence_tokens_max";

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

// Touches every page, so that later writes do not fault and a lack of memory shows now. In pieces:
// one call keeps the address space locked, and other threads must be able to allocate meanwhile.
absl::Status Populate(void* data, uint64_t bytes) {
  auto* start = static_cast<char*>(data);
  for (uint64_t done = 0; done < bytes; done += kPopulateBytes) {
    const uint64_t piece = std::min(kPopulateBytes, bytes - done);
    // Others may take memory at the same time.
    LAMINA_RETURN_IF_ERROR(CheckRoom(piece, bytes));
    if (madvise(start + done, piece, MADV_POPULATE_WRITE) == 0) {
      continue;
    }
    if (errno != EINVAL) {
      return absl::ResourceExhaustedError(absl::StrCat("could not touch ", FormatBytes(bytes),
                                                       " of KV memory: ", std::strerror(errno),
                                                       kRemedy));
    }
    std::memset(start + done, 0, piece);  // Before Linux 5.14.
  }
  return absl::OkStatus();
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
