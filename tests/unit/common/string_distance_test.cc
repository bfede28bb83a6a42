// SPDX-License-Identifier: Apache-2.0
#include "common/string_distance.h"

#include <gtest/gtest.h>

#include <vector>

namespace lamina {
namespace {

TEST(StringDistanceTest, NamesTheNearestKnownKey) {
  const std::vector<std::string> known = {"pipeline", "partition", "policy"};
  EXPECT_EQ(NearestName("pipelin", known), "pipeline");
  EXPECT_EQ(NearestName("partion", known), "partition");
  EXPECT_EQ(NearestName("zzzzzz", known), "");
}

}  // namespace
}  // namespace lamina
