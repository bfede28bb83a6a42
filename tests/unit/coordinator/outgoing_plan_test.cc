// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "control/plan_codec_service.h"
#include "coordinator/node_port.h"
#include "coordinator/node_stream_service.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::coordinator {
namespace {

plan::StepPlan SomePlan() {
  plan::StepPlan plan{.epoch = 3, .lane = 1, .step = 7};
  plan.joins.push_back({.id = 5, .tokens = {1, 2, 3}});
  plan.rows.push_back({.sequence = 4, .position = 9});
  return plan;
}

int encodings = 0;

std::string Counted(const plan::StepPlan& plan) {
  ++encodings;
  return EncodePlan(plan);
}

TEST(OutgoingPlanTest, IsEncodedOnceForAllNodes) {
  const plan::StepPlan plan = SomePlan();
  encodings = 0;
  const OutgoingPlan outgoing(plan);
  EXPECT_EQ(encodings, 0) << "ports that send no bytes need none";
  const std::shared_ptr<const std::string> first = outgoing.Encoded(&Counted);
  EXPECT_EQ(outgoing.Encoded(&Counted), first);
  EXPECT_EQ(encodings, 1);

  v1::CoordinatorMessage message;
  ASSERT_TRUE(message.ParseFromString(*first));
  const absl::StatusOr<plan::StepPlan> read = control::FromProto(message.plan());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 7u);
  ASSERT_EQ(read->joins.size(), 1u);
  EXPECT_EQ(read->joins[0].tokens, plan.joins[0].tokens);
  ASSERT_EQ(read->rows.size(), 1u);
  EXPECT_EQ(read->rows[0].position, 9u);
}

// Memory nodes get their own bytes, without the tokens that compute nodes get.
TEST(OutgoingPlanTest, BytesOutliveThePlan) {
  std::shared_ptr<const std::string> bytes;
  {
    plan::StepPlan plan = SomePlan();
    bytes = OutgoingPlan(plan).Encoded(&EncodePlan);
    plan.joins.clear();
    EXPECT_LT(OutgoingPlan(plan).Encoded(&EncodePlan)->size(), bytes->size());
  }
  EXPECT_EQ(*bytes, EncodePlan(SomePlan()));
}

}  // namespace
}  // namespace lamina::coordinator
