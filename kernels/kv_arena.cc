// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host_memory.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "kernels/k_tiles.h"

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

uint64_t KvArena::SlotBytes(absl::Span<const AttentionDescriptor> layers) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    bytes += 2 * uint64_t{layer.kv_width()} * sizeof(BFloat16);
  }
  return bytes;
}

absl::StatusOr<KvArena> KvArena::Create(absl::Span<const AttentionDescriptor> layers,
                                        uint32_t slots) {
  const uint64_t slot_bytes = SlotBytes(layers);
  if (slots == 0 || slot_bytes == 0 || slot_bytes > (uint64_t{1} << 47) / slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("a KV arena of ", slots, " slots of ", slot_bytes, " bytes cannot be made"));
  }
  KvArena arena;
  arena.slots_ = slots;
  arena.bytes_ =
      (slot_bytes * WholeTiles(slots) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  LAMINA_RETURN_IF_ERROR(CheckRoom(arena.bytes_, arena.bytes_));
  void* data = mmap(nullptr, arena.bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("the host refused ", FormatBytes(arena.bytes_),
                                                     " for KV: ", std::strerror(errno), kRemedy));
  }
  arena.data_ = static_cast<BFloat16*>(data);
  madvise(data, arena.bytes_, MADV_HUGEPAGE);  // Advice; 4K pages work too, 0-15% slower.
  const absl::Status populated = Populate(data, arena.bytes_);
  if (!populated.ok()) {
    return populated;
  }
  size_t offset = 0;
  for (const AttentionDescriptor& layer : layers) {
    const size_t plane = WholeTiles(slots) * layer.kv_width();
    arena.planes_.push_back(
        {.k = offset, .v = offset + plane, .head_stride = WholeTiles(slots) * layer.head_dim});
    offset += 2 * plane;
  }
  return arena;
}

KvArena::KvArena(KvArena&& other) noexcept { *this = std::move(other); }

KvArena& KvArena::operator=(KvArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(slots_, other.slots_);
  std::swap(planes_, other.planes_);
  return *this;
}

KvArena::~KvArena() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace lamina::kernels
