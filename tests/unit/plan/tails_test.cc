// SPDX-License-Identifier: Apache-2.0
#include "plan/tails.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>

namespace lamina::plan {
namespace {

TEST(TailsTest, EachHasItsOwnUntilItLeaves) {
  Tails tails(3);
  std::set<std::optional<uint32_t>> taken;
  for (const SequenceId id : {11u, 12u, 13u}) {
    taken.insert(tails.Join(id));
  }
  EXPECT_EQ(taken, (std::set<std::optional<uint32_t>>{0, 1, 2}));
  EXPECT_EQ(tails.Join(14), std::nullopt);
  tails.Leave(12);
  EXPECT_TRUE(tails.Join(14).has_value());
  EXPECT_EQ(tails.Join(15), std::nullopt);
}

TEST(TailsTest, WhoRanHasItsOwnAgain) {
  Tails tails(3);
  const std::optional<uint32_t> first = tails.Join(11);
  const std::optional<uint32_t> second = tails.Join(12);
  tails.BeginEpoch();
  const std::optional<uint32_t> third = tails.Join(13);
  EXPECT_NE(third, first);
  EXPECT_NE(third, second);
  EXPECT_EQ(tails.Join(12), second);
  tails.BeginEpoch();
  tails.BeginEpoch();
  EXPECT_EQ(tails.Join(13), third);
  EXPECT_EQ(tails.Join(11), first);
  EXPECT_EQ(tails.Join(12), second);
}

// What has left belongs to nobody in the next epoch.
TEST(TailsTest, FreeOnesAreTakenBeforeThoseOfWhoHasNotJoined) {
  Tails tails(2);
  const std::optional<uint32_t> first = tails.Join(11);
  tails.Join(12);
  tails.Leave(12);
  tails.BeginEpoch();
  EXPECT_NE(tails.Join(13), first);
  EXPECT_EQ(tails.Join(14), first) << "nobody else has one to give";
  EXPECT_EQ(tails.Join(11), std::nullopt);
  tails.Leave(13);
  EXPECT_TRUE(tails.Join(11).has_value());
}

TEST(TailsTest, OneThatMovesIsNobodyElsesAlthoughItsSequenceLeaves) {
  Tails tails(2);
  const std::optional<uint32_t> first = tails.Join(11);
  tails.BeginMove(11, /*move=*/1);
  tails.Leave(11);
  EXPECT_NE(tails.Join(12), first);
  EXPECT_EQ(tails.Join(13), std::nullopt);
  tails.EndMove(1);
  tails.EndMove(7);  // It has no tail.
  EXPECT_EQ(tails.Join(13), first);
}

TEST(TailsTest, OneThatMovesStaysItsSequencesIfThatDoes) {
  Tails tails(1);
  tails.Join(11);
  tails.BeginMove(11, /*move=*/1);
  tails.EndMove(1);
  EXPECT_EQ(tails.Join(12), std::nullopt);
  tails.Leave(11);
  EXPECT_TRUE(tails.Join(12).has_value());
}

TEST(TailsTest, MovesEndWithTheirEpoch) {
  Tails tails(2);
  tails.Join(11);
  const std::optional<uint32_t> second = tails.Join(12);
  tails.BeginMove(11, /*move=*/1);
  tails.BeginMove(12, /*move=*/2);
  tails.Leave(11);
  tails.BeginEpoch();
  EXPECT_NE(tails.Join(13), second) << "that is still another one's";
  tails.BeginMove(13, /*move=*/1);
  EXPECT_EQ(tails.Join(12), second);
}

TEST(TailsTest, WithoutAnyNobodyJoins) { EXPECT_EQ(Tails(0).Join(1), std::nullopt); }

}  // namespace
}  // namespace lamina::plan
