// SPDX-License-Identifier: Apache-2.0
//
// Models whose layers all have windows: what no query reaches any more gives its slots back.

#include <gmock/gmock.h>

#include <memory>
#include <utility>
#include <vector>

#include "coordinator/core/fetch_planning.h"
#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<AttentionDescriptor> kWindows = {{.window = 10}, {.window = 6}};

SchedulerOptions WindowOptions(uint32_t slots) {
  SchedulerOptions options = SmallOptions(slots);
  options.windows = cost::LayerWindows(kWindows);
  options.release_tokens = 8;
  return options;
}

class SchedulerWindowsTest : public SchedulerTest {};

// Remembers what it was asked.
class StepsAsked final : public FetchPlanning {
 public:
  explicit StepsAsked(std::vector<FetchStep>& steps) : steps_(steps) {}
  FetchShare Plan(const FetchStep& step, const FetchRates& /*rates*/) const override {
    steps_.push_back(step);
    return {};
  }

 private:
  std::vector<FetchStep>& steps_;
};

// What stays of them is not made again.
TEST_F(SchedulerWindowsTest, ReleasedTokensDoNotCountAsThoseThatStay) {
  std::vector<FetchStep> steps;
  SchedulerOptions options = WindowOptions(100);
  options.running_max = 1;
  options.resident_tokens = 16;
  options.strategies.fetch_planning = [&steps] { return std::make_unique<StepsAsked>(steps); };
  Make(options);
  SequenceRequest request = Request(1, 5, 40);
  request.path = plan::AttentionPath::kRecompute;
  ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());

  RunUntilIdle();

  EXPECT_EQ(joins_[1].resident.tokens, 16u);
  ASSERT_FALSE(steps.empty());
  EXPECT_GT(steps.front().resident, 0u);
  EXPECT_EQ(steps.back().resident, 0u) << "the window is behind all 16";
}

// Whoever runs in the lane besides, or has left it since.
TEST_F(SchedulerWindowsTest, ContextsAreTheTokensBeforeTheRowsOfAStep) {
  std::vector<FetchStep> steps;
  SchedulerOptions options = SmallOptions(60);
  options.strategies.fetch_planning = [&steps] { return std::make_unique<StepsAsked>(steps); };
  Make(options);
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    ASSERT_TRUE(Submit(id, 5 * static_cast<uint32_t>(id), 50).ok());
  }
  std::vector<uint64_t> contexts;
  do {
    for (const plan::StepPlan& plan : Plan()) {
      if (plan.rows.empty()) {
        continue;
      }
      contexts.push_back(0);
      for (const plan::DecodeRow& row : plan.rows) {
        contexts.back() += row.position;
      }
    }
  } while (StepDone());

  EXPECT_THAT(events_.preempted, ::testing::Not(IsEmpty()));
  ASSERT_THAT(steps, SizeIs(contexts.size()));
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].contexts, contexts[i]) << "step " << i;
  }
}

TEST_F(SchedulerWindowsTest, ARowThatReachesABlockNoMoreReleasesIt) {
  Make(WindowOptions(100));
  ASSERT_TRUE(Submit(1, 16, 40).ok());
  Plan();
  StepDone();

  // The row at 16 reaches back to 7, the one at 17 to 8.
  const std::vector<plan::StepPlan> plans = Plan();
  ASSERT_THAT(plans, SizeIs(2));
  EXPECT_THAT(plans[0].releases, IsEmpty());
  EXPECT_THAT(plans[1].releases, ElementsAre(plan::SlotRelease{.sequence = 1, .tokens = 8}));
  EXPECT_EQ(scheduler_->kv().SlotsQuarantined(0), 8u);
  StepDone();
  EXPECT_EQ(scheduler_->kv().SlotsQuarantined(0), 8u);
  StepDone();
  EXPECT_EQ(scheduler_->kv().SlotsQuarantined(0), 0u);
  EXPECT_EQ(scheduler_->KvStats(0).slots_held, 18u - 8);
}

TEST_F(SchedulerWindowsTest, ASequenceOutgrowsTheSlotsThatThereAre) {
  Make(WindowOptions(18));
  ASSERT_TRUE(Submit(1, 5, 120).ok());
  ASSERT_TRUE(Submit(2, 100, 120).ok());

  RunUntilIdle();

  EXPECT_THAT(IndicesOf(1), SizeIs(115));
  EXPECT_THAT(IndicesOf(2), SizeIs(20));
  EXPECT_EQ(scheduler_->kv().SlotsFree(0), 18u);
}

TEST_F(SchedulerWindowsTest, WithoutRoomForItsWindowARequestIsRefused) {
  Make(WindowOptions(17));
  EXPECT_TRUE(Submit(1, 5, 18).ok());
  EXPECT_THAT(Submit(2, 5, 60).message(), HasSubstr("can grow to 18 slots"));
}

// One layer without a window needs everything.
TEST_F(SchedulerWindowsTest, NothingIsReleasedWhereALayerSeesEverything) {
  SchedulerOptions options = WindowOptions(100);
  const std::vector<AttentionDescriptor> layers = {{.window = 10}, {}};
  options.windows = cost::LayerWindows(layers);
  Make(options);
  ASSERT_TRUE(Submit(1, 16, 60).ok());
  do {
    for (const plan::StepPlan& plan : Plan()) {
      EXPECT_THAT(plan.releases, IsEmpty());
    }
  } while (StepDone());
  EXPECT_THAT(IndicesOf(1), SizeIs(44));
}

// Blocks are found as long as those who use them have all their slots.
TEST_F(SchedulerWindowsTest, APrefixWhoseFirstBlocksAreReleasedIsNoHit) {
  SchedulerOptions options = WindowOptions(200);
  const std::vector<AttentionDescriptor> layers = {{.window = 40}};
  options.windows = cost::LayerWindows(layers);
  options.prefix_cache = true;
  options.prompt_rows_max = 64;
  Make(options);
  const auto found_by = [this](plan::SequenceId id, uint32_t prompt, uint32_t tokens_max) {
    const uint64_t before = scheduler_->Stats().prefix_cache.tokens_found;
    EXPECT_TRUE(Submit(id, prompt, tokens_max).ok());
    RunUntilIdle();
    return scheduler_->Stats().prefix_cache.tokens_found - before;
  };

  EXPECT_EQ(found_by(1, 32, 36), 0u);
  EXPECT_EQ(found_by(2, 33, 36), 32u);
  EXPECT_EQ(found_by(3, 90, 100), 32u);  // More than a window and a block is of no use to it.
  EXPECT_EQ(found_by(4, 33, 36), 0u);
}

}  // namespace
}  // namespace lamina::core
