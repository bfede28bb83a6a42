// SPDX-License-Identifier: Apache-2.0
//
// Which blocks are read before they are ordered, whose they are then, and what becomes of their
// buffers.

#include "memory_node/spill_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace lamina::memory_node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class SpillAheadTest : public ::testing::Test {
 protected:
  void Want(std::vector<uint32_t> blocks) { ahead_.Want(std::move(blocks), free_); }
  SpillAhead::Claimed Claim(const std::vector<uint32_t>& blocks) {
    return ahead_.Claim(blocks, free_);
  }
  // Reads the next one into the buffer. Returns which it was.
  uint32_t Read(int buffer, const absl::Status& status = absl::OkStatus()) {
    const uint32_t block = ahead_.Begin();
    EXPECT_TRUE(ahead_.End({.buffer = buffer, .status = status}));
    return block;
  }

  SpillAhead ahead_;
  std::vector<int> free_;
};

TEST_F(SpillAheadTest, AsManyAreReadAsThereIsRoomFor) {
  EXPECT_FALSE(ahead_.HasNext());
  std::vector<uint32_t> blocks;
  for (uint32_t block = 0; block < 2 * SpillAhead::kBlocks; ++block) {
    blocks.push_back(100 + block);
  }
  Want(blocks);
  for (uint32_t block = 0; block < SpillAhead::kBlocks; ++block) {
    ASSERT_TRUE(ahead_.HasNext());
    EXPECT_EQ(Read(static_cast<int>(block)), blocks[block]);
  }
  EXPECT_FALSE(ahead_.HasNext());

  const SpillAhead::Claimed claimed = Claim(blocks);
  ASSERT_EQ(claimed.read.size(), SpillAhead::kBlocks);
  for (size_t i = 0; i < claimed.read.size(); ++i) {
    EXPECT_EQ(claimed.read[i].buffer, static_cast<int>(i));
  }
  EXPECT_FALSE(claimed.next_comes);
  EXPECT_THAT(free_, IsEmpty());
  EXPECT_FALSE(ahead_.HasNext()) << "blocks that have been ordered are read";
}

TEST_F(SpillAheadTest, WhatIsBeingReadIsTheOrdersToo) {
  Want({4, 5, 6});
  Read(1);
  EXPECT_EQ(ahead_.Begin(), 5u);
  EXPECT_FALSE(ahead_.HasNext()) << "two are read at once";
  const SpillAhead::Claimed claimed = Claim({4, 5});
  EXPECT_EQ(claimed.read.size(), 1u);
  EXPECT_TRUE(claimed.next_comes);
  Want({7});
  EXPECT_FALSE(ahead_.HasNext());
  EXPECT_FALSE(ahead_.End({.buffer = 2, .status = absl::OkStatus()}));
  EXPECT_FALSE(ahead_.holds_any());
  EXPECT_TRUE(ahead_.HasNext());
}

TEST_F(SpillAheadTest, AnOrderOfOtherBlocksLeavesThem) {
  Want({4, 5});
  Read(1);
  ASSERT_EQ(ahead_.Begin(), 5u);
  const SpillAhead::Claimed claimed = Claim({5, 4});
  EXPECT_THAT(claimed.read, IsEmpty());
  EXPECT_FALSE(claimed.next_comes);
  EXPECT_TRUE(ahead_.End({.buffer = 2, .status = absl::OkStatus()}));
  EXPECT_EQ(Claim({4, 5, 6}).read.size(), 2u);
  EXPECT_THAT(free_, IsEmpty());
}

// Else they would be read once more behind it.
TEST_F(SpillAheadTest, AnOrderThatComesBeforeAnyWasReadForgetsThem) {
  Want({4, 5});
  const SpillAhead::Claimed claimed = Claim({4, 5, 6});
  EXPECT_THAT(claimed.read, IsEmpty());
  EXPECT_FALSE(claimed.next_comes);
  EXPECT_FALSE(ahead_.HasNext());
}

// The second one is being read, and the buffer of the first was given up meanwhile.
TEST_F(SpillAheadTest, NoOrderWaitsForWhatIsNotWantedAnyMore) {
  Want({4, 5});
  Read(1);
  ASSERT_EQ(ahead_.Begin(), 5u);
  EXPECT_EQ(ahead_.GiveUpLast(), 1);
  EXPECT_FALSE(Claim({4, 5}).next_comes);
  EXPECT_FALSE(ahead_.HasNext());
  EXPECT_FALSE(ahead_.End({.buffer = 2, .status = absl::OkStatus()}));
  EXPECT_FALSE(ahead_.HasNext());
  EXPECT_THAT(free_, IsEmpty());
}

TEST_F(SpillAheadTest, WhatAnOrderOfFewerDoesNotHaveIsForgotten) {
  Want({4, 5, 6});
  Read(1);
  Read(2);
  Read(3);
  EXPECT_EQ(Claim({4, 8}).read.size(), 1u);
  EXPECT_THAT(free_, UnorderedElementsAre(2, 3));
  EXPECT_FALSE(ahead_.holds_any());
}

TEST_F(SpillAheadTest, AnotherListForgetsTheOneBefore) {
  Want({4, 5});
  Read(1);
  Want({4, 5});
  EXPECT_TRUE(ahead_.holds_any()) << "it is the same";
  ASSERT_EQ(ahead_.Begin(), 5u);
  Want({5, 6});
  EXPECT_THAT(free_, ElementsAre(1));
  EXPECT_FALSE(ahead_.End({.buffer = 2, .status = absl::OkStatus()}));
  EXPECT_EQ(Read(2), 5u);
  ahead_.Forget(free_);
  EXPECT_THAT(free_, ElementsAre(1, 2));
  EXPECT_FALSE(ahead_.HasNext());
}

TEST_F(SpillAheadTest, WhoeverNeedsABufferGetsTheLastOnes) {
  Want({4, 5, 6});
  Read(1);
  Read(2);
  ASSERT_EQ(ahead_.Begin(), 6u);
  EXPECT_EQ(ahead_.GiveUpLast(), 2);
  EXPECT_FALSE(ahead_.End({.buffer = 3, .status = absl::OkStatus()}))
      << "it is not behind the rest";
  EXPECT_EQ(Read(2), 5u);
  EXPECT_EQ(Read(3), 6u);
}

TEST_F(SpillAheadTest, NothingIsReadBehindAnError) {
  Want({4, 5, 6});
  Read(1);
  Read(2, absl::DataLossError("gone"));
  EXPECT_FALSE(ahead_.HasNext());
  const SpillAhead::Claimed claimed = Claim({4, 5, 6});
  ASSERT_EQ(claimed.read.size(), 2u);
  EXPECT_TRUE(claimed.read[0].status.ok());
  EXPECT_EQ(claimed.read[1].status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(claimed.read[1].buffer, 2);
}

}  // namespace
}  // namespace lamina::memory_node
