// SPDX-License-Identifier: Apache-2.0
//
// MemorySpillDisk: a SpillDisk in memory that fails as it is told.
//
// Threading: as SpillDisk.

#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

#include "memory_node/spill_disk.h"

namespace lamina::test_support {

class MemorySpillDisk final : public memory_node::SpillDisk {
 public:
  // What is to happen to a call, which is the `number`th of its kind from 0 on.
  struct Fault {
    int error = 0;           // Fails with it.
    size_t most = SIZE_MAX;  // Does so many bytes at most.
    bool flips = false;      // Flips a bit of what a read brings.
  };
  using Faults = std::function<Fault(bool write, uint64_t number)>;

  MemorySpillDisk() = default;
  explicit MemorySpillDisk(Faults faults) : faults_(std::move(faults)) {}

  int64_t Write(const std::byte* bytes, size_t count, uint64_t offset) override {
    const Fault fault = Next(/*write=*/true, writes_);
    if (fault.error != 0) {
      errno = fault.error;
      return -1;
    }
    const std::lock_guard lock(mutex_);
    count = std::min({count, fault.most, bytes_.size() - std::min<size_t>(bytes_.size(), offset)});
    std::memcpy(bytes_.data() + offset, bytes, count);
    return static_cast<int64_t>(count);
  }
  int64_t Read(std::byte* bytes, size_t count, uint64_t offset) override {
    const Fault fault = Next(/*write=*/false, reads_);
    if (fault.error != 0) {
      errno = fault.error;
      return -1;
    }
    const std::lock_guard lock(mutex_);
    count = std::min({count, fault.most, bytes_.size() - std::min<size_t>(bytes_.size(), offset)});
    std::memcpy(bytes, bytes_.data() + offset, count);
    if (fault.flips && count > 0) {
      bytes[count / 2] ^= std::byte{1};
    }
    return static_cast<int64_t>(count);
  }
  int Allocate(uint64_t bytes) override {
    if (interruptions > 0) {
      --interruptions;
      return EINTR;
    }
    if (allocate_error != 0) {
      return allocate_error;
    }
    bytes_.resize(bytes);
    return 0;
  }
  int Settle() override { return 0; }

  int interruptions = 0;   // How many calls of Allocate() fail with EINTR first.
  int allocate_error = 0;  // What the others fail with; 0: they do not.

 private:
  Fault Next(bool write, std::atomic<uint64_t>& count) {
    const uint64_t number = count.fetch_add(1);
    return faults_ ? faults_(write, number) : Fault{};
  }

  const Faults faults_;
  std::atomic<uint64_t> writes_{0};
  std::atomic<uint64_t> reads_{0};
  std::mutex mutex_;
  std::vector<std::byte> bytes_;
};

}  // namespace lamina::test_support
