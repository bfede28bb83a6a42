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
    2780936659052830223u,  14856249405850447875u, 2832973638300913719u,  10274870588142293976u,
    15617827010803832449u, 8378234794131266315u,  15055482645016818301u, 11043541990164237083u};

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
