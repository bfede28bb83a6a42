// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/link_belief.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr KnownLink kGood = {.path = "shm", .latency_seconds = 5e-6, .bytes_per_second = 5e9};

// As it was once: shared memory, measured while the host was busy.
constexpr KnownLink kBadMoment = {
    .path = "shm", .latency_seconds = 692e-6, .bytes_per_second = 2e8};

KnownLink Used(KnownLink link, double exchange_seconds, double bytes_per_second) {
  link.exchange_seconds = exchange_seconds;
  link.exchange_bytes_per_second = bytes_per_second;
  return link;
}

TEST(LinkBeliefTest, WhatWasMeasuredIsBelievedUntilUseSaysBetter) {
  EXPECT_EQ(BelievedLatency(kGood), 5e-6);
  EXPECT_EQ(BelievedBandwidth(kGood), 5e9);
  const KnownLink used = Used(kBadMoment, 60e-6, 1e9);
  EXPECT_DOUBLE_EQ(BelievedLatency(used), 30e-6);
  EXPECT_EQ(BelievedBandwidth(used), 1e9);
}

TEST(LinkBeliefTest, ALongExchangeSaysNothingAgainstALink) {
  const KnownLink used = Used(kGood, 3e-3, 1e6);
  EXPECT_EQ(BelievedLatency(used), 5e-6);
  EXPECT_EQ(BelievedBandwidth(used), 5e9);
}

TEST(LinkBeliefTest, WhatComesIsWithinTheBoundsOfItsUse) {
  KnownLink link = Used(kGood, 3e-3, 1e6);
  EXPECT_EQ(FetchBandwidth(link), 5e9);
  link.fetched_bytes_per_second_most = 2e9;  // The link has become slower.
  EXPECT_EQ(FetchBandwidth(link), 2e9);
  EXPECT_EQ(BelievedBandwidth(link), 5e9) << "of other uses nothing is known";
  link.fetched_bytes_per_second_least = 1.5e9;
  EXPECT_EQ(FetchBandwidth(link), 2e9);
  link.bytes_per_second = 1e8;  // It was measured at a bad moment.
  EXPECT_EQ(FetchBandwidth(link), 1.5e9);
  link.fetched_bytes_per_second_most = 0;
  EXPECT_EQ(FetchBandwidth(link), 1.5e9);
}

// A minute in which rows hardly waited doubles what is believed, but for what use has shown.
TEST(LinkBeliefTest, ALinkThatRowsDoNotWaitForMayBeFaster) {
  KnownLink link = kGood;
  link.fetched_unbounded_seconds = 60;
  EXPECT_DOUBLE_EQ(FetchBandwidth(link), 10e9);
  EXPECT_EQ(BelievedBandwidth(link), 5e9) << "no other use is tried out little by little";
  link.fetched_bytes_per_second_least = 7e9;
  EXPECT_DOUBLE_EQ(FetchBandwidth(link), 14e9);
  link.fetched_unbounded_seconds = 1e9;
  EXPECT_DOUBLE_EQ(FetchBandwidth(link), 64 * 7e9) << "for however long";
  link.fetched_bytes_per_second_most = 9e9;
  EXPECT_EQ(FetchBandwidth(link), 9e9);
  link.fetched_unbounded_seconds = 0;
  EXPECT_EQ(FetchBandwidth(link), 7e9);
}

// Rows that wait for the slower one of two links do not wait for the other.
TEST(LinkBeliefTest, NoneOfSeveralLinksIsFasterForRowsThatWaitForAnother) {
  KnownLink fast = kGood;
  fast.fetched_bytes_per_second_least = 1e9;
  fast.fetched_unbounded_seconds = 120;
  KnownLink slow = fast;
  slow.bytes_per_second = 1e9;
  slow.fetched_unbounded_seconds = 60;
  const KnownLink unused = {.path = "shm", .bytes_per_second = 3e9};
  const KnownLink unmeasured = {.path = "shm"};
  EXPECT_EQ(FetchBandwidthOfAll({}), 0);
  EXPECT_DOUBLE_EQ(FetchBandwidthOfAll({fast, unused, unmeasured}), 20e9 + 3e9);
  EXPECT_DOUBLE_EQ(FetchBandwidthOfAll({fast, slow}), 10e9 + 2e9);
  slow.fetched_unbounded_seconds = 0;
  EXPECT_DOUBLE_EQ(FetchBandwidthOfAll({fast, slow}), 5e9 + 1e9);
}

TEST(LinkBeliefTest, WhatCameOfKAndVDisprovesAMeasurementToo) {
  KnownLink link = {.path = "ucx tcp/eth0", .latency_seconds = 20e-6, .bytes_per_second = 3e7};
  link.exchange_bytes_per_second = 5e7;
  link.fetched_bytes_per_second_least = 8e7;
  EXPECT_THAT(OddLinks({link}), ElementsAre("")) << "less than three times as much";
  link.fetched_bytes_per_second_least = 9e8;
  EXPECT_EQ(BelievedBandwidth(link), 9e8);
  EXPECT_THAT(OddLinks({link}),
              ElementsAre("measured as 0.03 GB/s when the epoch began, a bad moment: K and V that "
                          "came had 0.90 GB/s since"));
}

TEST(LinkBeliefTest, AMeasurementThatUseDisprovedIsOdd) {
  const KnownLink slow = {
      .path = "verbs mlx5_0/1", .latency_seconds = 3e-6, .bytes_per_second = 1e8};
  EXPECT_THAT(
      OddLinks({Used(kBadMoment, 60e-6, 1e6), Used(slow, 1e-3, 1e9), Used(kGood, 1e-3, 1e6)}),
      ElementsAre(HasSubstr("measured as 692.0 us when the epoch began, a bad moment: "
                            "exchanges took 60.0 us"),
                  HasSubstr("measured as 0.10 GB/s when the epoch began, a bad moment: "
                            "exchanges had 1.00 GB/s"),
                  ""));
}

TEST(LinkBeliefTest, SharedMemoryIsFarFromItsKindEvenAlone) {
  EXPECT_THAT(OddLinks({kBadMoment}),
              ElementsAre(HasSubstr("far from its kind, which takes 20.0")));
  EXPECT_THAT(OddLinks({kGood}), ElementsAre(""));
}

TEST(LinkBeliefTest, OthersAreComparedWithTheFastestOfTheirKind) {
  const KnownLink near = {
      .path = "ucx tcp/eth0", .latency_seconds = 20e-6, .bytes_per_second = 1e9};
  KnownLink far = near;
  far.path = "ucx tcp/eth1";
  far.latency_seconds = 400e-6;
  EXPECT_THAT(OddLinks({near, far}), ElementsAre("", HasSubstr("which takes 20.0 us")));
  EXPECT_THAT(OddLinks({far}), ElementsAre("")) << "there is nothing to compare it with";
  far.path = "verbs mlx5_0/1";
  EXPECT_THAT(OddLinks({near, far}), ElementsAre("", "")) << "another kind";
}

TEST(LinkBeliefTest, LinksThatAreSlowedDownOnPurposeAreNotOdd) {
  KnownLink slowed = Used(kBadMoment, 60e-6, 1e6);
  slowed.path = "shm (decorated)";
  EXPECT_THAT(OddLinks({slowed, kGood}), ElementsAre("", ""));
}

}  // namespace
}  // namespace lamina::core
