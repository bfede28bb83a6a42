// SPDX-License-Identifier: Apache-2.0
//
// RegionMemory: what lies behind a region: signal words, one on each cache line, then the data; one
// registration. SourceTable: the registrations that puts read from.

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
#include "transport/verbs/verbs_handles_internal.h"

namespace lamina::transport {

inline constexpr size_t kVerbsSignalStride = 64;

class RegionMemory {
 public:
  // Errors: of CreateRegion().
  static absl::StatusOr<std::unique_ptr<RegionMemory>> Create(ibv_pd* domain,
                                                              const RegionOptions& options);
  RegionMemory(const RegionMemory&) = delete;
  RegionMemory& operator=(const RegionMemory&) = delete;
  ~RegionMemory();

  // Where the data lies, from the start of the registration.
  static uint64_t DataOffset(uint32_t signal_words);

  absl::Span<std::byte> bytes() const { return {base_ + data_offset_, data_bytes_}; }
  const std::atomic<uint64_t>& word(uint32_t index) const {
    return *reinterpret_cast<const std::atomic<uint64_t>*>(base_ + index * kVerbsSignalStride);
  }
  uint32_t signal_words() const { return signal_words_; }
  const ibv_mr& registration() const { return *memory_; }

 private:
  RegionMemory() = default;

  std::byte* base_ = nullptr;
  size_t total_ = 0;
  size_t data_offset_ = 0;
  size_t data_bytes_ = 0;
  uint32_t signal_words_ = 0;
  VerbsMemory memory_;
};

class SourceTable {
 public:
  // `keeps` stays alive; null for the region's own memory.
  void Add(absl::Span<const std::byte> bytes, uint32_t lkey, VerbsMemory keeps);
  void Remove(absl::Span<const std::byte> bytes);

  // Of one registration that holds all of `bytes`.
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
