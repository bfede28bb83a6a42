// SPDX-License-Identifier: Apache-2.0
#include "coordinator/join_gate_service.h"

#include <gtest/gtest.h>

#include <vector>

namespace lamina::coordinator {
namespace {

TEST(JoinGateTest, HasFewPlacesForStreamsThatHaveNotProvedThemselves) {
  JoinGate gate{ClusterSecret()};
  std::vector<std::unique_ptr<JoinGate::UnprovedStream>> streams;
  for (int i = 0; i < JoinGate::kUnprovedMax; ++i) {
    streams.push_back(gate.Enter());
    ASSERT_NE(streams.back(), nullptr);
  }

  EXPECT_EQ(gate.Enter(), nullptr);
  EXPECT_EQ(gate.Enter(), nullptr) << "a stream that was turned away took a place";

  streams.pop_back();
  EXPECT_NE(gate.Enter(), nullptr);
}

TEST(JoinGateTest, ChallengesEachStreamAnew) {
  JoinGate gate{ClusterSecret()};
  const auto first = gate.Enter();
  const auto second = gate.Enter();
  v1::Hello hello;
  hello.set_name("c0");
  ASSERT_TRUE(control::ProveNode(ClusterSecret(), first->challenge(), hello).ok());

  EXPECT_TRUE(first->Welcome(hello).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(second->Welcome(hello).status()));
}

TEST(JoinGateTest, AChangeOfMembersIsProvedAsAJoinIs) {
  JoinGate gate{ClusterSecret()};
  const auto stream = gate.Enter();
  const auto other = gate.Enter();
  v1::MemberChange change;
  change.set_node("m0");
  ASSERT_TRUE(control::ProveChange(ClusterSecret(), stream->challenge(), change).ok());
  const grpc::CallbackServerContext context;

  EXPECT_TRUE(stream->CheckChange(change, context).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(other->CheckChange(change, context)));
}

}  // namespace
}  // namespace lamina::coordinator
