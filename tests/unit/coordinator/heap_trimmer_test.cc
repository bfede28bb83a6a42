// SPDX-License-Identifier: Apache-2.0
#include "coordinator/heap_trimmer.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace lamina::coordinator {
namespace {

constexpr size_t kBlocks = 200'000;
constexpr size_t kBlockBytes = 1000;

TEST(HeapTrimmerTest, GivesBackWhatLiesBelowBlocksInUse) {
  TrimHeap(0);
  const size_t before = HeapBytesUnused();
  std::vector<std::unique_ptr<char[]>> blocks(kBlocks);
  for (auto& block : blocks) {
    block = std::make_unique<char[]>(kBlockBytes);
  }
  const std::unique_ptr<char[]> above = std::make_unique<char[]>(kBlockBytes);
  blocks.clear();
  if (HeapBytesUnused() < before + kBlocks * kBlockBytes / 2) {
    GTEST_SKIP() << "this allocator keeps nothing, or does not tell";
  }

  EXPECT_TRUE(TrimHeap());

  EXPECT_LT(HeapBytesUnused(), before + kBlocks * kBlockBytes / 4);
  EXPECT_FALSE(TrimHeap(before + kBlocks * kBlockBytes / 2));
}

}  // namespace
}  // namespace lamina::coordinator
