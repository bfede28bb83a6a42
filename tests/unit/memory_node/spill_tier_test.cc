// SPDX-License-Identifier: Apache-2.0
//
// What a spill tier logs and counts of its failures.

#include "memory_node/spill_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "tests/unit/memory_node/small_spill_file.h"

namespace lamina::memory_node {
namespace {

using ::testing::HasSubstr;

std::string LoggedOf(SpillTier& tier) {
  ::testing::internal::CaptureStderr();
  tier.Failed(absl::DataLossError("block 3 is not what was written there"));
  return ::testing::internal::GetCapturedStderr();
}

TEST(SpillTierTest, WarnsOfTheFirstFailureSinceSomethingWentWell) {
  SpillTier tier(MakeFile(), SpillSpeed{});
  constexpr char kWarning[] = "block 3 is not what was written there: sequences are recomputed";

  EXPECT_THAT(LoggedOf(tier), HasSubstr(kWarning));
  EXPECT_EQ(LoggedOf(tier), "");
  EXPECT_EQ(tier.Count().failures, 2u);
  tier.WentWell();
  EXPECT_THAT(LoggedOf(tier), HasSubstr(kWarning));
  EXPECT_EQ(LoggedOf(tier), "");
  EXPECT_EQ(tier.Count().failures, 4u);
}

}  // namespace
}  // namespace lamina::memory_node
