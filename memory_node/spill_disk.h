// SPDX-License-Identifier: Apache-2.0
//
// SpillDisk: the calls to the system that a spill file is made of, so that tests can have them go
// wrong. Each is the call of the same name in unistd.h on one file, with errno.
//
// Threading: any number of threads at once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace lamina::memory_node {

class SpillDisk {
 public:
  virtual ~SpillDisk() = default;

  // Bytes written or read, which may be fewer; -1 with errno.
  virtual int64_t Write(const std::byte* bytes, size_t count, uint64_t offset) = 0;
  virtual int64_t Read(std::byte* bytes, size_t count, uint64_t offset) = 0;
  // Takes room for so many bytes from offset 0 on. 0, or an error's number.
  virtual int Allocate(uint64_t bytes) = 0;
  // What was written is on the disk, and no longer in memory. 0, or -1 with errno.
  virtual int Settle() = 0;
  // Whether aligned calls pass by the system's memory.
  virtual bool direct() const { return false; }
};

// A file in the folder `directory`, readable by this user alone. It has no name once it is open, so
// nothing is left behind, however the process ends. Calls whose address, count and offset are
// multiples of plan::kSpillAlignment pass by the system's memory where the file system can do that.
// Errors: those of the file system, with the folder's name.
absl::StatusOr<std::unique_ptr<SpillDisk>> OpenSpillDisk(const std::string& directory);

}  // namespace lamina::memory_node
