// SPDX-License-Identifier: Apache-2.0
//
// Golden hashes of what the scheduler plans under random calls. A change that is not meant to alter
// any plan leaves them as they are; one that is says so in its commit and writes down the new ones:
// the test prints them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/sim/call_script.h"

namespace lamina::sim {
namespace {

constexpr uint64_t kSeedsOfAGroup = 50;

const std::vector<uint64_t> kGolden = {
    10884910055688002694u, 17509014825187242792u, 964140049747348507u,   10945584754862402016u,
    14766028793659769180u, 2884431338639130665u,  12685778946708288071u, 8181356952748424560u};

TEST(PlanHashTest, PlansAreTheSameBitByBit) {
  std::vector<uint64_t> hashes;
  CallScriptReport reach;
  for (uint64_t group = 0; group < kGolden.size(); ++group) {
    PlanHash hash;
    for (uint64_t i = 0; i < kSeedsOfAGroup; ++i) {
      const CallScriptReport report = CallScript({.seed = group * kSeedsOfAGroup + i}).Run();
      ASSERT_EQ(report.failure, "");
      hash.Add(report.hash);
      reach.plans += report.plans;
      reach.preemptions += report.preemptions;
      reach.spans += report.spans;
      reach.lane_moves += report.lane_moves;
      reach.forks += report.forks;
    }
    hashes.push_back(hash.value());
  }
  EXPECT_THAT(hashes, testing::ElementsAreArray(kGolden));
  EXPECT_GT(reach.plans, 10'000);
  EXPECT_GT(reach.preemptions, 300);
  EXPECT_GT(reach.spans, 1'000);
  EXPECT_GT(reach.lane_moves, 300);
  EXPECT_GT(reach.forks, 300);
}

}  // namespace
}  // namespace lamina::sim
