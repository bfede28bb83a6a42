// SPDX-License-Identifier: Apache-2.0
#include "policy/batch_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/philox.h"

namespace lamina::policy {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// K and V of a token take 2 seconds, its activation 1, making them 3.
constexpr HybridProfile kProfile{
    .load_kv = {.slope = 2}, .load_activations = {.slope = 1}, .make = {.slope = 3}};

MiniBatch Batch(size_t count, HybridRequest tokens) {
  return MiniBatch(count, BatchRequest{.tokens = tokens});
}

HybridTokens TokensOf(const MiniBatch& batch) {
  HybridTokens tokens;
  for (const BatchRequest& request : batch) {
    tokens.activations += request.tokens.activations;
    tokens.kv += request.tokens.kv;
    tokens.resident += request.tokens.resident;
  }
  return tokens;
}

// E1 of two mini-batches, written out.
double SecondsOfTwo(const HybridProfile& profile, const std::vector<MiniBatch>& batches) {
  const HybridTokens one = TokensOf(batches[0]);
  const HybridTokens other = TokensOf(batches[1]);
  return std::max(DeviceSeconds(profile, one), LinkSeconds(profile, other)) +
         std::max(DeviceSeconds(profile, other), LinkSeconds(profile, one));
}

void Apply(const BatchExchange& exchange, std::vector<MiniBatch>& batches) {
  std::swap(batches[exchange.batch][exchange.request],
            batches[exchange.other_batch][exchange.other_request]);
}

std::vector<MiniBatch> After(std::vector<MiniBatch> batches,
                             const std::vector<BatchExchange>& exchanges) {
  for (const BatchExchange& exchange : exchanges) {
    Apply(exchange, batches);
  }
  return batches;
}

double LengthOf(const MiniBatch& batch) { return TokensOf(batch).all(); }

TEST(RoundSecondsTest, WhileOneIsMadeTheNextOneComes) {
  // Link 10 and 20, device 30 and 0.
  const std::vector<HybridTokens> apart = {{.activations = 10}, {.kv = 10}};
  EXPECT_EQ(RoundSeconds(kProfile, apart), 30 + 10);
  // Link 15 and device 15 each.
  const std::vector<HybridTokens> alike(2, HybridTokens{.activations = 5, .kv = 5});
  EXPECT_EQ(RoundSeconds(kProfile, alike), 15 + 15);
  // A single one waits for itself, in the next layer.
  EXPECT_EQ(RoundSeconds(kProfile, std::vector<HybridTokens>{{.activations = 1, .kv = 4}}), 9);
  // The first one comes behind the last.
  const std::vector<HybridTokens> three = {{.kv = 10}, {.kv = 1}, {.activations = 5}};
  EXPECT_EQ(RoundSeconds(kProfile, three), 2 + 5 + 20);
}

TEST(ChooseExchangesTest, ActivationsOfOneLaneAreSpreadOverBoth) {
  const std::vector<MiniBatch> batches = {Batch(4, {.activations = 16}), Batch(4, {.kv = 16})};
  EXPECT_EQ(SecondsOfTwo(kProfile, batches), 192 + 64);
  const std::vector<BatchExchange> exchanges = ChooseExchanges(kProfile, batches);
  EXPECT_THAT(exchanges, SizeIs(2));
  EXPECT_EQ(SecondsOfTwo(kProfile, After(batches, exchanges)), 96 + 96);
}

// Slots take turns, a quarter of the blocks activations, and lanes took turns with requests of two
// blocks: one lane has them all.
TEST(ChooseExchangesTest, KindsThatTookTurnsAsLanesDidAreMixed) {
  const HybridProfile profile{
      .load_kv = {.slope = 1}, .load_activations = {.slope = 0.5}, .make = {.slope = 3.5}};
  const std::vector<MiniBatch> batches = {Batch(8, {.kv = 32}),
                                          Batch(8, {.activations = 16, .kv = 16})};
  EXPECT_EQ(SecondsOfTwo(profile, batches), 640);
  const std::vector<BatchExchange> exchanges = ChooseExchanges(profile, batches);
  EXPECT_THAT(exchanges, SizeIs(4));
  EXPECT_EQ(SecondsOfTwo(profile, After(batches, exchanges)), 448);
}

TEST(ChooseExchangesTest, WhereASideIsNeverIdleNothingMoves) {
  // The link is busy all the time, with activations in one lane and K and V in the other.
  HybridProfile profile = kProfile;
  profile.make.slope = 2;
  const std::vector<MiniBatch> apart = {Batch(4, {.activations = 16}), Batch(4, {.kv = 16})};
  EXPECT_THAT(ChooseExchanges(profile, apart), IsEmpty());
  // So are both sides here.
  const std::vector<MiniBatch> alike(2, Batch(4, {.activations = 16, .kv = 16}));
  EXPECT_THAT(ChooseExchanges(kProfile, alike), IsEmpty());
  EXPECT_THAT(ChooseExchanges(kProfile, std::vector<MiniBatch>()), IsEmpty());
  EXPECT_THAT(ChooseExchanges(kProfile, std::vector<MiniBatch>(2)), IsEmpty());
  EXPECT_THAT(ChooseExchanges(kProfile, std::vector<MiniBatch>(1, apart[0])), IsEmpty());
}

TEST(ChooseExchangesTest, WhatStaysOnTheDeviceDoesNotCome) {
  // The device is never idle: in one lane it makes what it has, while K and V of the other come.
  const std::vector<MiniBatch> apart = {Batch(4, {.resident = 16}), Batch(4, {.kv = 16})};
  EXPECT_EQ(SecondsOfTwo(kProfile, apart), 192 + 0);
  EXPECT_THAT(ChooseExchanges(kProfile, apart), IsEmpty());
  // The link is idle here while the device makes what has come.
  const std::vector<MiniBatch> idle = {Batch(4, {.resident = 16}),
                                       Batch(4, {.activations = 16, .kv = 48})};
  EXPECT_EQ(SecondsOfTwo(kProfile, idle), 448 + 192);
  const std::vector<BatchExchange> exchanges = ChooseExchanges(kProfile, idle);
  EXPECT_THAT(exchanges, SizeIs(2));
  EXPECT_EQ(SecondsOfTwo(kProfile, After(idle, exchanges)), 224 + 224);
}

TEST(ChooseExchangesTest, ThoseThatMayNotMoveStay) {
  std::vector<MiniBatch> batches = {Batch(4, {.activations = 16}), Batch(4, {.kv = 16})};
  batches[0][0].may_move = false;
  batches[0][1].may_move = false;
  const std::vector<BatchExchange> exchanges = ChooseExchanges(kProfile, batches);
  ASSERT_THAT(exchanges, SizeIs(2));
  EXPECT_EQ(exchanges[0].request + exchanges[1].request, 2u + 3u);
  for (BatchRequest& request : batches[1]) {
    request.may_move = false;
  }
  EXPECT_THAT(ChooseExchanges(kProfile, batches), IsEmpty());
}

HybridProfile RandomProfile(Prng& random) {
  const auto up_to = [&random](double most) {
    return most * static_cast<double>(random.Below(1001)) / 1000;
  };
  HybridProfile profile{.load_kv = {.slope = 1}, .load_activations = {.slope = 0.5}};
  profile.make.slope = 0.2 + up_to(4);
  profile.make.fixed = up_to(5);
  profile.attend = up_to(0.5);
  profile.load_weights = up_to(50);
  profile.dense = up_to(30);
  return profile;
}

HybridRequest Random(Prng& random, uint32_t blocks) {
  HybridRequest tokens;
  for (uint32_t block = 0; block < blocks; ++block) {
    (random.Below(2) == 0 ? tokens.activations : tokens.kv) += 16;
  }
  return tokens;
}

// Every exchange of two mini-batches tried. For odd seeds activations of some requests stay.
TEST(BestExchangeTest, NoAllowedExchangeIsBetter) {
  uint32_t found = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Prng random(seed);
    const HybridProfile profile = RandomProfile(random);
    std::vector<MiniBatch> batches(2);
    for (MiniBatch& batch : batches) {
      for (uint64_t i = 1 + random.Below(4); i > 0; --i) {
        const auto blocks = static_cast<uint32_t>(1 + random.Below(4));
        batch.push_back({.tokens = Random(random, blocks), .may_move = random.Below(5) > 0});
        if (seed % 2 == 1 && i % 2 == 0) {
          std::swap(batch.back().tokens.activations, batch.back().tokens.resident);
        }
      }
    }
    double best = std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < batches[0].size(); ++i) {
      for (uint32_t j = 0; j < batches[1].size(); ++j) {
        const BatchRequest& one = batches[0][i];
        const BatchRequest& other = batches[1][j];
        const bool same = one.tokens.activations == other.tokens.activations &&
                          one.tokens.kv == other.tokens.kv &&
                          one.tokens.resident == other.tokens.resident;
        std::vector<MiniBatch> after = batches;
        Apply({.batch = 0, .request = i, .other_batch = 1, .other_request = j}, after);
        const double apart = std::abs(LengthOf(after[0]) - LengthOf(after[1]));
        const double longer = std::max(LengthOf(after[0]), LengthOf(after[1]));
        const bool keeps =
            apart <= std::abs(LengthOf(batches[0]) - LengthOf(batches[1])) || 8 * apart <= longer;
        if (one.may_move && other.may_move && !same && keeps) {
          best = std::min(best, SecondsOfTwo(profile, after));
        }
      }
    }
    const std::optional<BatchExchange> chosen = BestExchange(profile, batches);
    ASSERT_EQ(chosen.has_value(), std::isfinite(best));
    if (chosen.has_value()) {
      ++found;
      std::vector<MiniBatch> after = batches;
      Apply(*chosen, after);
      EXPECT_LE(SecondsOfTwo(profile, after), best * (1 + 1e-8));
    }
  }
  EXPECT_GT(found, 50u);
}

// The shortest round of all ways to put eight requests into two mini-batches of four.
double ShortestOfAll(const HybridProfile& profile, const std::vector<MiniBatch>& batches) {
  MiniBatch all = batches[0];
  all.insert(all.end(), batches[1].begin(), batches[1].end());
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t chosen = 0; chosen < 256; ++chosen) {
    std::vector<MiniBatch> split(2);
    for (uint32_t i = 0; i < 8; ++i) {
      split[(chosen >> i) & 1].push_back(all[i]);
    }
    if (split[0].size() == 4) {
      best = std::min(best, SecondsOfTwo(profile, split));
    }
  }
  return best;
}

TEST(ChooseExchangesTest, ExchangesPayAndComeNearTheShortestRound) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Prng random(seed);
    HybridProfile profile = RandomProfile(random);
    profile.make.fixed = 0;
    std::vector<MiniBatch> batches(2);
    for (MiniBatch& batch : batches) {
      for (int i = 0; i < 4; ++i) {
        batch.push_back({.tokens = Random(random, 2)});
      }
    }
    const std::vector<BatchExchange> exchanges = ChooseExchanges(profile, batches);
    std::set<std::pair<uint32_t, uint32_t>> moved;
    for (const BatchExchange& exchange : exchanges) {
      EXPECT_TRUE(moved.emplace(exchange.batch, exchange.request).second);
      EXPECT_TRUE(moved.emplace(exchange.other_batch, exchange.other_request).second);
    }
    const double before = SecondsOfTwo(profile, batches);
    const double after = SecondsOfTwo(profile, After(batches, exchanges));
    EXPECT_LE(after, exchanges.empty() ? before : before * (1 - kSavedMin));
    const double shortest = ShortestOfAll(profile, batches);
    EXPECT_GE(after, shortest * (1 - 1e-9));
    EXPECT_LE(after, shortest * 1.25);
  }
}

TEST(ChooseExchangesTest, NoMoreAtOnceThanTheMost) {
  const std::vector<MiniBatch> batches = {Batch(100, {.activations = 16}), Batch(100, {.kv = 16})};
  EXPECT_THAT(ChooseExchanges(kProfile, batches), SizeIs(kExchangesMax));
}

}  // namespace
}  // namespace lamina::policy
