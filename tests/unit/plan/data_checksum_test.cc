// SPDX-License-Identifier: Apache-2.0
#include "plan/data_checksum.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace lamina::plan {
namespace {

uint64_t Checksum(const std::vector<std::byte>& bytes) {
  DataChecksum sum;
  sum.Add(64, bytes);
  return sum.value();
}

TEST(DataChecksumTest, RangesMayComeInAnyOrder) {
  std::vector<std::byte> bytes(1024);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7);
  }
  DataChecksum parts;
  parts.Add(64 + 500, absl::MakeConstSpan(bytes).subspan(500));
  parts.Add(64, absl::MakeConstSpan(bytes).first(20));
  parts.Add(64 + 20, absl::MakeConstSpan(bytes).subspan(20, 480));
  EXPECT_EQ(parts.value(), Checksum(bytes));
}

TEST(DataChecksumTest, EveryFlippedBitAndEverySwapShows) {
  std::vector<std::byte> bytes(256);
  std::set<uint64_t> seen = {Checksum(bytes)};
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_TRUE(seen.insert(Checksum(bytes)).second) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
  }
  // These are the same elements at other places.
  bytes[10] = std::byte{1};
  const uint64_t before = Checksum(bytes);
  std::swap(bytes[10], bytes[12]);
  EXPECT_NE(Checksum(bytes), before);
}

TEST(DataChecksumTest, OfNothingIsNotNone) { EXPECT_NE(DataChecksum().value(), 0u); }

}  // namespace
}  // namespace lamina::plan
