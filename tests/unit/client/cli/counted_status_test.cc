// SPDX-License-Identifier: Apache-2.0
#include "client/cli/counted_status.h"

#include <gtest/gtest.h>

namespace lamina::cli {
namespace {

client::ClusterStatus Cluster(uint64_t compute_reports, uint64_t memory_reports,
                              const std::string& memory_state = "ready") {
  client::ClusterStatus status;
  status.nodes = {{.name = "coordinator", .state = "ready"},
                  {.name = "c0", .state = "ready", .reports = compute_reports},
                  {.name = "m0", .state = memory_state, .reports = memory_reports}};
  return status;
}

TEST(CountedStatusTest, EveryNodeMustHaveMadeTwoReportsMore) {
  const client::ClusterStatus before = Cluster(7, 9);
  EXPECT_FALSE(HasCounted(before, before));
  EXPECT_FALSE(HasCounted(before, Cluster(9, 10)));
  EXPECT_TRUE(HasCounted(before, Cluster(9, 11)));
}

TEST(CountedStatusTest, LostAndRestartedNodesAreNotWaitedFor) {
  const client::ClusterStatus before = Cluster(7, 9);
  EXPECT_TRUE(HasCounted(before, Cluster(9, 9, "absent")));
  EXPECT_TRUE(HasCounted(before, Cluster(9, 1)));
  EXPECT_TRUE(HasCounted({}, Cluster(1, 1)));
}

}  // namespace
}  // namespace lamina::cli
