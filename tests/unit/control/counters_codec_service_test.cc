// SPDX-License-Identifier: Apache-2.0
#include "control/counters_codec_service.h"

#include <gtest/gtest.h>

namespace lamina::control {
namespace {

TEST(CountersCodecTest, ALinkArrivesAsItWasCounted) {
  const telemetry::NodeCounters sent{.links = {{.peer = "m0",
                                                .bytes = 1,
                                                .puts = 2,
                                                .seconds = 3,
                                                .failures = 4,
                                                .waited_seconds = 5,
                                                .exchange_seconds = 6,
                                                .exchange_bytes_per_second = 7}}};
  v1::NodeDetail detail;
  ToProto(sent, &detail);
  telemetry::NodeCounters got;

  FromProto(detail, got);

  ASSERT_EQ(got.links.size(), 1u);
  const telemetry::LinkCount& link = got.links[0];
  EXPECT_EQ(link.peer, "m0");
  EXPECT_EQ(link.bytes + link.puts + link.failures, 7u);
  EXPECT_EQ(link.seconds, 3);
  EXPECT_EQ(link.waited_seconds, 5);
  EXPECT_EQ(link.exchange_seconds, 6);
  EXPECT_EQ(link.exchange_bytes_per_second, 7);
}

TEST(CountersCodecTest, ASpillTierArrivesAsItWasCounted) {
  const telemetry::NodeCounters sent{.spill = {.capacity_bytes = 1,
                                               .used_bytes = 2,
                                               .bytes_out = 4,
                                               .bytes_in = 8,
                                               .sequences_out = 16,
                                               .sequences_in = 32,
                                               .cached_tokens_out = 128,
                                               .cached_tokens_in = 256,
                                               .failures = 64}};
  v1::NodeDetail detail;
  ToProto(sent, &detail);
  telemetry::NodeCounters got;

  FromProto(detail, got);

  EXPECT_EQ(got.spill.capacity_bytes, 1u);
  EXPECT_EQ(got.spill.used_bytes, 2u);
  EXPECT_EQ(got.spill.bytes_out, 4u);
  EXPECT_EQ(got.spill.bytes_in, 8u);
  EXPECT_EQ(got.spill.sequences_out, 16u);
  EXPECT_EQ(got.spill.sequences_in, 32u);
  EXPECT_EQ(got.spill.cached_tokens_out, 128u);
  EXPECT_EQ(got.spill.cached_tokens_in, 256u);
  EXPECT_EQ(got.spill.failures, 64u);
}

TEST(CountersCodecTest, AFittedLineArrives) {
  v1::NodeDetail detail;
  ToProto(telemetry::NodeCounters{.making = {1e-6, 2e-9, 0.75}}, &detail);
  telemetry::NodeCounters got;
  FromProto(detail, got);
  EXPECT_EQ(got.making, (telemetry::FittedSeconds{1e-6, 2e-9, 0.75}));

  detail.Clear();
  ToProto(telemetry::NodeCounters(), &detail);
  EXPECT_FALSE(detail.has_making());
  FromProto(detail, got);
  EXPECT_FALSE(got.making.fitted());
}

TEST(CountersCodecTest, BusesArriveAsTheyWereCounted) {
  const telemetry::NodeCounters sent{
      .buses = {{"to", 1000, 0.5, {{"kv", 300}, {"weights", 200}}}, {"from", 1000, 0, {}}}};
  v1::NodeDetail detail;
  ToProto(sent, &detail);
  telemetry::NodeCounters got;

  FromProto(detail, got);

  ASSERT_EQ(got.buses.size(), 2u);
  EXPECT_EQ(got.buses[0].direction, "to");
  EXPECT_EQ(got.buses[0].bytes_per_second, 1000u);
  EXPECT_EQ(got.buses[0].busy_seconds, 0.5);
  EXPECT_EQ(got.buses[0].bytes, sent.buses[0].bytes);
  EXPECT_EQ(got.buses[1].direction, "from");
  EXPECT_TRUE(got.buses[1].bytes.empty());
}

TEST(CountersCodecTest, NamesAndTheirNumberAreBounded) {
  v1::NodeDetail detail;
  for (int i = 0; i < 10'000; ++i) {
    detail.add_parts()->set_part("part");
    detail.add_refusals()->set_reason("reason");
    detail.add_links()->set_peer("m0");
  }
  detail.mutable_parts(0)->set_part(std::string(1 << 20, 'x'));
  detail.mutable_refusals(0)->set_reason(std::string(1 << 20, 'x'));
  detail.mutable_links(0)->set_peer("m0\nm1");
  telemetry::NodeCounters counters;

  FromProto(detail, counters);

  EXPECT_EQ(counters.parts.size(), 256u);
  EXPECT_EQ(counters.refusals.size(), 256u);
  EXPECT_EQ(counters.links.size(), 256u);
  EXPECT_LT(counters.parts[0].first.size(), 300u);
  EXPECT_LT(counters.refusals[0].first.size(), 300u);
  EXPECT_EQ(counters.links[0].peer, "m0\\nm1");
}

}  // namespace
}  // namespace lamina::control
