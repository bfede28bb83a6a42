// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/node_residents.h"

#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

class NodeResidentsTest : public PartsTest {};

TEST_F(NodeResidentsTest, ASequenceLivesWhereItsSlotsAreAndWhereItsNextTokenGoes) {
  MakeNodes({100, 100, 100}, 1, /*span_tokens=*/16);
  Sequence& sequence = Run(1, 16, 0, /*node=*/1);
  EXPECT_EQ(residents_.CountOn(1), 1u);

  residents_.SetNode(sequence, 2, kv_);
  EXPECT_EQ(residents_.CountOn(1), 1u);
  EXPECT_EQ(residents_.CountOn(2), 1u);
  EXPECT_TRUE(Audit().ok()) << Audit();

  residents_.SetNode(sequence, 0, kv_);  // It got no slot on 2.
  EXPECT_EQ(residents_.CountOn(0), 1u);
  EXPECT_EQ(residents_.CountOn(1), 1u);
  EXPECT_EQ(residents_.CountOn(2), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(NodeResidentsTest, ThoseThatStarveAreCountedInServiceOrder) {
  MakeNodes({100, 100});
  Sequence& first = Run(1, 5);
  Sequence& second = Run(2, 5);
  Sequence& third = Run(3, 5);
  residents_.Starve(third);
  residents_.Starve(first);
  residents_.Starve(first);

  EXPECT_EQ(residents_.Starving(0), 2u);
  EXPECT_EQ(residents_.StarvingBefore(first), 0u);
  EXPECT_EQ(residents_.StarvingBefore(second), 1u);
  EXPECT_EQ(residents_.StarvingBefore(third), 1u);
  EXPECT_TRUE(Audit().ok()) << Audit();

  residents_.Feed(first);
  EXPECT_EQ(residents_.StarvingBefore(third), 0u);
  residents_.SetNode(third, 1, kv_);  // It waits there no more.
  EXPECT_EQ(residents_.Starving(0), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(NodeResidentsTest, OneThatIsTakenOutLivesNowhere) {
  MakeNodes({100});
  Sequence& sequence = Run(1, 5);
  residents_.Starve(sequence);
  life_.Preempt(sequence);

  EXPECT_EQ(residents_.CountOn(0), 0u);
  EXPECT_EQ(residents_.Starving(0), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(NodeResidentsTest, TheAuditFindsOneThatIsNotKnown) {
  MakeNodes({100, 100});
  Sequence& sequence = Run(1, 5);
  sequence.node = 1;

  EXPECT_FALSE(residents_.Audit(life_.Running(), kv_).ok());
}

}  // namespace
}  // namespace lamina::core
