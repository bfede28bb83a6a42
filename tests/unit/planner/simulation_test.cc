// SPDX-License-Identifier: Apache-2.0
//
// The simulator against closed forms: loads so simple that the times can be written down, in the
// cost model's own seconds.
#include "planner/simulation.h"

#include <cmath>
#include <limits>
#include <memory>

#include "cost/unit_seconds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/sim_step.h"
#include "tests/unit/planner/problems.h"

namespace lamina::planner {
namespace {

cost::DeviceRates Rates(double bytes_per_second, double flops) {
  return {.dense = {.seconds_per_byte = {1 / bytes_per_second}, .seconds_per_flop = {1 / flops}},
          .attention = {.seconds_per_byte = {1 / bytes_per_second}},
          .capacity = {100e9}};
}

SimFleet OneCell() {
  SimFleet fleet;
  SimCellSpec& cell = fleet.cell;
  cell.shape = SmallModel();
  cell.cluster.compute = Rates(1e12, 1e14);
  cell.cluster.memory = Rates(1e12, 1e12);
  cell.cluster.compute_link = {.latency = {1e-6}, .seconds_per_byte = {1e-11}};
  cell.cluster.memory_link = cell.cluster.compute_link;
  cell.cluster.memory_nodes = 2;
  cell.scheduler = {.rows_max = 64,
                    .step_tokens_max = 4096,
                    .chunk_tokens = 4096,
                    .scratch_tokens = 8192,
                    .sequence_tokens_max = 8192,
                    .running_max = 64};
  cell.kv_tokens = 100'000;
  cell.coordinator = {.request = 0,
                      .turn = 0,
                      .row_planned = 0,
                      .row_encoded = 0,
                      .row_taken = 0,
                      .message = 0,
                      .message_way = 0};
  cell.compute_price = 2;
  cell.memory_price = 1;
  return fleet;
}

// Tokens of prompts may be rows.
SimFleet KeepingPrefixes() {
  SimFleet fleet = OneCell();
  fleet.cell.scheduler.prefix_cache = true;
  fleet.cell.scheduler.prompt_rows_max = 512;
  return fleet;
}

double SecondsOf(const SimFleet& fleet, double rows, double context, double prompt) {
  const SimCellSpec& cell = fleet.cell;
  const cost::StepLoad load = {
      .rows = rows, .context = context, .prompt_tokens = prompt, .prompt_length = prompt};
  double slice = cost::SliceSeconds(cell.shape, cell.cluster, load).value;
  if (rows > 0) {
    const double bytes = rows * context * cell.shape.KvBytesPerTokenLayer();
    const double way = cost::TrafficOf(cell.shape, cell.cluster, load).out * 1e-11;
    const double back = cost::TrafficOf(cell.shape, cell.cluster, load).back * 1e-11;
    slice += way + back + 2e-6 + bytes * 1e-12;
  }
  return cell.shape.layers * slice +
         cost::HeadSeconds(cell.shape, cell.cluster, std::max(1.0, rows)).value;
}

TEST(SimulationTest, OneRequestTakesThePromptsStepAndThenARowsSteps) {
  const SimFleet fleet = OneCell();
  const std::vector<TraceRequest> requests = {{.at = 0, .input = 1000, .output = 101}};

  const auto result = Simulate(fleet, requests, {});

  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->answered, 1);
  // An idle coordinator waits for a hundredth of the prompt's time (core::BurstWait).
  const double wait =
      0.01 * 1000 / 512 * cost::PromptSeconds(fleet.cell.shape, fleet.cell.cluster, 512).value;
  EXPECT_NEAR(result->ttft[0], wait + SecondsOf(fleet, 0, 0, 1000), 1e-5);
  EXPECT_NEAR(result->tpot[0], SecondsOf(fleet, 1, 1050.5, 0), 1e-5);
}

TEST(SimulationTest, ARowsStepWithKvOnTheComputeNodeHasItsAttentionInIt) {
  SimFleet fleet = OneCell();
  fleet.cell.cluster.policy = cost::KvPolicy::kLocal;
  fleet.cell.cluster.memory_nodes = 0;
  const std::vector<TraceRequest> requests = {{.at = 0, .input = 1000, .output = 101}};

  const auto result = Simulate(fleet, requests, {});

  ASSERT_TRUE(result.ok()) << result.status();
  const cost::StepTimes step =
      cost::StepOf(fleet.cell.shape, fleet.cell.cluster, {.rows = 1, .context = 1050.5});
  EXPECT_NEAR(result->tpot[0], step.step.value, 1e-6);
}

// Long answers of equal requests at once: all rows decode together, and the steady state's
// formula holds for every mode.
TEST(SimulationTest, ManyRowsDecodeAsTheFormulaOfTheSteadyStateSays) {
  for (const Partition partition :
       {Partition::kRequest, Partition::kHead, Partition::kTokenRange}) {
    for (const uint32_t lanes : {1u, 2u, 3u}) {
      SimFleet fleet = OneCell();
      fleet.cell.cluster.partition = partition;
      fleet.cell.cluster.lanes = lanes;
      fleet.cell.cluster.replicas = lanes == 3 ? 2 : 1;
      fleet.cell.scheduler.lanes = lanes;
      fleet.cell.scheduler.rows_max = 48 / lanes;
      fleet.cell.scheduler.span_tokens = partition == Partition::kTokenRange ? 512 : 0;
      const std::vector<TraceRequest> requests(48, {.at = 0, .input = 2000, .output = 1001});

      const auto result = Simulate(fleet, requests, {});

      ASSERT_TRUE(result.ok()) << result.status();
      const cost::StepTimes step =
          cost::StepOf(fleet.cell.shape, fleet.cell.cluster, {.rows = 48, .context = 2500});
      EXPECT_NEAR(PercentileOf(result->tpot, 0.1) / step.step.value, 1, 0.08)
          << "partition " << static_cast<int>(partition) << " lanes " << lanes;
    }
  }
}

// Two lanes hide slices and attention from each other, but not what memory nodes take between
// steps; a lane that is alone has that in what it waits for anyway.
TEST(SimulationTest, LanesWaitAtTheBorderOfSteps) {
  constexpr double kBorder = 2e-3;
  for (const uint32_t lanes : {1u, 2u}) {
    SimFleet fleet = OneCell();
    fleet.cell.cluster.lanes = lanes;
    fleet.cell.scheduler.lanes = lanes;
    fleet.cell.scheduler.rows_max = 16 / lanes;
    cost::MeasuredTimes times{.slice = cost::TimeCurve({{1, 2e-4}, {64, 4e-4}})};
    const std::vector<TraceRequest> requests(16, {.at = 0, .input = 20, .output = 1001});
    const auto tpot = [&](double border) {
      times.border = border > 0 ? cost::TimeCurve({{1, border}, {64, border}}) : cost::TimeCurve();
      fleet.cell.cluster.compute.times = std::make_shared<cost::MeasuredTimes>(times);
      return PercentileOf(Simulate(fleet, requests, {})->tpot, 0.1);
    };
    const double without = tpot(0);

    const double with = tpot(kBorder);

    EXPECT_NEAR(with - without, lanes == 1 ? 0 : lanes * kBorder, 0.1 * kBorder) << lanes;
    const cost::StepTimes step =
        cost::StepOf(fleet.cell.shape, fleet.cell.cluster, {.rows = 16, .context = 520});
    EXPECT_NEAR(with / step.step.value, 1, 0.08) << lanes;
  }
}

TEST(SimulationTest, TheSameSeedGivesTheSameResult) {
  SimFleet fleet = KeepingPrefixes();
  fleet.cells = 3;
  fleet.cell.failures.per_node_hour = 400;
  fleet.cell.failures.repair_seconds = 2;
  const auto run = [&](uint64_t seed) {
    const auto requests = MakeArrivals({.requests = 300,
                                        .rate = 30,
                                        .input = 200,
                                        .output = 100,
                                        .lengths = Lengths::kShareGpt,
                                        .tokens_max = 8192,
                                        .prefix_tokens = 64,
                                        .prefixes = 4,
                                        .seed = seed});
    return *Simulate(fleet, requests, {.seed = seed});
  };

  const SimResult a = run(1);
  const SimResult b = run(1);
  const SimResult c = run(2);

  EXPECT_EQ(a.ttft_each, b.ttft_each);
  EXPECT_EQ(a.tpot_each, b.tpot_each);
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.cached_tokens, b.cached_tokens);
  EXPECT_EQ(a.bill.total(), b.bill.total());
  EXPECT_GT(a.cached_tokens, 0);
  EXPECT_GT(a.nodes_lost, 0);
  EXPECT_NE(a.events, c.events);
}

TEST(SimulationTest, RequestsOutliveNodesThatAreLostAndTakeLonger) {
  SimFleet fleet = OneCell();
  const auto requests =
      MakeArrivals({.requests = 200, .rate = 20, .input = 500, .output = 200, .tokens_max = 8192});
  const SimResult calm = *Simulate(fleet, requests, {.warm_up = 0});
  fleet.cell.failures = {.per_node_hour = 600, .form_seconds = 0.5, .repair_seconds = 1};

  const SimResult faulty = *Simulate(fleet, requests, {.warm_up = 0});

  EXPECT_EQ(calm.nodes_lost, 0);
  EXPECT_EQ(calm.epochs, 1);
  EXPECT_GT(faulty.nodes_lost, 1);
  EXPECT_GT(faulty.epochs, 2);
  EXPECT_EQ(faulty.answered + faulty.failed, 200);
  EXPECT_GT(faulty.answered, 150);
  EXPECT_GT(PercentileOf(faulty.tpot, 0.9), PercentileOf(calm.tpot, 0.9));
}

TEST(SimulationTest, SequencesArePreemptedWhereSlotsRunOut) {
  SimFleet fleet = OneCell();
  fleet.cell.kv_tokens = 2600;
  fleet.cell.scheduler.admission_headroom = 1;
  const std::vector<TraceRequest> requests(20, {.at = 0, .input = 400, .output = 800});

  const auto result = Simulate(fleet, requests, {.warm_up = 0});

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answered, 20);
  EXPECT_GT(result->preemptions, 0);
}

TEST(SimulationTest, WhatNoCellCouldHoldIsRefused) {
  SimFleet fleet = OneCell();
  fleet.cell.kv_tokens = 1000;
  const auto result =
      Simulate(fleet, {{.at = 0, .input = 2000, .output = 8}, {.at = 1, .input = 9, .output = 9}},
               {.warm_up = 0});

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->refused, 1);
  EXPECT_EQ(result->answered, 1);
  EXPECT_DOUBLE_EQ(ShareWithin(*result, {}), 0.5);
}

// One run in which an SLO's share is out of reach ends early; every other is as without one.
TEST(SimulationTest, GivesUpWhereTheShareCannotBeKeptAndNowhereElse) {
  int gave_up = 0;
  int kept = 0;
  for (const double rate : {2.0, 20.0, 60.0, 200.0}) {
    for (const double ttft : {0.01, 0.1, 1.0}) {
      SimFleet fleet = OneCell();
      fleet.cell.scheduler.waiting_max = 100;  // Some are refused, which misses the SLO too.
      const std::vector<TraceRequest> requests = MakeArrivals(
          {.requests = 500, .rate = rate, .input = 500, .output = 50, .tokens_max = 4096});
      const Slo slo = {.ttft_seconds = ttft, .tpot_seconds = 0.01, .at = 0.9};
      const auto whole = Simulate(fleet, requests, {});
      const auto watched = Simulate(fleet, requests, {.give_up_beyond = slo});
      ASSERT_TRUE(whole.ok() && watched.ok());
      const bool keeps = ShareWithin(*whole, slo) >= slo.at;
      EXPECT_EQ(watched->gave_up, !keeps) << rate << " requests/s, " << ttft << " s";
      if (keeps) {
        EXPECT_EQ(watched->events, whole->events);
        EXPECT_EQ(watched->ttft_each, whole->ttft_each);
      }
      ++(keeps ? kept : gave_up);
    }
  }
  EXPECT_GT(gave_up, 2);
  EXPECT_GT(kept, 2);
}

TEST(SimulationTest, TheBillIsWhatMachinesCostInTheWindow) {
  SimFleet fleet = OneCell();
  fleet.other_price = 0.5;
  const auto requests =
      MakeArrivals({.requests = 200, .rate = 20, .input = 800, .output = 100, .tokens_max = 8192});

  const SimResult result = *Simulate(fleet, requests, {});

  EXPECT_NEAR(result.bill.total(), (2 + 2 * 1 + 0.5) * result.seconds / 3600, 1e-9);
  EXPECT_GT(result.bill.input, 0);
  EXPECT_GT(result.bill.per_million_output, result.bill.per_million_input);
}

TEST(SimulationTest, RequestsThatComeAtOnceAreCountedToTheLastAnswer) {
  const SimFleet fleet = OneCell();
  const std::vector<TraceRequest> requests(20, {.at = Seconds(1), .input = 100, .output = 50});

  const SimResult result = *Simulate(fleet, requests, {});

  EXPECT_EQ(result.requests, 20);
  EXPECT_NEAR(result.seconds, ToSeconds(result.ended) - 1, 1e-9);
  EXPECT_NEAR(result.requests_per_second * result.seconds, 20, 1e-6);
  EXPECT_NEAR(result.tokens_per_second * result.seconds, 20 * 50, 1e-6);
  EXPECT_EQ(result.input_tokens, 20 * 100);
  EXPECT_NEAR(result.bill.total(), (2 + 2 * 1) * result.seconds / 3600, 1e-9);
  EXPECT_GT(result.bill.per_million_output, 0);
}

// Between arrivals the last answers are still to come.
TEST(SimulationTest, AnswersAreCountedFromTheFirstArrivalToTheLastOfThem) {
  const SimFleet fleet = OneCell();
  const auto requests =
      MakeArrivals({.requests = 30, .rate = 20, .input = 100, .output = 50, .tokens_max = 8192});

  const SimResult result = *Simulate(fleet, requests, {.warm_up = 0});

  EXPECT_EQ(result.answer_tokens, 30 * 50);
  EXPECT_GT(result.answer_seconds, result.seconds);
  EXPECT_LE(result.answer_seconds, ToSeconds(result.ended - requests.front().at) + 1e-9);
}

// 19 of 20 requests find the 640 tokens that the first one made; the last one's first token comes
// after the window.
TEST(SimulationTest, PrefixesAreFoundAndHaveAPriceOfTheirOwn) {
  SimFleet fleet = KeepingPrefixes();
  fleet.cell.compute_price = 0;
  const auto requests = [](uint32_t prefix_tokens) {
    std::vector<TraceRequest> list;
    for (uint32_t i = 0; i < 20; ++i) {
      list.push_back({.at = Seconds(2) * i,
                      .input = 1000,
                      .output = 50,
                      .prefix = 1,
                      .prefix_tokens = prefix_tokens});
    }
    return list;
  };

  const SimResult found = *Simulate(fleet, requests(640), {.warm_up = 0});
  const SimResult none = *Simulate(fleet, requests(0), {.warm_up = 0});

  EXPECT_EQ(found.answered, 20);
  EXPECT_EQ(found.cached_tokens, 18 * 640);
  EXPECT_EQ(found.input_tokens, 1000 + 18 * 360);
  EXPECT_NEAR(found.bill.total(), 2 * found.seconds / 3600, 1e-9);
  // Memory nodes' time: 19 times 360 rows that attend to 640 found tokens and to those between,
  // 20 times 49 rows of answers; some more for what is kept.
  const double cached = 19 * 360 * 640.0;
  const double others = 19 * (360 * 361 / 2.0) + 20 * 49 * 1025.0;
  EXPECT_NEAR(found.bill.cached / found.bill.total(), cached / (cached + others), 0.03);
  EXPECT_EQ(none.cached_tokens, 0);
  EXPECT_EQ(none.input_tokens, 19 * 1000);
}

// Where sequences are cut, over both memory nodes, those who find less than half compute all.
TEST(SimulationTest, PrefixesOfCutSequencesAreFoundWhereTheyAreHalfOrMore) {
  SimFleet fleet = KeepingPrefixes();
  fleet.cell.cluster.partition = Partition::kTokenRange;
  fleet.cell.scheduler.span_tokens = 512;
  for (const uint32_t prefix_tokens : {400u, 640u}) {
    std::vector<TraceRequest> requests;
    for (uint32_t i = 0; i < 20; ++i) {
      requests.push_back({.at = Seconds(2) * i,
                          .input = 1000,
                          .output = 50,
                          .prefix = 1,
                          .prefix_tokens = prefix_tokens});
    }
    const SimResult result = *Simulate(fleet, requests, {.warm_up = 0});
    EXPECT_EQ(result.answered, 20);
    EXPECT_EQ(result.cached_tokens, prefix_tokens >= 500 ? 18 * prefix_tokens : 0) << prefix_tokens;
  }
}

// Attention to found tokens is theirs; kept slots are few.
TEST(SimulationTest, FoundTokensHaveTheirAttentionWhereComputeNodesHoldKv) {
  SimFleet fleet = KeepingPrefixes();
  SimCellSpec& cell = fleet.cell;
  cell.cluster.policy = cost::KvPolicy::kLocal;
  cell.cluster.memory_nodes = 0;
  cell.kv_tokens = 2'000'000;
  std::vector<TraceRequest> requests;
  for (uint32_t i = 0; i < 20; ++i) {
    requests.push_back(
        {.at = Seconds(2) * i, .input = 1000, .output = 50, .prefix = 1, .prefix_tokens = 640});
  }

  const SimResult result = *Simulate(fleet, requests, {.warm_up = 0});

  EXPECT_EQ(result.cached_tokens, 18 * 640);
  EXPECT_NEAR(result.bill.total(), 2 * result.seconds / 3600, 1e-9);
  const double found =
      19 * 360 * 640.0 * cell.shape.layers * cell.shape.KvBytesPerTokenLayer() * 1e-12;
  const double busy = result.compute_busy * ToSeconds(result.ended);
  EXPECT_GT(found / busy, 0.05);
  EXPECT_NEAR(result.bill.cached / result.bill.total(), found / busy, 0.01);
}

// A prompt of 1000 tokens, of which 640 are found: 360 rows.
TEST(StepPricerTest, FoundTokensAreCachedOnTheNodeThatAttends) {
  SimFleet fleet = OneCell();
  cost::Cluster& cluster = fleet.cell.cluster;
  plan::StepPlan plan{.epoch = 1};
  plan.joins = {{.id = 7, .prompt_tokens = 1000, .cached_tokens = 640}};
  plan.joins[0].tokens.resize(1000);
  for (uint32_t position = 640; position < 1000; ++position) {
    plan.rows.push_back({.sequence = 7, .position = position});
  }
  const SimStep away = StepPricer(fleet.cell.shape, cluster).Of(plan);
  EXPECT_EQ(away.cached_share, 0);
  EXPECT_NEAR(away.input_share, 1, 1e-9);
  ASSERT_EQ(away.attentions.size(), 1u);
  EXPECT_NEAR(away.attentions[0].cached_share, 640 / 820.5, 1e-9);

  cluster.policy = cost::KvPolicy::kLocal;
  cluster.memory_nodes = 0;
  const SimStep here = StepPricer(fleet.cell.shape, cluster).Of(plan);

  const double found = 360 * 640.0 * fleet.cell.shape.KvBytesPerTokenLayer() * 1e-12;
  const double whole = fleet.cell.shape.layers * ToSeconds(here.slice) +
                       here.head_pieces * ToSeconds(here.head_piece);
  EXPECT_NEAR(here.cached_share, fleet.cell.shape.layers * found / whole, 1e-3);
  EXPECT_NEAR(here.input_share + here.cached_share, 1, 1e-9);
  EXPECT_GT(here.cached_share, 0.1);
}

// One that was preempted joins with 700 tokens of a prompt and 301 of its answer, of which it finds
// all but 11 as they were: 10 are computed again, and the one sampled last is its answer's.
TEST(StepPricerTest, WhatASequenceHadItselfIsNotCached) {
  const SimFleet fleet = OneCell();
  plan::StepPlan plan{.epoch = 1};
  plan.joins = {{.id = 7, .prompt_tokens = 700}};
  plan.joins[0].tokens.resize(1001);
  for (uint32_t position = 990; position < 1001; ++position) {
    plan.rows.push_back({.sequence = 7, .position = position});
  }
  const SimStep step = StepPricer(fleet.cell.shape, fleet.cell.cluster).Of(plan);
  ASSERT_EQ(step.attentions.size(), 1u);
  EXPECT_EQ(step.attentions[0].cached_share, 0);
  EXPECT_NEAR(step.attentions[0].input_share, 9955 / 10956.0, 1e-9);  // 991 + ... + 1000.
  EXPECT_LT(step.input_share, 1);
  ASSERT_EQ(step.result.tokens.size(), 1u);
  EXPECT_EQ(step.result.tokens[0].position, 1001u);
}

TEST(SimulationTest, TheRouterKnowsWhichCellHadAPrefix) {
  SimFleet fleet = KeepingPrefixes();
  fleet.cells = 2;
  const auto of = [](Nanos at, uint32_t prefix) {
    return TraceRequest{
        .at = at, .input = 500, .output = 9, .prefix = prefix, .prefix_tokens = 400};
  };
  // The second one goes to the second cell, since the first one is busy; so does the third.
  const std::vector<TraceRequest> requests = {of(0, 1), of(0, 2), of(Seconds(9), 2),
                                              of(Seconds(20), 1), of(Seconds(40), 3)};

  const SimResult result = *Simulate(fleet, requests, {.warm_up = 0});

  EXPECT_EQ(result.cached_tokens, 2 * 400);
}

// 256 tokens are a chunk; the other 744 are rows, which attend to what lies on memory nodes.
TEST(SimulationTest, WhatAPromptHasBeyondTheScratchAreRows) {
  SimFleet fleet = OneCell();
  fleet.cell.compute_price = 0;
  const std::vector<TraceRequest> requests = {{.at = 0, .input = 1000, .output = 101},
                                              {.at = Seconds(60), .input = 1, .output = 1}};
  const SimResult chunks = *Simulate(fleet, requests, {.warm_up = 0});
  fleet.cell.scheduler.scratch_tokens = 256;
  fleet.cell.scheduler.step_tokens_max = 256;
  fleet.cell.scheduler.chunk_tokens = 256;
  fleet.cell.scheduler.prompt_rows_max = 256;

  const SimResult rows = *Simulate(fleet, requests, {.warm_up = 0});

  EXPECT_EQ(rows.answered, 2);
  EXPECT_EQ(chunks.bill.input, 0) << "memory nodes attend for answers alone";
  double context = 0;
  for (int position = 256; position < 1000; ++position) {
    context += position + 1;
  }
  const double answers = 100 * 1050.5;
  EXPECT_NEAR(rows.bill.input / rows.bill.total(), context / (context + answers), 0.02);
}

TEST(SimulationTest, TheCoordinatorsTimeIsCharged) {
  SimFleet fleet = OneCell();
  const std::vector<TraceRequest> requests = {{.at = 0, .input = 100, .output = 101}};
  const double without = Simulate(fleet, requests, {})->tpot[0];
  // Longer than a step, and one step is planned ahead: steps wait for it.
  for (double CoordinatorSeconds::*const part :
       {&CoordinatorSeconds::row_planned, &CoordinatorSeconds::row_encoded}) {
    SimFleet slow = fleet;
    slow.cell.coordinator.*part = 0.1;

    const double with = Simulate(slow, requests, {})->tpot[0];

    EXPECT_GT(with, without + 0.09);
  }
}

// A burst is awaited, but one that is read long before the others has a step of its own.
TEST(SimulationTest, RequestsThatComeTogetherAreReadOneByOne) {
  SimFleet fleet = OneCell();
  const std::vector<TraceRequest> requests(4, {.at = 0, .input = 400, .output = 2});
  const std::vector<float> together = Simulate(fleet, requests, {})->ttft_each;
  EXPECT_NEAR(together[0], together[3], 1e-6);
  fleet.cell.coordinator.request = 1e-4;
  const std::vector<float> burst = Simulate(fleet, requests, {})->ttft_each;
  EXPECT_NEAR(burst[0], burst[3], 1e-6);
  fleet.cell.coordinator.request = 1e-3;  // A prompt takes 12 ms.

  const std::vector<float> one_by_one = Simulate(fleet, requests, {})->ttft_each;

  EXPECT_LT(one_by_one[0], 0.9 * together[0]);
  EXPECT_LT(one_by_one[0], 0.9 * one_by_one[3]);
}

TEST(SimulationTest, BlocksOfManyRequestsAreAsLargeAsSharedPrefixesAllow) {
  std::vector<TraceRequest> requests(60'000, {.input = 1500, .output = 8});
  EXPECT_EQ(KeptBlockTokens(requests, {}, 16), 256u);
  EXPECT_EQ(KeptBlockTokens(requests, {.per_node_hour = 1}, 16), 16u);
  requests[7].prefix = 1;
  requests[7].prefix_tokens = 1000;  // 62 blocks of 16 tokens, and some.
  EXPECT_EQ(KeptBlockTokens(requests, {}, 16), 32u);
  requests[7].prefix_tokens = 1024;
  EXPECT_EQ(KeptBlockTokens(requests, {}, 16), 256u);
  requests[8].prefix = 2;
  requests[8].prefix_tokens = 1500;
  EXPECT_EQ(KeptBlockTokens(requests, {}, 16), 16u);
  requests.resize(8);
  EXPECT_EQ(KeptBlockTokens(requests, {}, 16), 16u);
}

TEST(ArrivalsTest, HaveTheMeansAndTheRateThatWereAskedFor) {
  for (const Lengths lengths : {Lengths::kFixed, Lengths::kShareGpt, Lengths::kAzure}) {
    const auto requests = MakeArrivals({.requests = 20000,
                                        .rate = 50,
                                        .input = 300,
                                        .output = 150,
                                        .lengths = lengths,
                                        .seed = 3});
    double input = 0;
    double output = 0;
    for (const TraceRequest& request : requests) {
      input += request.input;
      output += request.output;
    }
    EXPECT_NEAR(input / 20000, 300, 12);
    EXPECT_NEAR(output / 20000, 150, 6);
    EXPECT_NEAR(ToSeconds(requests.back().at), 400, 12);
  }
}

TEST(ArrivalsTest, AreWithinWhatNanosCanSay) {
  EXPECT_TRUE(CheckArrivals(4000, 1e-6).ok());
  EXPECT_THAT(CheckArrivals(20000, 1e-6).message(),
              testing::HasSubstr("20000 requests at 1e-06 a second come over 2e+10 s"));
  const auto requests = MakeArrivals({.requests = 20000, .rate = 1e-6});
  Nanos before = 0;
  for (const TraceRequest& request : requests) {
    ASSERT_GE(request.at, before);
    before = request.at;
  }
}

TEST(NanosOfTest, IsWithinWhatNanosCanSay) {
  EXPECT_EQ(NanosOf(0), 1);
  EXPECT_EQ(NanosOf(2), Seconds(2));
  EXPECT_EQ(NanosOf(std::numeric_limits<double>::infinity()), Seconds(1'000'000'000));
}

TEST(ArrivalsTest, NameTheLengthsThatAreKnown) {
  EXPECT_EQ(*ParseLengths("azure"), Lengths::kAzure);
  EXPECT_THAT(ParseLengths("zipf").status().message(),
              testing::HasSubstr("fixed, sharegpt, azure"));
}

}  // namespace
}  // namespace lamina::planner
