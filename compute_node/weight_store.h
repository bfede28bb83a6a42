// SPDX-License-Identifier: Apache-2.0
//
// WeightStore: packed weights in a file of this host, for those that a node's memory has no room
// for. The file has no name once it is open, so nothing is left behind, however the process ends.
//
// Threading: Append() on one thread; Read() on any, of what has been appended.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lamina::compute_node {

class WeightStore {
 public:
  // In the folder `directory`, readable by this user alone.
  // Errors: those of the file system, with the folder's name.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Create(std::string directory);
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  // Writes the bytes behind those that are there, and returns where they begin.
  // Errors: kResourceExhausted  the file system is full; else as Create().
  absl::StatusOr<uint64_t> Append(absl::Span<const std::byte> bytes);

  // Errors: kDataLoss  the file has fewer bytes; else as Create().
  absl::Status Read(uint64_t offset, absl::Span<std::byte> bytes) const;

  uint64_t bytes() const { return end_; }

 private:
  WeightStore(std::string directory, int file) : directory_(std::move(directory)), file_(file) {}
  absl::Status Error(const char* what) const;

  const std::string directory_;
  const int file_;
  uint64_t end_ = 0;
};

}  // namespace lamina::compute_node
