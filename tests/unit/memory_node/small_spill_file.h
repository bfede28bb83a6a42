// SPDX-License-Identifier: Apache-2.0
//
// A spill file of a few small blocks, on a disk in memory that fails as it is told; and what its
// blocks hold.

#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "memory_node/spill_file.h"
#include "memory_node/spill_pass.h"
#include "tests/support/memory_spill_disk.h"

namespace lamina::memory_node {

inline constexpr size_t kBlockBytes = 1000;

inline std::unique_ptr<SpillFile> MakeFile(test_support::MemorySpillDisk::Faults faults = {},
                                           uint64_t blocks = 4) {
  auto file = SpillFile::Create(std::make_unique<test_support::MemorySpillDisk>(std::move(faults)),
                                blocks * kBlockBytes + 1, "tier");
  EXPECT_TRUE(file.ok()) << file.status();
  (*file)->Format(kBlockBytes);
  return *std::move(file);
}

inline std::vector<std::byte> Bytes(int first) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(first + 7 * i);
  }
  return bytes;
}

inline absl::Status WriteBlock(SpillFile& file, uint32_t block, std::vector<std::byte> bytes) {
  const uint64_t sum = SpillPass(absl::MakeSpan(bytes)).End();
  return file.Write(block, bytes, sum);
}

inline absl::Status ReadBlock(const SpillFile& file, uint32_t block, absl::Span<std::byte> bytes) {
  const absl::Status fetched = file.Fetch(block, bytes);
  return fetched.ok() ? file.Check(block, SpillPass(bytes).End()) : fetched;
}

}  // namespace lamina::memory_node
