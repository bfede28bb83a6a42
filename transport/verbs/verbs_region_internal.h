// SPDX-License-Identifier: Apache-2.0
//
// RegionMemory: what lies behind a region: signal words, one on each cache line, then the data; one
// registration. Data in a device's memory has one of its own, with words behind it that the device
// polls, if it is to wait itself and orders the writes of NICs. SourceTable: the registrations that
// puts read from.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_device_memory_internal.h"
#include "transport/verbs/verbs_handles_internal.h"

namespace lamina::transport {

inline constexpr size_t kVerbsSignalStride = 64;

class RegionMemory {
 public:
  // `device` is null where there is none.
  // Errors: of CreateRegion(); kFailedPrecondition  the device's memory cannot be registered; says
  //         why.
  static absl::StatusOr<std::unique_ptr<RegionMemory>> Create(ibv_pd* domain,
                                                              const RegionOptions& options,
                                                              DeviceMemory* device);
  RegionMemory(const RegionMemory&) = delete;
  RegionMemory& operator=(const RegionMemory&) = delete;
  ~RegionMemory();

  // Where the data lies, from the start of the registration.
  static uint64_t DataOffset(uint32_t signal_words);

  absl::Span<std::byte> bytes() const { return data_; }
  const std::atomic<uint64_t>& word(uint32_t index) const {
    return *reinterpret_cast<const std::atomic<uint64_t>*>(base_ + index * kVerbsSignalStride);
  }
  uint32_t signal_words() const { return signal_words_; }
  // Where a device of this host has it. Empty for a device's memory without words there.
  DirectMemory direct() const;
  // The first word in the device's memory; null: there are none.
  std::byte* device_words() const { return device_words_; }
  // Registrations of the signal words and of the data.
  const ibv_mr& registration() const { return *memory_; }
  const ibv_mr& data_registration() const {
    return device_memory_.memory == nullptr ? *memory_ : *device_memory_.memory;
  }
  const MemoryChoice& choice() const { return device_memory_.choice; }
  DeviceMemory* device() const { return device_.memory(); }  // Null for the host's memory.

 private:
  RegionMemory() = default;
  absl::Status MapHost(ibv_pd* domain, const std::string& name, size_t bytes);

  std::byte* base_ = nullptr;
  size_t total_ = 0;
  absl::Span<std::byte> data_;
  std::byte* device_words_ = nullptr;
  uint32_t signal_words_ = 0;
  VerbsMemory memory_;
  DeviceAllocation device_;
  VerbsDeviceMemory device_memory_;
};

class SourceTable {
 public:
  // `keeps` stays alive; null for the region's own memory.
  void Add(absl::Span<const std::byte> bytes, uint32_t lkey, VerbsMemory keeps);
  void Remove(absl::Span<const std::byte> bytes);

  // Index of the one registration that holds all of `bytes`.
  std::optional<uint32_t> Find(absl::Span<const std::byte> bytes) const;

 private:
  struct Entry {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uint32_t lkey = 0;
    VerbsMemory keeps;
  };
  std::vector<Entry> entries_;
  mutable size_t last_ = 0;  // Where Find() last found something.
};

}  // namespace lamina::transport
