// SPDX-License-Identifier: Apache-2.0
#include "compute_node/loading_log.h"

#include <gtest/gtest.h>

namespace lamina::compute_node {
namespace {

class SetClock final : public Clock {
 public:
  Nanos Now() const override { return now; }
  Nanos now = Seconds(7);
};

TEST(LoadingLogTest, EveryTenthIsALineWithTheTimeThatIsLeft) {
  SetClock clock;
  LoadingLog log(clock);
  EXPECT_EQ(log.Take(0), std::nullopt);
  clock.now += Millis(100);
  EXPECT_EQ(log.Take(0.11), "loading weights 11%") << "too early for a pace";
  EXPECT_EQ(log.Take(0.15), std::nullopt);
  clock.now += Seconds(10) - Millis(100);
  EXPECT_EQ(log.Take(0.25), "loading weights 25% 30 s left");
  EXPECT_EQ(log.Take(1), "loading weights 100%");
}

TEST(LoadingLogTest, AnotherStageBeginsAnew) {
  SetClock clock;
  LoadingLog log(clock);
  log.Take(0);
  EXPECT_EQ(log.Take(1), "loading weights 100%");
  clock.now += Seconds(100);  // With the first layers.
  EXPECT_EQ(log.Take(0), std::nullopt);
  clock.now += Seconds(1);
  EXPECT_EQ(log.Take(0.5), "loading weights 50% 1 s left");
}

}  // namespace
}  // namespace lamina::compute_node
