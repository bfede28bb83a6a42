// SPDX-License-Identifier: Apache-2.0
#include "plan/resident_room.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/kv_form.h"

namespace lamina::plan {
namespace {

// A token takes 1 KiB as bf16, and 2 * 2 * 136 bytes as INT8.
const std::vector<AttentionDescriptor> kLayers(2,
                                               {.query_heads = 2, .kv_heads = 2, .head_dim = 64});
constexpr uint64_t kTail = 64 * 1024;
constexpr uint64_t kBlock = 64 * 544;

TEST(ResidentRoomTest, TilesOfBf16AreWhole) {
  EXPECT_EQ(ResidentTilesIn(16 * 1024, kLayers).tokens, 16u);
  EXPECT_EQ(ResidentTilesIn(32 * 1024 - 1, kLayers).tokens, 16u);
  const ResidentRoom none = ResidentTilesIn(16 * 1024 - 1, kLayers);
  EXPECT_EQ(none.tokens, 0u);
  EXPECT_EQ(none.least, 16u * 1024);
  EXPECT_EQ(ResidentTilesIn(uint64_t{1} << 46, kLayers).tokens, UINT32_MAX / 16 * 16);
}

TEST(ResidentRoomTest, TailsHaveHalfAtMostAndBlocksTheRest) {
  const ResidentRoom some = ResidentBlocksIn(8 * kTail, kLayers, 16);
  EXPECT_EQ(some.tails, 4u);
  EXPECT_EQ(some.tokens, 4 * kTail / kBlock * 64);
  // No more tails than sequences.
  const ResidentRoom few = ResidentBlocksIn(8 * kTail, kLayers, 3);
  EXPECT_EQ(few.tails, 3u);
  EXPECT_EQ(few.tokens, 5 * kTail / kBlock * 64);
  for (uint64_t bytes = kTail; bytes < 20 * kTail; bytes += 777) {
    const ResidentRoom room = ResidentBlocksIn(bytes, kLayers, 5);
    const uint64_t taken = room.tails * kTail + room.tokens / 64 * kBlock;
    EXPECT_LE(taken, bytes);
    EXPECT_EQ(room.tokens > 0, bytes >= kTail + kBlock);
    EXPECT_EQ(room.tails > 0, room.tokens > 0);
    EXPECT_TRUE(room.tokens == 0 || taken + kBlock > bytes) << "no block more fits";
  }
}

TEST(ResidentRoomTest, TheLeastWithInt8IsAnOpenBlockAndAClosedOne) {
  const ResidentRoom least = ResidentBlocksIn(kTail + kBlock, kLayers, 16);
  EXPECT_EQ(least.tails, 1u);
  EXPECT_EQ(least.tokens, 64u);
  const ResidentRoom none = ResidentBlocksIn(kTail + kBlock - 1, kLayers, 16);
  EXPECT_EQ(none.tails + none.tokens, 0u);
  EXPECT_EQ(none.least, kTail + kBlock);
}

}  // namespace
}  // namespace lamina::plan
