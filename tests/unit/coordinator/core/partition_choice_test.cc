// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/partition_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace lamina::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kHeadBytes = 2 * 2 * 64 * 2;  // One KV head of one token takes so many.

// Memory nodes with room for so many tokens of 4 KV heads.
PartitionNeeds Needs(const std::vector<uint64_t>& tokens, uint32_t sequence_tokens_max) {
  PartitionNeeds needs{.sequence_tokens_max = sequence_tokens_max, .running_max = 64};
  needs.layers.assign(2, {.query_heads = 8, .kv_heads = 4, .head_dim = 64});
  for (const uint64_t room : tokens) {
    needs.nodes.push_back(
        {.name = absl::StrCat("m", needs.nodes.size()), .capacity_bytes = room * 4 * kHeadBytes});
  }
  return needs;
}

TEST(ChoosePartitionTest, RequestsWhereTheyFitAndAreMany) {
  const auto choice = ChoosePartition(Needs({5000, 5000}, 4096));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->partition, Partition::kRequest);
  EXPECT_THAT(choice->why, AllOf(HasSubstr("4096 tokens"), HasSubstr("2 nodes busy")));
  EXPECT_EQ(ChoosePartition(Needs({5000}, 4096))->partition, Partition::kRequest);
}

TEST(ChoosePartitionTest, HeadsWhereRequestsAreFewAndHeadsDivide) {
  PartitionNeeds needs = Needs({5000, 5000}, 4096);
  needs.running_max = 3;
  const auto choice = ChoosePartition(needs);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->partition, Partition::kHead);
  EXPECT_THAT(choice->why, AllOf(HasSubstr("at most 3 requests"), HasSubstr("1.00 times")));
}

TEST(ChoosePartitionTest, HeadsWhereARequestFitsIntoNoNode) {
  const auto choice = ChoosePartition(Needs({3000, 3000}, 4096));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->partition, Partition::kHead);
  EXPECT_THAT(choice->why, HasSubstr("does not fit into every memory node"));
}

TEST(ChoosePartitionTest, TokenRangesWhereHeadsDoNotDivide) {
  const auto choice = ChoosePartition(Needs({3000, 3000, 3000}, 4096));
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->partition, Partition::kTokenRange);
  EXPECT_EQ(ChoosePartition(Needs({3000, 3000, 3000, 3000, 3000}, 4096))->partition,
            Partition::kTokenRange);  // More nodes than heads.
}

TEST(ChoosePartitionTest, SlotsOfTokenRangesTakeWhatTheyHold) {
  PartitionNeeds needs = Needs({3000, 3000}, 4096);
  EXPECT_TRUE(CheckPartition(Partition::kTokenRange, needs).ok());
  needs.slot_bytes = 2 * needs.layout.SlotBytes(needs.layers);
  EXPECT_THAT(CheckPartition(Partition::kTokenRange, needs).ToString(),
              HasSubstr("have room for 2048 tokens in spans of 512"));
}

TEST(ChoosePartitionTest, NoneSaysWhyOfEach) {
  const auto choice = ChoosePartition(Needs({1500, 1500}, 4096));
  EXPECT_EQ(choice.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(choice.status().message()),
              AllOf(HasSubstr("partition request:"), HasSubstr("partition head:"),
                    HasSubstr("partition token_range:")));
  for (const Partition partition :
       {Partition::kRequest, Partition::kHead, Partition::kTokenRange, Partition::kAuto}) {
    EXPECT_FALSE(CheckPartition(partition, Needs({1500, 1500}, 4096)).ok());
    EXPECT_TRUE(CheckPartition(partition, Needs({5000, 5000}, 4096)).ok());
  }
}

}  // namespace
}  // namespace lamina::core
