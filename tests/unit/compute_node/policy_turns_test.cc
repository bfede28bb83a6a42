// SPDX-License-Identifier: Apache-2.0
//
// What turns say of a host whose reads have two speeds, and what policy auto takes by that.

#include "compute_node/policy_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "coordinator/core/policy_choice.h"
#include "tests/unit/cost/two_cores.h"

namespace lamina::compute_node {
namespace {

using cost::KvPolicy;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kSlow = 37e9;
constexpr double kFast = 63e9;

// A turn of one number of rows, in which all that is measured is `seconds`, or a rate of 1/seconds.
PolicyTurn Turn(double before, double after, double seconds) {
  const std::vector<plan::SliceTimes> sizes = {
      {.rows = 1, .slice_seconds = seconds, .tail_seconds = 2 * seconds}};
  return {.reads_before = before,
          .reads_after = after,
          .times = {.local = sizes,
                    .pools = sizes,
                    .attention_local = 1 / seconds,
                    .attention_shared = 1 / seconds,
                    .attention_pools = 1 / seconds,
                    .make_seconds = seconds}};
}

TEST(TimesOfTurnsTest, WhereReadsAreAlikeAllFiguresAreMedians) {
  const plan::PolicyTimes times =
      TimesOfTurns({Turn(60, 61, 3), Turn(61, 62, 1), Turn(62, 63, 9), Turn(63, 60, 2)});
  EXPECT_EQ(times.local[0].slice_seconds, 2);
  EXPECT_EQ(times.pools[0].tail_seconds, 4);
  EXPECT_EQ(times.attention_local, 0.5);
  EXPECT_EQ(times.attention_shared, 0.5);
  EXPECT_EQ(times.attention_pools, 0.5);
  EXPECT_EQ(times.make_seconds, 2);
  EXPECT_EQ(times.read_bandwidth, 61.5);
  EXPECT_EQ(times.reads_low, 60);
  EXPECT_EQ(times.reads_high, 63);
  EXPECT_THAT(times.ends, IsEmpty());
}

TEST(TimesOfTurnsTest, WhereReadsDifferEachSpeedHasFiguresOfItsOwn) {
  const std::vector<PolicyTurn> turns = {Turn(kFast, kFast, 1), Turn(kFast, kSlow, 7),
                                         Turn(kSlow, kSlow, 3), Turn(kSlow, kSlow, 4)};
  const plan::PolicyTimes times = TimesOfTurns(turns);
  ASSERT_THAT(times.ends, SizeIs(2));
  EXPECT_EQ(times.ends[0].local[0].slice_seconds, 3);
  EXPECT_EQ(times.ends[0].read_bandwidth, kSlow);
  EXPECT_EQ(times.ends[1].local[0].slice_seconds, 1);
  EXPECT_EQ(times.ends[1].read_bandwidth, kFast);
  EXPECT_EQ(times.local[0].slice_seconds, 3) << "of the speed that more turns had";
  EXPECT_EQ(times.reads_low, kSlow);
  EXPECT_EQ(times.reads_high, kFast);
  const absl::Status checked = plan::CheckPolicyTimes(times);
  EXPECT_TRUE(checked.ok()) << checked;
}

TEST(TimesOfTurnsTest, ATurnInWhichReadsChangedSaysNothing) {
  const plan::PolicyTimes times = TimesOfTurns({Turn(kFast, kSlow, 7), Turn(kSlow, kSlow, 3)});
  EXPECT_EQ(times.local[0].slice_seconds, 3);
  EXPECT_THAT(times.ends, IsEmpty());
  EXPECT_EQ(times.reads_high, kFast) << "it was seen all the same";
  const plan::PolicyTimes torn = TimesOfTurns({Turn(kFast, kSlow, 7), Turn(kSlow, kFast, 5)});
  EXPECT_EQ(torn.local[0].slice_seconds, 5) << "unless there is no other";
  EXPECT_THAT(torn.ends, IsEmpty());
}

TEST(TimesOfTurnsTest, ReadsThatAreNotKnownTellNothingApart) {
  const plan::PolicyTimes times = TimesOfTurns({Turn(0, 0, 7), Turn(0, 0, 5)});
  EXPECT_EQ(times.local[0].slice_seconds, 5);
  EXPECT_EQ(times.read_bandwidth, 0);
  EXPECT_EQ(times.reads_low, 0);
}

// Starts on a host of two cores on which two pools are faster by a sixth at 16 rows of 1,000 tokens
// while reads are fast, and slower by a third while they are slow.
class StartsTest : public ::testing::Test {
 protected:
  // The speed at a point of the measurement, which lasts from 0 to 1.
  using Reads = std::function<double(double)>;

  // From 0 to 1.
  double Uniform() { return static_cast<double>(random_()) / static_cast<double>(random_.max()); }
  double Noise() { return 0.97 + 0.06 * Uniform(); }

  plan::PolicyTimes FiguresAt(double reads) {
    plan::PolicyTimes times = test_support::TwoCores();
    if (reads == kSlow) {
      times.attention_local = 13e9;
      times.attention_shared = 3e9;
    }
    for (auto* sizes : {&times.local, &times.pools}) {
      for (plan::SliceTimes& size : *sizes) {
        size.slice_seconds *= Noise();
        size.tail_seconds *= Noise();
      }
    }
    times.attention_local *= Noise();
    times.attention_shared *= Noise();
    return times;
  }

  // Parts of `local` as they were at one time, those of two pools as they were at another.
  plan::PolicyTimes Parts(double local, double pools) {
    plan::PolicyTimes times = FiguresAt(local);
    const plan::PolicyTimes other = FiguresAt(pools);
    times.pools = other.pools;
    times.attention_shared = other.attention_shared;
    return times;
  }

  static core::PolicyInputs InputsOf(const plan::PolicyTimes& times) {
    core::PolicyInputs inputs = {.compute = test_support::Whole(times),
                                 .model = test_support::kModel,
                                 .pools = test_support::kPools};
    inputs.pools.attention = times.attention_shared;
    return inputs;
  }

  static KvPolicy Chosen(const plan::PolicyTimes& times) {
    std::vector<core::PolicyInputs> ends;
    for (const plan::PolicyTimes& end : times.ends) {
      ends.push_back(InputsOf(end));
    }
    return core::ChoosePolicy(InputsOf(times),
                              {{.policy = KvPolicy::kAttendRemote}, {.policy = KvPolicy::kLocal}},
                              {.rows = 16, .context = 1000}, std::nullopt, {}, ends)
        .policy;
  }

  // Turn by turn, with reads between turns.
  KvPolicy ByTurns(const Reads& reads) {
    constexpr int kTurns = 4;
    std::vector<PolicyTurn> turns;
    for (int i = 0; i < kTurns; ++i) {
      const double from = static_cast<double>(i) / kTurns;
      turns.push_back({.reads_before = reads(from) * Noise(),
                       .reads_after = reads(from + 1.0 / kTurns) * Noise(),
                       .times = Parts(reads(from), reads(from + 0.5 / kTurns))});
    }
    return Chosen(TimesOfTurns(turns));
  }

  // First three rounds of all that `local` has, then three of all that two pools have; medians.
  KvPolicy OneAfterTheOther(const Reads& reads) {
    std::vector<PolicyTurn> rounds;
    for (int i = 0; i < 3; ++i) {
      rounds.push_back({.times = Parts(reads(i / 6.0), reads(0.5 + i / 6.0))});
    }
    return Chosen(TimesOfTurns(rounds));
  }

  std::mt19937 random_{1};
};

TEST_F(StartsTest, WithOneSpeedThePolicyThatIsFasterThenIsTaken) {
  EXPECT_EQ(ByTurns([](double) { return kSlow; }), KvPolicy::kLocal);
  EXPECT_EQ(ByTurns([](double) { return kFast; }), KvPolicy::kAttendRemote);
}

TEST_F(StartsTest, WhereReadsChangeMeanwhileTheSamePolicyIsTakenByEachStart) {
  std::set<KvPolicy> by_turns;
  std::set<KvPolicy> one_after_the_other;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    random_.seed(seed);
    const double change = 0.3 + 0.4 * Uniform();
    const bool slow_first = Uniform() < 0.5;
    const Reads reads = [&](double at) { return (at < change) == slow_first ? kSlow : kFast; };
    by_turns.insert(ByTurns(reads));
    one_after_the_other.insert(OneAfterTheOther(reads));
  }
  EXPECT_THAT(by_turns, ElementsAre(KvPolicy::kLocal)) << "which loses less where it is slower";
  EXPECT_THAT(one_after_the_other, SizeIs(2)) << "or there is nothing to be had by turns";
}

}  // namespace
}  // namespace lamina::compute_node
