// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hybrid_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/philox.h"
#include "coordinator/hybrid_room.h"

namespace lamina::coordinator {
namespace {

using testing::HasSubstr;

constexpr uint64_t kCapacity = uint64_t{1} << 30;

// A layer's K and V have 4 * width bytes of a multi-head model, its activation half of them.
EngineOptions Options(uint32_t width, HybridOptions hybrid) {
  EngineOptions options;
  options.layers =
      std::vector(3, AttentionDescriptor{.query_heads = 8, .kv_heads = 8, .head_dim = 64});
  options.fetch.activation_width = width;
  options.fetch.hybrid = hybrid;
  return options;
}

core::FetchRates Rates(double c) {
  const double kv_bytes = 2 * 512 * 2;
  return {.bytes_per_second = 1e9, .recompute_seconds = c * kv_bytes / 1e9};
}

HybridMeasures Measured(const core::FetchRates& rates) {
  return {.rates = rates, .capacity = kCapacity};
}

constexpr HybridLoad kLoad = {.rows = 8, .lanes = 1, .context_tokens = 8 * 512};

// So many seconds of that load.
void Serve(HybridShare& share, Nanos& now, double seconds, const HybridLoad& load) {
  for (int turns = static_cast<int>(std::lround(100 * seconds)); turns > 0; --turns) {
    now += Millis(10);
    EXPECT_TRUE(share.WantsLoad(now));
    share.SawLoad(now, load);
    EXPECT_FALSE(share.WantsLoad(now + Millis(1)));
  }
}

TEST(SlotsOfKindsTest, AsManyWholeBlocksAsFit) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Prng random(seed);
    const TokenBytes bytes{.kv = 1 + random() % 5000, .activation = 1 + random() % 5000};
    const plan::SlotKinds kinds(static_cast<uint32_t>(random() % 1025));
    const uint64_t capacity = random() % 100'000'000;
    const auto taken = [&](uint32_t slots) {
      return kinds.KvOf(slots) * bytes.kv + kinds.ActivationsOf(slots) * bytes.activation;
    };
    const uint32_t slots = SlotsOfKinds(bytes, kinds, capacity);
    EXPECT_EQ(slots % plan::SlotKinds::kBlockSlots, 0u);
    EXPECT_LE(taken(slots), capacity) << "seed " << seed;
    EXPECT_GT(taken(slots + plan::SlotKinds::kBlockSlots), capacity) << "seed " << seed;
  }
}

TEST(HybridRoomTest, BothPartsAreWholeBlocksThatFit) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Prng random(seed);
    const TokenBytes bytes{.kv = 1 + random() % 5000, .activation = 1 + random() % 5000};
    const plan::SlotKinds kinds(static_cast<uint32_t>(random() % 1025));
    const auto percent = static_cast<uint32_t>(1 + random() % 99);
    const uint64_t capacity = random() % 100'000'000;
    const HybridRoom room = RoomIn(bytes, kinds, percent, capacity);
    EXPECT_EQ(room.others % plan::SlotKinds::kBlockSlots, 0u);
    EXPECT_EQ(room.hybrid % plan::SlotKinds::kBlockSlots, 0u);
    const uint64_t hybrid =
        kinds.KvOf(room.hybrid) * bytes.kv + kinds.ActivationsOf(room.hybrid) * bytes.activation;
    EXPECT_LE(hybrid + room.others * bytes.kv, capacity);
    EXPECT_LE(hybrid, capacity / 100 * percent);
    EXPECT_LE(SlotsOfEach(bytes, percent, capacity), std::min(room.others, room.hybrid));
    const uint64_t wanted = plan::SlotKinds::kBlockSlots * (1 + random() % 100);
    const uint64_t enough = CapacityForEach(bytes, percent, wanted);
    EXPECT_GE(SlotsOfEach(bytes, percent, enough), wanted);
    EXPECT_LT(SlotsOfEach(bytes, percent, enough - 100), wanted);
  }
}

TEST(HybridShareTest, AConfiguredShareStays) {
  const EngineOptions options = Options(512, {.share = 256});
  HybridShare share(options);
  EXPECT_FALSE(share.Settle(Seconds(1), Measured(Rates(1))));
  EXPECT_EQ(share.share(), 256u);
  EXPECT_EQ(share.why(), "25% of tokens held as activations, as configured");
}

// At c = 1 two thirds, in sixteenths.
TEST(HybridShareTest, AMeasuredShareTakesAnEpochOnce) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  HybridShare share(options);
  EXPECT_THAT(share.why(), HasSubstr("until links are measured"));
  EXPECT_FALSE(share.Settle(Seconds(1), {}));
  EXPECT_EQ(share.share(), 512u);
  EXPECT_TRUE(share.Settle(Seconds(2), Measured(Rates(1))));
  EXPECT_EQ(share.share(), 11 * 64u);
  EXPECT_THAT(share.why(), HasSubstr("69% of tokens held as activations: K and V of one take"));
  EXPECT_FALSE(share.Settle(Seconds(3), Measured(Rates(4)))) << "it has just been settled";
  Nanos now = Seconds(70);
  Serve(share, now, 1, kLoad);
  EXPECT_FALSE(share.Settle(now, Measured(Rates(1.1)))) << "not worth an epoch";
  EXPECT_EQ(share.share(), 11 * 64u);
  now = Seconds(200);
  Serve(share, now, 1, kLoad);
  EXPECT_TRUE(share.Settle(now, Measured(Rates(4))));
  EXPECT_EQ(share.share(), 4 * 64u);
}

// The link has 250 MB/s where rows use it. Its probe says 1 GB/s, which is all that an epoch knows
// before it has served.
TEST(HybridShareTest, AnEpochThatHasServedNothingDoesNotOverruleWhatWasMeasured) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  HybridShare share(options);
  const core::FetchRates probed = Rates(4);
  core::FetchRates used = probed;
  used.bytes_per_second = 250e6;
  Nanos now = Seconds(1);
  Serve(share, now, 1, kLoad);
  EXPECT_TRUE(share.Settle(now, Measured(used)));
  EXPECT_EQ(share.share(), 11 * 64u);
  share.BeginEpoch();
  now += Seconds(61);
  EXPECT_FALSE(share.Settle(now, Measured(probed))) << "nothing has run";
  Serve(share, now, 0.1, kLoad);
  EXPECT_FALSE(share.Settle(now, Measured(probed))) << "one request that was over soon is no load";
  Serve(share, now, 1, kLoad);
  share.BeginEpoch();
  EXPECT_FALSE(share.Settle(now, Measured(probed))) << "that was another epoch";
  EXPECT_EQ(share.share(), 11 * 64u);
  Serve(share, now, 1, kLoad);
  EXPECT_TRUE(share.Settle(now, Measured(probed)));
  EXPECT_EQ(share.share(), 4 * 64u);
}

// It says nothing of attention and of slices until it has run some.
TEST(HybridShareTest, AComputeNodeThatStartsAnewDoesNotOverruleWhatWasMeasured) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  HybridShare share(options);
  const double unit = 8 * 512 * 2048 / 1e9;
  HybridMeasures measures = Measured(Rates(1));
  measures.rates.attend_seconds = measures.rates.recompute_seconds / 4;
  measures.slice = {.fixed = 0.75 * 0.5 * unit};
  Nanos now = Seconds(1);
  Serve(share, now, 1, kLoad);
  EXPECT_TRUE(share.Settle(now, measures));
  const uint32_t settled = share.share();
  EXPECT_LE(settled, 4 * 64u);
  share.BeginEpoch();
  now += Seconds(61);
  Serve(share, now, 1, kLoad);
  EXPECT_FALSE(share.Settle(now, Measured(Rates(1))));
  EXPECT_FALSE(share.Settle(now, measures)) << "it is no news";
  EXPECT_EQ(share.share(), settled);
}

// Attention is measured once requests have run, and counts for the device.
TEST(HybridShareTest, MeasuredAttentionIsWorthAnEpochAtOnce) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  HybridShare share(options);
  EXPECT_TRUE(share.Settle(Seconds(1), Measured(Rates(1))));
  core::FetchRates rates = Rates(1);
  rates.attend_seconds = rates.recompute_seconds / 2;
  EXPECT_TRUE(share.Settle(Seconds(2), Measured(rates)));
  EXPECT_EQ(share.share(), 5 * 64u);  // 0.5 k = a
  EXPECT_FALSE(share.Settle(Seconds(3), Measured(Rates(4))));
}

// The line's slope is what a further token takes; the mean has a share of what every layer takes.
TEST(HybridShareTest, ALineThatExplainsTheTimesCountsInsteadOfTheirMean) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  const double per_token = Rates(1).recompute_seconds;
  for (const double r_squared : {0.5, 0.99}) {
    HybridShare share(options);
    HybridMeasures measures = Measured(Rates(4));
    measures.making = {1e-9, per_token, r_squared};
    EXPECT_TRUE(share.Settle(Seconds(1), measures));
    EXPECT_EQ(share.share(), (r_squared > 0.8 ? 11 : 4) * 64u);
  }
}

// While weights come the device has nothing else to do: Algorithm 1's T_load_w. They take as long
// here as all tokens that the memory has room for take as K and V; no load has been seen.
TEST(HybridShareTest, WeightsOnTheLinkHaveMoreHeldAsActivations) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  for (const bool streamed : {false, true}) {
    HybridShare share(options);
    core::FetchRates rates = Rates(4);
    rates.weights_seconds = streamed ? static_cast<double>(kCapacity) / 3 / 1e9 : 0;
    EXPECT_TRUE(share.Settle(Seconds(1), Measured(rates)));
    // 4 a = a / 2 + k + weights, of a + k = 1.
    EXPECT_EQ(share.share(), ShareInSteps(streamed ? 4.0 / 9 : 2.0 / 9));
    EXPECT_EQ(share.why().find("and the layer's weights") != std::string::npos, streamed);
  }
}

// The memory holds 43 times the tokens that a step reads, with which the weights come.
TEST(HybridShareTest, WeightsCountAgainstTheTokensOfAStep) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  HybridShare share(options);
  const HybridLoad load{.rows = 8, .lanes = 1, .context_tokens = 8 * 512};
  HybridMeasures measures = Measured(Rates(3.5));
  measures.rates.weights_seconds = 8 * 512 * 2048 / 1e9;  // As K and V of the load.
  Nanos now = Seconds(1);
  EXPECT_TRUE(share.Settle(now, measures));
  EXPECT_EQ(share.share(), ShareInSteps(1.0 / 4)) << "next to so many the weights are little";
  Serve(share, now, 1, load);
  EXPECT_FALSE(share.Settle(now, measures)) << "what dense layers take is not measured";
  measures.slice = {.slope = 1e-9};
  EXPECT_TRUE(share.Settle(now, measures)) << "at once";
  EXPECT_EQ(share.share(), ShareInSteps(2.0 / 4));
  EXPECT_THAT(share.why(), HasSubstr("in a step of 4096 tokens"));
}

// In units of the load's K and V on the link. Three layers have four slices, the tail among them.
TEST(HybridShareTest, WhatTheDeviceDoesInDenseLayersIsNotThereForMaking) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  const double unit = 8 * 512 * 2048 / 1e9;
  for (const uint32_t lanes : {1u, 2u}) {
    HybridShare share(options);
    HybridMeasures measures = Measured(Rates(1));
    measures.slice = {.fixed = 0.75 * 0.3 * unit, .slope = 0.75 * 0.025 * unit};
    Nanos now = Seconds(1);
    EXPECT_TRUE(share.Settle(now, measures));
    EXPECT_EQ(share.share(), ShareInSteps(1 / 1.5));
    Serve(share, now, 1, {.rows = 8, .lanes = lanes, .context_tokens = 8 * 512});
    EXPECT_TRUE(share.Settle(now, measures));
    // 0.3 of each lane, and 0.2 of eight rows.
    EXPECT_EQ(share.share(), ShareInSteps((1 - 0.3 * lanes - 0.2) / 1.5));
  }
}

TEST(HybridShareTest, ALoadOfAnotherSizeIsWorthAnEpochOnceAMinuteHasPassed) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  HybridShare share(options);
  HybridMeasures measures = Measured(Rates(1));
  measures.slice = {.fixed = 1e-3};  // In a layer as long as K and V of 651 tokens on the link.
  Nanos now = Seconds(1);
  EXPECT_TRUE(share.Settle(now, measures));
  EXPECT_EQ(share.share(), 11 * 64u);
  Serve(share, now, 0.1, {.rows = 1, .lanes = 1, .context_tokens = 10});
  EXPECT_FALSE(share.Settle(now, measures)) << "one request that was over soon is no load";
  Serve(share, now, 10, {.rows = 1, .lanes = 1, .context_tokens = 400});
  EXPECT_TRUE(share.Settle(now, measures));
  EXPECT_EQ(share.share(), 64u);
  Serve(share, now, 50, {.rows = 8, .lanes = 1, .context_tokens = 64 * 512});
  EXPECT_FALSE(share.Settle(now, measures)) << "it has just been settled";
  Serve(share, now, 100, {.rows = 8, .lanes = 1, .context_tokens = 64 * 512});
  EXPECT_TRUE(share.Settle(now, measures));
  EXPECT_GE(share.share(), 10 * 64u);
}

// A row reads 512 tokens, and places are shared out over the rows that may run.
TEST(HybridShareTest, ActivationsThatStayCostTheLinkNothing) {
  for (const uint32_t each : {0u, 256u, 512u, 4096u}) {
    EngineOptions options = Options(512, {.share = 512, .automatic = true});
    options.scheduler.running_max = 16;
    options.scheduler.resident_tokens = 16 * each;
    HybridShare share(options);
    HybridMeasures measures = Measured(Rates(1));
    measures.slice = {.slope = 1e-9};
    Nanos now = Seconds(1);
    Serve(share, now, 1, kLoad);
    EXPECT_TRUE(share.Settle(now, measures) || each == 512 || each == 4096);
    // s = s (1 - r) / 2 + 1 - s, with room for r of the tokens.
    const double room = std::min(1.0, each / 512.0);
    EXPECT_EQ(share.share(), ShareInSteps(1 / (1.5 + room / 2))) << each;
    EXPECT_EQ(share.why().find("; activations of the first ") != std::string::npos, each > 0);
  }
}

// Without a load a step reads all that the memory holds, of which there is room for a seventeenth.
TEST(HybridShareTest, WhatStaysIsSaidWithoutALoadToo) {
  EngineOptions options = Options(512, {.share = 256});
  options.scheduler.resident_tokens = 256 * 40;
  EXPECT_THAT(HybridShare(options).why(),
              HasSubstr("as configured; activations of the first 32 tokens of a sequence stay"));
  options.fetch.hybrid = HybridOptions{.share = 512, .automatic = true};
  HybridShare share(options);
  EXPECT_TRUE(share.Settle(Seconds(1), Measured(Rates(1))));
  EXPECT_EQ(share.share(), ShareInSteps(1 / (1.5 + 0.5 / 17)));
  EXPECT_THAT(share.why(), HasSubstr(" us; activations of the first 32 tokens of a sequence stay"));
}

TEST(HybridShareTest, WhereMakingIsSlowSomeAreStillHeldSoThatItIsMeasured) {
  const EngineOptions options = Options(512, {.share = 512, .automatic = true});
  HybridShare share(options);
  EXPECT_TRUE(share.Settle(Seconds(1), Measured(Rates(1000))));
  EXPECT_EQ(share.share(), 64u);
}

TEST(HybridShareTest, LargeActivationsAreNotHeld) {
  const EngineOptions options = Options(1024, {.share = 512, .automatic = true});
  HybridShare share(options);
  EXPECT_EQ(share.share(), 0u);
  EXPECT_EQ(share.why(),
            "no token held as an activation: one has 2048 bytes in a layer, no fewer than K and V "
            "with 2048");
  EXPECT_FALSE(share.Settle(Seconds(1), Measured(Rates(1))));
  EXPECT_EQ(share.share(), 0u);
  const EngineOptions asked =
      Options(1024, {.share = 512, .automatic = true, .keeps_nothing = true});
  EXPECT_THAT(HybridShare(asked).why(),
              HasSubstr("held as an activation, and nothing kept in fetch.resident: one has 2048"));
}

}  // namespace
}  // namespace lamina::coordinator
