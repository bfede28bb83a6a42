// SPDX-License-Identifier: Apache-2.0
//
// ArenaMemory: anonymous memory of the host for an arena, so that transparent huge pages apply.
//
// Threading: the owner's. Memory: reserved and touched in Create(); nothing is allocated later.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace lamina::kernels {

class ArenaMemory {
 public:
  // Takes `bytes`, rounded up to whole huge pages.
  // Errors: kResourceExhausted  the host refused; says the size asked for.
  static absl::StatusOr<ArenaMemory> Create(uint64_t bytes);

  ArenaMemory() = default;
  ArenaMemory(ArenaMemory&& other) noexcept;
  ArenaMemory& operator=(ArenaMemory&& other) noexcept;
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;
  ~ArenaMemory();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace lamina::kernels
