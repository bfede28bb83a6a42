// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>

#include "plan/fetch_pieces.h"
#include "plan/window_header.h"
#include "plan/window_layout.h"

namespace lamina::plan {
namespace {

constexpr uint32_t kParts = FetchRing::kParts;

// How many pieces of so many parts may leave before one is used up.
uint64_t Ahead(uint32_t parts) {
  FetchRing ring;
  while (ring.Before(parts) == 0) {
    ring.Add(parts);
  }
  return ring.pieces();
}

TEST(FetchRingTest, AsManyPiecesAreAheadAsThereIsRoomFor) {
  EXPECT_EQ(Ahead(4), 2u);
  EXPECT_EQ(Ahead(2), 4u);
  EXPECT_EQ(Ahead(1), 8u);
}

TEST(FetchRingTest, LargePiecesHaveTwoWindowsThatTakeTurns) {
  FetchRing ring;
  for (uint64_t piece = 1; piece <= 9; ++piece) {
    EXPECT_EQ(ring.First(4), piece % 2 == 1 ? 0u : 4u);
    EXPECT_EQ(ring.Before(4), piece < 3 ? 0 : piece - 2);
    ring.Add(4);
  }
}

TEST(FetchRingTest, APieceLiesBehindTheOneBefore) {
  FetchRing ring;
  EXPECT_EQ(ring.First(1), 0u);
  ring.Add(1);  // Piece 1 has part 0.
  EXPECT_EQ(ring.First(2), 2u);
  ring.Add(2);  // Piece 2 has parts 2 and 3.
  EXPECT_EQ(ring.First(4), 4u);
  ring.Add(4);  // Piece 3 has the other half.
  EXPECT_EQ(ring.First(1), 0u);
  EXPECT_EQ(ring.Before(1), 1u);
  EXPECT_EQ(ring.Before(4), 2u);
  ring.Add(1);
  EXPECT_EQ(ring.First(1), 1u);
  EXPECT_EQ(ring.Before(1), 0u) << "nobody had part 1";
}

// A sender that is as far ahead as it may be, whatever pieces it has: it never writes what has not
// been used up, waits for nothing else, and is a piece ahead at least.
TEST(FetchRingTest, NothingIsWrittenBeforeItHasBeenUsedUp) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::array<uint64_t, kParts> owners = {};  // The piece that was written to each part last.
    FetchRing ring;
    uint64_t used_up = 0;
    for (int piece = 0; piece < 200; ++piece) {
      const uint32_t parts = 1u << random() % 3;
      const uint64_t before = ring.Before(parts);
      ASSERT_TRUE(ring.pieces() == 0 || before < ring.pieces()) << "it takes of the piece before";
      uint64_t owner = 0;
      for (uint32_t part = ring.First(parts); part < ring.First(parts) + parts; ++part) {
        ASSERT_LT(part, kParts);
        owner = std::max(owner, owners[part]);
        owners[part] = ring.pieces() + 1;
      }
      ASSERT_EQ(before, owner);
      // Now and then more is used up than has to be.
      used_up = std::max(used_up, before);
      if (random() % 4 == 0) {
        used_up = ring.pieces();
      }
      ring.Add(parts);
      ASSERT_LE(ring.pieces() - used_up, kParts);
    }
  }
}

TEST(FetchWindowsTest, PiecesTakeThePartsThatTheyNeed) {
  const WindowShape shape{.compute_nodes = 1,
                          .memory_nodes = 2,
                          .lanes = 2,
                          .rows_max = 4,
                          .kv_rows_max = 8,
                          .fetch_bytes = 50'000,
                          .layers = {{.query_heads = 6, .kv_heads = 3, .head_dim = 16}}};
  const WindowLayout layout(shape);
  const FetchWindows windows(layout);
  EXPECT_EQ(windows.ring_bytes(), 2 * windows.window_bytes());
  EXPECT_EQ(windows.ring_bytes(), kParts * windows.part_bytes());
  EXPECT_EQ(windows.Parts(0), 1u);
  EXPECT_EQ(windows.Parts(50'000), kParts / 2) << "the largest piece takes a window";
  const size_t header = sizeof(WindowHeader);
  EXPECT_EQ(windows.Parts(windows.part_bytes() - header), 1u);
  EXPECT_EQ(windows.Parts(windows.part_bytes() - header + 1), 2u);
  EXPECT_EQ(windows.Parts(2 * windows.part_bytes() - header + 1), 4u);

  FetchRing ring;
  for (uint32_t piece = 0; piece < 2 * kParts; ++piece) {
    const size_t offset = windows.Offset(ring, 1);
    EXPECT_EQ(offset, piece % kParts * windows.part_bytes());
    for (const uint32_t lane : {0u, 1u}) {
      EXPECT_EQ(windows.Window(1, lane, ring, 1),
                layout.Window(WindowKind::kFetched, 1, lane, 0) + offset);
    }
    ring.Add(1);
  }
}

}  // namespace
}  // namespace lamina::plan
