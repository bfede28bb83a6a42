// SPDX-License-Identifier: Apache-2.0
//
// Walks over a block, and the checksum that comes of them.

#include "memory_node/spill_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "absl/types/span.h"

namespace lamina::memory_node {
namespace {

// A block has some links of the chain, and a part of one.
constexpr size_t kBytes = 100'000;

std::vector<std::byte> Block(size_t bytes) {
  std::mt19937 random(5);
  std::vector<std::byte> block(bytes);
  for (std::byte& byte : block) {
    byte = static_cast<std::byte>(random());
  }
  return block;
}

uint64_t SumOf(std::vector<std::byte> block) { return SpillPass(absl::MakeSpan(block)).End(); }

TEST(SpillPassTest, GivesTheBytesInTheirOrder) {
  std::vector<std::byte> block = Block(kBytes);
  SpillPass pass(absl::MakeSpan(block));
  EXPECT_EQ(pass.Next(10).data(), block.data());
  EXPECT_TRUE(pass.Next(0).empty());
  const absl::Span<std::byte> next = pass.Next(40'000);
  EXPECT_EQ(next.data(), block.data() + 10);
  EXPECT_EQ(next.size(), 40'000u);
  EXPECT_EQ(pass.Next(kBytes - 40'010).data(), block.data() + 40'010);
}

TEST(SpillPassTest, TheSumIsTheSameHoweverTheBlockIsWalkedOver) {
  for (const size_t bytes : {size_t{1}, size_t{16'383}, size_t{16'384}, size_t{16'385}, kBytes}) {
    std::vector<std::byte> block = Block(bytes);
    const uint64_t whole = SumOf(block);
    for (const size_t piece : {size_t{1000}, size_t{16'384}, size_t{16'390}, size_t{50'000}}) {
      for (const size_t walked : {bytes, bytes / 2}) {
        SpillPass pass(absl::MakeSpan(block));
        for (size_t done = 0; done < walked; done += piece) {
          pass.Next(std::min(piece, walked - done));
        }
        EXPECT_EQ(pass.End(), whole) << walked << " of " << bytes << " by " << piece;
      }
    }
  }
}

// A block is filled while it is walked over.
TEST(SpillPassTest, TheSumIsOfWhatPiecesWereFilledWith) {
  const std::vector<std::byte> wanted = Block(kBytes);
  std::vector<std::byte> block(kBytes);
  SpillPass pass(absl::MakeSpan(block));
  for (size_t done = 0; done < kBytes; done += 20'000) {
    const absl::Span<std::byte> piece = pass.Next(20'000);
    std::copy_n(wanted.begin() + static_cast<std::ptrdiff_t>(done), piece.size(), piece.begin());
  }
  EXPECT_EQ(pass.End(), SumOf(wanted));
}

TEST(SpillPassTest, ABitAndTheOrderOfPiecesChangeTheSum) {
  const std::vector<std::byte> block = Block(kBytes);
  std::set<uint64_t> sums = {SumOf(block)};
  size_t wanted = 1;
  for (const size_t at : {size_t{0}, size_t{16'383}, size_t{16'384}, size_t{60'000}, kBytes - 1}) {
    std::vector<std::byte> flipped = block;
    flipped[at] ^= std::byte{1};
    sums.insert(SumOf(flipped));
    EXPECT_EQ(sums.size(), ++wanted) << at;
  }
  std::vector<std::byte> swapped = block;
  std::swap_ranges(swapped.begin(), swapped.begin() + 16'384, swapped.begin() + 16'384);
  sums.insert(SumOf(swapped));
  EXPECT_EQ(sums.size(), ++wanted);
}

}  // namespace
}  // namespace lamina::memory_node
