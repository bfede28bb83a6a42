// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/weight_memory.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kMappingBytes = size_t{32} << 20;
// Layers from here on have a mapping of their own: what is left of a shared one is never more.
constexpr size_t kOwnBytes = size_t{8} << 20;

size_t RoundedUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::atomic<uint64_t> all_bytes{0};

}  // namespace

class WeightMemory::Mapping {
 public:
  // Null where the host refuses. Pages behind the last whole huge page stay small, so that a layer
  // takes no more than it has.
  static std::shared_ptr<Mapping> Create(size_t bytes) {
    const size_t taken = RoundedUp(bytes, kPageBytes) + kHugePageBytes;
    if (taken < bytes) {
      return nullptr;
    }
    void* const data =
        mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return nullptr;
    }
    auto mapping = std::shared_ptr<Mapping>(new Mapping);
    mapping->taken_ = data;
    mapping->taken_bytes_ = taken;
    const auto start = reinterpret_cast<uintptr_t>(data);
    mapping->next_ = static_cast<std::byte*>(data) + (RoundedUp(start, kHugePageBytes) - start);
    mapping->end_ = mapping->next_ + RoundedUp(bytes, kPageBytes);
    const size_t huge = bytes / kHugePageBytes * kHugePageBytes;
    const std::byte* const end = static_cast<std::byte*>(data) + taken;
    // Advice: where the system has none of them pages are small.
    madvise(mapping->next_, huge, MADV_HUGEPAGE);
    madvise(mapping->next_ + huge, static_cast<size_t>(end - mapping->next_) - huge,
            MADV_NOHUGEPAGE);
    ASAN_POISON_MEMORY_REGION(data, taken);
    return mapping;
  }
  ~Mapping() {
    ASAN_UNPOISON_MEMORY_REGION(taken_, taken_bytes_);
    munmap(taken_, taken_bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // The next bytes of it; null where there are not so many.
  std::byte* Take(size_t bytes) {
    const size_t taken = RoundedUp(bytes, kAlignment);
    if (taken > static_cast<size_t>(end_ - next_)) {
      return nullptr;
    }
    ASAN_UNPOISON_MEMORY_REGION(next_, bytes);
    return std::exchange(next_, next_ + taken);
  }

 private:
  Mapping() = default;

  void* taken_ = nullptr;
  size_t taken_bytes_ = 0;
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
};

WeightMemory::WeightMemory(size_t bytes) : bytes_(std::max<size_t>(1, bytes)) {
  if (bytes_ >= kOwnBytes) {
    mapping_ = Mapping::Create(bytes_);
    data_ = mapping_ != nullptr ? mapping_->Take(bytes_) : nullptr;
  } else {
    TakeFromShared();
  }
  if (data_ != nullptr) {
    all_bytes.fetch_add(bytes_, std::memory_order_relaxed);
  }
}

void WeightMemory::TakeFromShared() {
  static std::mutex mutex;
  static auto& shared = *new std::weak_ptr<Mapping>;  // The one that is being filled.
  const std::lock_guard lock(mutex);
  mapping_ = shared.lock();
  data_ = mapping_ != nullptr ? mapping_->Take(bytes_) : nullptr;
  if (data_ == nullptr) {
    mapping_ = Mapping::Create(kMappingBytes);
    shared = mapping_;
    data_ = mapping_ != nullptr ? mapping_->Take(bytes_) : nullptr;
  }
}

uint64_t WeightMemory::AllBytes() { return all_bytes.load(std::memory_order_relaxed); }

WeightMemory::WeightMemory(WeightMemory&& other) noexcept { *this = std::move(other); }

WeightMemory& WeightMemory::operator=(WeightMemory&& other) noexcept {
  if (this != &other) {
    Release();
    mapping_ = std::move(other.mapping_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

WeightMemory::~WeightMemory() { Release(); }

void WeightMemory::Release() {
  if (data_ == nullptr) {
    return;
  }
  all_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  const auto start = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t first = RoundedUp(start, kPageBytes);
  const uintptr_t end = (start + bytes_) / kPageBytes * kPageBytes;
  ASAN_POISON_MEMORY_REGION(data_, bytes_);
  if (first < end) {
    madvise(data_ + (first - start), end - first, MADV_DONTNEED);
  }
  data_ = nullptr;
  mapping_.reset();
}

}  // namespace lamina::kernels::cpu
