// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes whose device waits for windows itself: the bits of the processor, whatever else is
// in the cluster; and epochs that end while the device waits.

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/kv_device.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "transport/registry.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using kernels::cuda::MakeStreamsAsync;
using testing::HasSubstr;

std::vector<GenerateSpec> Requests() {
  std::vector<GenerateSpec> specs;
  for (const size_t tokens : {1u, 17u, 255u, 300u}) {
    specs.push_back(Greedy(RandomPrompt(tokens, tokens), 8));
  }
  specs.push_back(Sampled(RandomPrompt(40, 3), 8, 5));
  return specs;
}

// Long enough that epochs end in the midst of them.
std::vector<GenerateSpec> LongerRequests(size_t count) {
  std::vector<GenerateSpec> specs = LongRequests(count);
  for (GenerateSpec& spec : specs) {
    spec.max_tokens = 50;
  }
  return specs;
}

LocalClusterOptions Plain() {
  return {.model = SmallModel(), .slots = 4096, .sequence_tokens_max = 768};
}

struct Waits {
  std::string name;
  std::vector<std::string> cuda = {"m0"};
  Partition partition = Partition::kRequest;
  uint32_t memory_nodes = 1;
  uint32_t lanes = 1;
  Nanos plan_delay = 0;
  uint32_t compute_nodes = 1;  // That decode.
  uint32_t stages = 1;
  uint32_t prefill_nodes = 0;
  PipelineMode mode = PipelineMode::kRotational;
};

LocalClusterOptions OptionsOf(const Waits& wanted) {
  LocalClusterOptions options = Plain();
  options.partition = wanted.partition;
  options.memory_nodes = wanted.memory_nodes;
  options.lanes = wanted.lanes;
  options.compute_nodes = wanted.compute_nodes;
  options.stages = wanted.stages;
  options.prefill_nodes = wanted.prefill_nodes;
  options.mode = wanted.mode;
  options.chunk_tokens = 64;
  options.other_device = {.names = wanted.cuda, .make = kernels::cuda::CudaKvDevices(0)};
  options.device_waits = true;
  options.memory_plan_delay = wanted.plan_delay;
  return options;
}

std::vector<GenerateResult> Expected(const std::vector<GenerateSpec>& specs) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Plain());
  return cluster == nullptr ? std::vector<GenerateResult>() : cluster->GenerateMany(specs);
}

class CudaWaitsTest : public ::testing::TestWithParam<Waits> {
 protected:
  const std::shared_ptr<void> async_ = MakeStreamsAsync();
};

TEST_P(CudaWaitsTest, HaveTheBitsOfTheProcessor) {
  const std::vector<GenerateResult> expected = Expected(Requests());
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf(GetParam()));
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(Requests()), expected);
  ExpectSame({cluster->Generate(Requests()[3])}, {expected[3]});

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  for (const std::string& name : GetParam().cuda) {
    EXPECT_EQ(WindowsOf(*cluster, name), "host memory, for which cuda:0 waits itself");
    const telemetry::NodeCounters counters = cluster->handler(name).Counters();
    EXPECT_GT(counters.device_units, 0u);
    EXPECT_GT(counters.units, counters.device_units) << "prompts are the processor's";
    EXPECT_EQ(counters.refused_messages, 0u);
    EXPECT_GT(counters.kv_bytes_read, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Clusters, CudaWaitsTest,
    ::testing::Values(
        Waits{.name = "Alone"}, Waits{.name = "TwoLanes", .lanes = 2},
        Waits{.name = "WithTheProcessor", .memory_nodes = 2, .lanes = 2},
        Waits{.name = "ByHead",
              .cuda = {"m0", "m1"},
              .partition = Partition::kHead,
              .memory_nodes = 2,
              .lanes = 2},
        Waits{.name = "LatePlans", .lanes = 2, .plan_delay = Millis(3)},
        Waits{.name = "Replicas", .lanes = 3, .compute_nodes = 2},
        Waits{.name = "ReplicasOfFixedLanes",
              .lanes = 4,
              .compute_nodes = 2,
              .mode = PipelineMode::kFixed},
        Waits{
            .name = "ReplicasWithTheProcessor", .memory_nodes = 2, .lanes = 2, .compute_nodes = 2},
        Waits{.name = "ReplicasByHead",
              .cuda = {"m0", "m1"},
              .partition = Partition::kHead,
              .memory_nodes = 2,
              .lanes = 3,
              .compute_nodes = 2},
        Waits{.name = "Stages", .lanes = 2, .compute_nodes = 2, .stages = 2},
        Waits{.name = "ReplicasInStages", .lanes = 3, .compute_nodes = 4, .stages = 2},
        Waits{.name = "PrefillNodes", .lanes = 2, .prefill_nodes = 1},
        Waits{.name = "LatePlansOfReplicas",
              .lanes = 3,
              .plan_delay = Millis(3),
              .compute_nodes = 2}),
    [](const auto& test) { return test.param.name; });

class CudaWaitsEpochTest : public ::testing::Test {
 protected:
  const std::shared_ptr<void> async_ = MakeStreamsAsync();
};

TEST_F(CudaWaitsEpochTest, WhatDoesNotFitIsServedByTheProcessorAndSaysWhy) {
  struct Case {
    LocalClusterOptions options;
    std::string why;
  };
  std::vector<Case> cases(4, {.options = OptionsOf({}), .why = ""});
  cases[0].options.compute_nodes = 2;
  cases[0].options.shards = 2;
  cases[0].options.lanes = 2;
  cases[0].why = "which does not wait itself: rows come in parts, of 2 shards";
  cases[1].options.partition = Partition::kTokenRange;
  cases[1].why = "which does not wait itself: partition token_range";
  cases[2].options.transports = {"throttle(bandwidth=1GiB)+shm://"};
  cases[2].why = "which does not wait itself: the device does not reach windows of throttle";
  cases[3].options.device_waits = false;
  cases[3].why = "host memory, rows are copied to cuda:0";
  const std::vector<GenerateSpec> specs = {Greedy(RandomPrompt(17, 17), 4)};
  const std::vector<GenerateResult> expected = Expected(specs);
  for (const Case& not_fitting : cases) {
    SCOPED_TRACE(not_fitting.why);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(not_fitting.options);
    ASSERT_NE(cluster, nullptr);

    ExpectSame(cluster->GenerateMany(specs), expected);

    EXPECT_THAT(WindowsOf(*cluster, "m0"), HasSubstr(not_fitting.why));
    EXPECT_EQ(cluster->handler("m0").Counters().device_units, 0u);
    EXPECT_GT(cluster->handler("m0").Counters().units, 0u);
  }
}

// Rows in chunks are the processor's, step by step.
TEST_F(CudaWaitsEpochTest, StepsInChunksAreTheProcessors) {
  LocalClusterOptions options = OptionsOf({});
  options.sub_batches = {.chunks = 2, .query_first = QueryFirst::kNever};
  const std::vector<GenerateResult> expected = Expected(Requests());
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(Requests()), expected);

  const telemetry::NodeCounters counters = cluster->handler("m0").Counters();
  EXPECT_LT(counters.device_units, counters.units);
}

// Units and replies are those of the compute nodes whose slices stand before and behind.
TEST_F(CudaWaitsEpochTest, RepliesAreCountedForTheNodesThatRunTheNextSlices) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster(OptionsOf({.lanes = 1, .compute_nodes = 2, .stages = 2}));
  ASSERT_NE(cluster, nullptr);
  const auto puts_to = [&](const std::string& name) {
    for (const telemetry::LinkCount& link : cluster->handler("m0").Counters().links) {
      if (link.peer == name) {
        return link.puts;
      }
    }
    return uint64_t{0};
  };
  const uint64_t first = puts_to("c0");
  const uint64_t last = puts_to("c1");

  ExpectSame({cluster->Generate(Requests()[1])}, Expected({Requests()[1]}));

  // The last answer may have been used before its unit has been counted.
  for (int i = 0; i < 500 && puts_to("c1") - last < 2u * 8u; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // Two layers: slices 0 on c0, 1 and the tail on c1, which answers of both layers go to. Of
  // eight tokens the first is the prompt's.
  EXPECT_EQ(cluster->handler("m0").Counters().device_units, 2u * 7u);
  EXPECT_EQ(puts_to("c0") - first, 0u);
  EXPECT_EQ(puts_to("c1") - last, 2u * 8u);
}

class CudaWaitsLeavingTest : public ::testing::TestWithParam<uint32_t> {  // Compute nodes.
 protected:
  const std::shared_ptr<void> async_ = MakeStreamsAsync();
};

TEST_P(CudaWaitsLeavingTest, NodesComeAndGoWhileTheDeviceWaits) {
  const std::vector<GenerateSpec> specs = LongerRequests(3);
  const std::vector<GenerateResult> expected = Expected(specs);
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster(OptionsOf({.lanes = 2, .compute_nodes = GetParam()}));
  ASSERT_NE(cluster, nullptr);
  for (const std::string& leaves : {std::string("m0"), absl::StrCat("c", GetParam() - 1)}) {
    SCOPED_TRACE(leaves);
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster->Start(spec));
    }
    requests[0]->WaitForTokens(5);

    cluster->Detach(leaves);
    for (size_t i = 0; i < specs.size(); ++i) {
      const GenerateResult ended = requests[i]->Wait();
      if (ended.status.ok()) {  // It may have been faster.
        ExpectSameChoice(ended.choices[0], expected[i].choices[0]);
      } else {
        EXPECT_EQ(ended.status.code(), absl::StatusCode::kUnavailable) << ended.status;
      }
    }
    cluster->Attach(leaves);

    ASSERT_TRUE(cluster->WaitForState("serving").ok());
    const uint64_t before = cluster->handler("m0").Counters().device_units;
    ExpectSame(cluster->GenerateMany(specs), expected);
    EXPECT_GT(cluster->handler("m0").Counters().device_units, before);
  }
}

// Somebody writes headers of the past over those of the last compute node, again and again, so that
// one is there when the device looks, or else when the worker does.
TEST_P(CudaWaitsLeavingTest, AWindowOfAnOlderEpochIsRefusedAndCounted) {
  const std::vector<GenerateSpec> specs = LongerRequests(2);
  const std::vector<GenerateResult> expected = Expected(specs);
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster(OptionsOf({.lanes = GetParam(), .compute_nodes = GetParam()}));
  ASSERT_NE(cluster, nullptr);
  const plan::EpochConfig config = cluster->link("m0").config();
  const uint32_t from = GetParam() - 1;
  const plan::WindowLayout layout({.compute_nodes = GetParam(),
                                   .memory_nodes = 1,
                                   .lanes = config.lanes,
                                   .rows_max = config.rows_max,
                                   .kv_rows_max = config.chunk_tokens_max,
                                   .layers = config.layers});
  const auto transport = transport::MakeTransport("shm://").value();
  const auto region = transport->OpenRegion(cluster->link("m0").region(), config.epoch);
  ASSERT_TRUE(region.ok()) << region.status();
  const plan::WindowHeader stale{.epoch = config.epoch - 1, .step = 1, .sender = from};
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(&stale),
                                          sizeof(stale));
  const auto request = cluster->Start(specs[0]);
  request->WaitForTokens(5);

  uint64_t value = layout.SignalValue(1'000'000, 0);
  absl::Status put;
  while (put.ok() && cluster->engine().GetStatus().epoch == config.epoch) {
    for (int parity = 0; parity < 2 && put.ok(); ++parity) {
      value += plan::kSubBatchesMax;
      const transport::SignalUpdate signal{.word = layout.query_word(from, 0), .value = value};
      put = transport->Put(**region, layout.QueryWindow(from, 0, value), bytes, &signal);
    }
  }

  ASSERT_TRUE(cluster->WaitForEpoch(config.epoch + 1).ok());
  request->Wait();
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_GT(cluster->handler("m0").Counters().refused_messages, 0u);
  ExpectSame(cluster->GenerateMany(specs), expected);
}

INSTANTIATE_TEST_SUITE_P(ComputeNodes, CudaWaitsLeavingTest, ::testing::Values(1u, 2u),
                         [](const auto& test) { return absl::StrCat("Of", test.param); });

}  // namespace
}  // namespace lamina::test_support
