// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/lanes.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;

class LanesTest : public PartsTest {};

TEST_F(LanesTest, ASequenceWeighsOnItsLaneAndOnItsNodes) {
  MakeNodes({100, 100});
  Run(1, 10, /*lane=*/0, /*node=*/0);
  Run(2, 20, /*lane=*/1, /*node=*/1);
  Run(3, 30, /*lane=*/1, /*node=*/0);

  EXPECT_EQ(lanes_.running(), 3u);
  EXPECT_THAT(lanes_[1].context_tokens, ElementsAre(30, 20));
  EXPECT_EQ(lanes_[1].context_tokens_all, 50u);
  EXPECT_THAT(lanes_.context_tokens(), ElementsAre(40, 20));
  EXPECT_EQ(lanes_.loads()[1].rows, 2u);
  EXPECT_EQ(lanes_.loads()[1].context_tokens, 50u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

// One layer sees the last 100 tokens, the other all.
const std::vector<AttentionDescriptor> kHalfWindows = {{.window = 100}, {}};

TEST_F(LanesTest, WhatWindowsHideDoesNotWeigh) {
  MakeNodes({1000}, /*lanes=*/2, 0, {}, false, cost::LayerWindows(kHalfWindows));
  Sequence& sequence = Run(1, 300);
  EXPECT_EQ(lanes_[0].context_tokens_all, 200u);
  EXPECT_EQ(lanes_[0].tokens, 300u);

  ASSERT_TRUE(kv_.Append(1, 100).ok());
  lanes_.Grow(sequence, 0, 100, kv_);

  EXPECT_THAT(lanes_[0].context_tokens, ElementsAre(250));
  EXPECT_EQ(lanes_.loads()[0].context_tokens, 250u);
  EXPECT_EQ(sequence.slots, 400u);
  EXPECT_EQ(lanes_[0].tokens, 400u);
  EXPECT_TRUE(lanes_.Audit(kv_).ok()) << lanes_.Audit(kv_);
  lanes_.Aim(sequence, 1);
  lanes_.Move(sequence, kv_);
  EXPECT_EQ(lanes_[0].context_tokens_all, 0u);
  EXPECT_EQ(lanes_[0].tokens, 0u);
  EXPECT_EQ(lanes_[1].tokens, 400u);
  EXPECT_EQ(lanes_.loads()[1].context_tokens, 250u);
}

// The window moves on to the next span, and weighs there.
TEST_F(LanesTest, SpansWeighWhatTheWindowReachesOfThem) {
  const std::vector<AttentionDescriptor> layers = {{.window = 100}};
  MakeNodes({1000, 1000}, /*lanes=*/1, 256, {}, false, cost::LayerWindows(layers));
  Sequence& sequence = Run(1, 256);
  EXPECT_THAT(lanes_[0].context_tokens, ElementsAre(100, 0));

  kv_.BeginSpan(1, 1);
  ASSERT_TRUE(kv_.Append(1, 30).ok());
  lanes_.Grow(sequence, 1, 30, kv_);

  EXPECT_THAT(lanes_[0].context_tokens, ElementsAre(70, 30));
  EXPECT_TRUE(lanes_.Audit(kv_).ok()) << lanes_.Audit(kv_);
}

TEST_F(LanesTest, OneThatIsWantedElsewhereCountsThereButRunsHere) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 10);
  lanes_.Aim(sequence, 1);

  EXPECT_EQ(lanes_[0].running.size(), 1u);
  EXPECT_EQ(lanes_[0].context_tokens_all, 10u);
  EXPECT_EQ(lanes_.loads()[0].rows, 0u);
  EXPECT_EQ(lanes_.loads()[1].context_tokens, 10u);
  EXPECT_EQ(lanes_.moving(), 1u);
  EXPECT_TRUE(Audit().ok()) << Audit();

  lanes_.Move(sequence, kv_);
  EXPECT_EQ(lanes_[0].running.size(), 0u);
  EXPECT_EQ(lanes_[1].context_tokens_all, 10u);
  EXPECT_EQ(lanes_.moving(), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(LanesTest, OneThatIsWantedBackDoesNotMove) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 10);
  lanes_.Aim(sequence, 1);
  lanes_.Aim(sequence, 0);

  EXPECT_EQ(lanes_.moving(), 0u);
  EXPECT_TRUE(lanes_[0].moving.empty());
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(LanesTest, TheAuditFindsALoadThatIsMiscounted) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 10);
  lanes_.Grow(sequence, 0, 1, kv_);  // The directory knows nothing of it.

  EXPECT_FALSE(lanes_.Audit(kv_).ok());
  sequence.slots = 10;
  EXPECT_FALSE(lanes_.Audit(kv_).ok());
}

TEST_F(LanesTest, TheAuditFindsRowsInALaneForPrompts) {
  MakeNodes({100}, /*lanes=*/1, 0, {.replicas = 1});
  Sequence& sequence = Run(1, 10, /*lane=*/1);
  EXPECT_TRUE(Audit().ok()) << Audit();
  sequence.last_step = 3;
  EXPECT_FALSE(lanes_.Audit(kv_).ok());
}

}  // namespace
}  // namespace lamina::core
