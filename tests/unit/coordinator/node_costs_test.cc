// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node_costs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/slot_kinds.h"

namespace lamina::coordinator {
namespace {

// Two layers of 1024 bytes of K and V a token, and of 512 bytes of its activation.
EngineOptions Options(double bus) {
  return {.layers =
              std::vector(2, AttentionDescriptor{.query_heads = 8, .kv_heads = 8, .head_dim = 32}),
          .bus_bytes_per_second = bus,
          .fetch = {.bytes = 1 << 20, .heads = 8, .activation_width = 256},
          .scheduler = {.lanes = 1,
                        .rows_max = 4,
                        .step_tokens_max = 16,
                        .chunk_tokens = 8,
                        .scratch_tokens = 64,
                        .sequence_tokens_max = 64,
                        .running_max = 8,
                        .waiting_max = 4}};
}

std::optional<uint32_t> ShareOf(const EngineOptions& options) {
  return options.fetch.hybrid.has_value() ? std::optional(options.fetch.hybrid->share)
                                          : std::nullopt;
}

FormedEpoch Epoch(const EngineOptions& options) {
  auto formed =
      EpochForming(options).Form({.epoch = 1,
                                  .transport = "shm://",
                                  .compute = {{.name = "c0"}},
                                  .fetch = options.fetch,
                                  .activation_share = ShareOf(options),
                                  .kv = {{.name = "m0", .slots = 100, .capacity_bytes = 1 << 20}},
                                  .bandwidth = {.bytes_per_second = {1e9}, .words = ""}});
  EXPECT_TRUE(formed.ok()) << formed.status();
  return *std::move(formed);
}

// A link of 4 MB/s, over which the fastest exchange had 5 MB/s.
AttachedNode Compute(uint64_t streamed_bytes) {
  AttachedNode node;
  node.links = {{.peer = "m0", .path = "shm", .latency_seconds = 1e-6, .bytes_per_second = 4e6}};
  node.counters.recomputed_tokens = 1000;
  node.counters.parts = {{"recompute", 0.5}};
  node.counters.links = {{.peer = "m0", .exchange_bytes_per_second = 5e6}};
  node.counters.streamed_bytes = streamed_bytes;
  return node;
}

// What of tokens comes in a second is the bus's by itself, whatever weights take of it.
TEST(FetchRatesOfTest, WeightsThatComeOverTheBusAreSecondsOfALayer) {
  const EngineOptions options = Options(/*bus=*/6e6);
  const FormedEpoch epoch = Epoch(options);
  for (const uint64_t bytes : {0u, 300'000u}) {
    const AttachedNode node = Compute(bytes);
    const core::FetchRates rates = FetchRatesOf(options, epoch, {.compute = {&node}, .memory = {}});
    EXPECT_DOUBLE_EQ(rates.weights_seconds, static_cast<double>(bytes) / 2 / 6e6);
    EXPECT_DOUBLE_EQ(rates.bytes_per_second, 6e6);
    EXPECT_DOUBLE_EQ(rates.recompute_seconds, 0.5e-3);
  }
}

// The link was measured with a thirtieth of what the bus has, on a busy host, or with more.
TEST(FetchRatesOfTest, ABusHasWhatTheClusterFileSaysOnceALinkIsKnown) {
  const EngineOptions options = Options(/*bus=*/6e6);
  const FormedEpoch epoch = Epoch(options);
  AttachedNode node = Compute(/*streamed_bytes=*/0);
  node.counters.links.clear();
  for (const double probed : {0.0, 2e5, 9e6}) {
    node.links[0].bytes_per_second = probed;
    const core::FetchRates rates = FetchRatesOf(options, epoch, {.compute = {&node}, .memory = {}});
    EXPECT_DOUBLE_EQ(rates.bytes_per_second, probed > 0 ? 6e6 : 0) << probed;
  }
}

// They are read from a file, and no link has them.
TEST(FetchRatesOfTest, WithoutABusWeightsTakeNoTimeOfLinks) {
  const EngineOptions options = Options(/*bus=*/0);
  const AttachedNode node = Compute(300'000);
  const core::FetchRates rates =
      FetchRatesOf(options, Epoch(options), {.compute = {&node}, .memory = {}});
  EXPECT_EQ(rates.weights_seconds, 0);
  EXPECT_DOUBLE_EQ(rates.bytes_per_second, 5e6);
}

// K and V have come with a quarter of what the link was measured to have.
TEST(FetchRatesOfTest, ALinkIsAsItWasUsedOfLate) {
  AttachedNode node = Compute(/*streamed_bytes=*/0);
  node.counters.links[0].fetched_bytes_per_second_least = 0.9e6;
  node.counters.links[0].fetched_bytes_per_second_most = 1e6;
  for (const double bus : {0.0, 6e6}) {
    const EngineOptions options = Options(bus);
    const core::FetchRates rates =
        FetchRatesOf(options, Epoch(options), {.compute = {&node}, .memory = {}});
    EXPECT_DOUBLE_EQ(rates.bytes_per_second, bus > 0 ? 6e6 : 1e6)
        << "a bus does not change, and weights may take a part of it";
  }
}

// Rows have hardly waited for it for a minute. Slots that hold activations stay as they are,
// however fast the link may be, until the next epoch begins.
TEST(FetchRatesOfTest, ALinkThatRowsDoNotWaitForMayBeFasterWhereSplitsFollow) {
  AttachedNode node = Compute(/*streamed_bytes=*/0);
  node.counters.links[0].fetched_bytes_per_second_least = 1e6;
  node.counters.links[0].fetched_unbounded_seconds = 60;
  EngineOptions options = Options(/*bus=*/0);
  core::FetchRates rates =
      FetchRatesOf(options, Epoch(options), {.compute = {&node}, .memory = {}});
  EXPECT_DOUBLE_EQ(rates.bytes_per_second, 10e6);

  options.fetch.hybrid = HybridOptions{.share = plan::SlotKinds::kUnit / 2};
  const FormedEpoch hybrid = Epoch(options);
  ASSERT_GT(hybrid.config().activation_share, 0u);
  rates = FetchRatesOf(options, hybrid, {.compute = {&node}, .memory = {}});
  EXPECT_DOUBLE_EQ(rates.bytes_per_second, 5e6);
}

// A processor that has become half as fast is so on average much later.
TEST(FetchRatesOfTest, MakingKAndVTakesWhatItTookOfLate) {
  const EngineOptions options = Options(/*bus=*/0);
  const FormedEpoch epoch = Epoch(options);
  AttachedNode node = Compute(/*streamed_bytes=*/0);
  node.counters.making = {.fixed = 0.01, .slope = 1e-3, .r_squared = 0.9};
  core::FetchRates rates = FetchRatesOf(options, epoch, {.compute = {&node}, .memory = {}});
  EXPECT_DOUBLE_EQ(rates.recompute_seconds, 1e-3);
  EXPECT_DOUBLE_EQ(rates.recompute_fixed_seconds, 0.01);

  node.counters.making.r_squared = 0.7;  // It explains too little.
  rates = FetchRatesOf(options, epoch, {.compute = {&node}, .memory = {}});
  EXPECT_DOUBLE_EQ(rates.recompute_seconds, 0.5e-3);
  EXPECT_EQ(rates.recompute_fixed_seconds, 0);
}

// Where all K and V are made again none come.
TEST(FetchRatesOfTest, TokensThatAreMadeAgainAreAttendedToo) {
  const EngineOptions options = Options(/*bus=*/0);
  const FormedEpoch epoch = Epoch(options);
  AttachedNode node = Compute(/*streamed_bytes=*/0);
  const auto attend_seconds = [&] {
    return FetchRatesOf(options, epoch, {.compute = {&node}, .memory = {}}).attend_seconds;
  };
  EXPECT_EQ(attend_seconds(), 0) << "not measured";
  node.counters.parts.emplace_back("attend", 0.03);
  EXPECT_DOUBLE_EQ(attend_seconds(), 30e-6);
  node.counters.kv_bytes_read = 500 * 1024;
  EXPECT_DOUBLE_EQ(attend_seconds(), 20e-6);
  node.counters.recomputed_tokens = 0;
  EXPECT_DOUBLE_EQ(attend_seconds(), 60e-6);
  node.counters.kv_bytes_read = 0;
  EXPECT_EQ(attend_seconds(), 0);
}

TEST(FetchRatesOfTest, ASliceIsAsTheNodeMeasuredIt) {
  const EngineOptions options = Options(/*bus=*/0);
  AttachedNode node = Compute(/*streamed_bytes=*/0);
  node.counters.unit_seconds_fixed = 2e-3;
  node.counters.unit_seconds_slope = 1e-4;
  const core::FetchRates rates =
      FetchRatesOf(options, Epoch(options), {.compute = {&node}, .memory = {}});
  EXPECT_DOUBLE_EQ(rates.slice.fixed, 2e-3);
  EXPECT_DOUBLE_EQ(rates.slice.slope, 1e-4);
}

// Memory nodes measure no attention there, and lanes would only read the weights again. Where K and
// V are made again both pools have to have measured.
TEST(CostsOfLanesTest, RowsThatAttendWhereTheyRunAreChosenForBySlices) {
  AttachedNode compute = Compute(/*streamed_bytes=*/0);
  compute.counters.unit_seconds_fixed = 1e-3;
  AttachedNode memory;
  for (const uint32_t activation_width : {0u, 256u}) {
    EngineOptions options = Options(/*bus=*/0);
    options.fetch.activation_width = activation_width;
    const cost::LaneCosts costs = CostsOfLanes(Epoch(options), ReplicaSplits(options),
                                               {.compute = {&compute}, .memory = {&memory}});
    EXPECT_EQ(costs.measured, activation_width == 0) << activation_width;
    EXPECT_EQ(costs.attention_fixed + costs.attention_per_token, 0);
  }
}

}  // namespace
}  // namespace lamina::coordinator
