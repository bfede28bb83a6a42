// SPDX-License-Identifier: Apache-2.0
#include "config/cluster_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "tests/support/source_path.h"

namespace lamina {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSmall[] = R"(model: m.gguf
compute:
  - {name: c0, cores: "0"}
memory:
  - {name: m0, cores: "1", capacity: 2GiB}
  - {name: m1, cores: "1", capacity: 2GiB}
pipeline: {mode: rotational, lanes: 2}
)";

absl::StatusOr<ClusterConfig> Parse(absl::string_view text,
                                    const std::vector<std::string>& overrides = {}) {
  return ParseClusterConfig(text, "test.yaml", overrides);
}

std::string ErrorOf(absl::string_view text, const std::vector<std::string>& overrides = {}) {
  const absl::StatusOr<ClusterConfig> config = Parse(text, overrides);
  return config.ok() ? "no error" : config.status().ToString();
}

std::string SmallWith(const std::string& line) { return kSmall + line + "\n"; }

TEST(ClusterConfigTest, ReadsEveryKey) {
  const auto config = Parse(R"(
model: models/x.gguf
cluster_token_file: run/cluster.token
coordinator: {listen: 127.0.0.1:7500, cores: "6"}
gateway: {listen: 127.0.0.1:8500, cores: "6,7", model_names: [a, b], api_keys_file: keys, tls_certificate: c.pem, tls_key: k.pem,
  cors_origins: "*", body_bytes_max: 1MiB, connections_max: 10, choices_max: 4, request_seconds: 2, idle_seconds: 3,
  write_seconds: 4, keep_alive_seconds: 5}
compute:
  - {name: c0, host: 127.0.0.1, device: cpu, cores: "0-2,5", threads: 3, compute_type: f32}
memory:
  - {name: m0, host: localhost, device: cpu, cores: [1, 7], threads: 2, capacity: 512MiB}
transport: [shm]
pipeline: {mode: fixed, lanes: 3}
partition: request
policy: attend_remote
prefill: {mode: inline, chunk_tokens: 16}
limits: {sequence_tokens_max: 100, running_max: 7, waiting_max: 9, stuck_after: 2500ms}
order: priority
)");
  ASSERT_TRUE(config.ok()) << config.status();

  EXPECT_EQ(config->model, "models/x.gguf");
  EXPECT_EQ(config->cluster_token_file, "run/cluster.token");
  EXPECT_EQ(config->coordinator_listen, "127.0.0.1:7500");
  EXPECT_THAT(config->coordinator_cores, ElementsAre(6));
  const GatewayConfig gateway = {.listen = "127.0.0.1:8500",
                                 .cores = {6, 7},
                                 .model_names = {"a", "b"},
                                 .api_keys_file = "keys",
                                 .tls_certificate = "c.pem",
                                 .tls_key = "k.pem",
                                 .cors_origins = {"*"},
                                 .body_bytes_max = MiB(1),
                                 .connections_max = 10,
                                 .choices_max = 4,
                                 .request_seconds = 2,
                                 .idle_seconds = 3,
                                 .write_seconds = 4,
                                 .keep_alive_seconds = 5};
  EXPECT_EQ(config->gateway, gateway);
  ASSERT_EQ(config->compute.size(), 1u);
  EXPECT_THAT(config->compute[0].cores, ElementsAre(0, 1, 2, 5));
  EXPECT_EQ(config->compute[0].threads, 3u);
  EXPECT_EQ(config->compute[0].compute_type, "f32");
  EXPECT_THAT(config->memory[0].cores, ElementsAre(1, 7));
  EXPECT_EQ(config->memory[0].capacity_bytes, MiB(512));
  EXPECT_EQ(config->pipeline.mode, PipelineMode::kFixed);
  EXPECT_EQ(config->pipeline.lanes, 3u);
  EXPECT_EQ(config->prefill.chunk_tokens, 16u);
  EXPECT_EQ(config->limits.sequence_tokens_max, 100u);
  EXPECT_EQ(config->limits.running_max, 7u);
  EXPECT_EQ(config->limits.waiting_max, 9u);
  EXPECT_EQ(config->limits.stuck_after, Millis(2500));
  EXPECT_THAT(ToYaml(*config), HasSubstr("stuck_after: 2500ms"));
  EXPECT_EQ(config->order, ServiceOrderKind::kPriority);
}

TEST(ClusterConfigTest, LeavesTheDefaultsOfAbsentKeys) {
  const auto config = Parse(kSmall);
  ASSERT_TRUE(config.ok()) << config.status();

  EXPECT_EQ(config->coordinator_listen, "127.0.0.1:7400");
  EXPECT_EQ(config->limits.running_max, 256u);
  EXPECT_THAT(config->transport, ElementsAre("shm"));
}

TEST(ClusterConfigTest, FindsNodesByName) {
  const auto config = Parse(kSmall);
  ASSERT_TRUE(config.ok()) << config.status();

  EXPECT_EQ(config->FindCompute("c0"), &config->compute[0]);
  EXPECT_EQ(config->FindMemory("m1"), &config->memory[1]);
  EXPECT_EQ(config->FindMemory("c0"), nullptr);
  EXPECT_EQ(config->FindCompute("m0"), nullptr);
}

TEST(ClusterConfigTest, NamesTheLineAndTheNearestKeyOfAnUnknownOne) {
  EXPECT_THAT(ErrorOf(SmallWith("polcy: attend_remote")),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("test.yaml:8"), HasSubstr("'polcy'"),
                    HasSubstr("did you mean 'policy'?")));
  EXPECT_THAT(ErrorOf("model: m\nmemory:\n  - {name: m0,\n     capcity: 1GiB}\n"),
              AllOf(HasSubstr("test.yaml:4"), HasSubstr("memory.0.capcity"),
                    HasSubstr("did you mean 'capacity'?")));
}

TEST(ClusterConfigTest, ListsTheKnownKeysWhenNoneIsNear) {
  EXPECT_THAT(ErrorOf(SmallWith("limits: {zzzzzzzz: 1}")),
              AllOf(HasSubstr("limits.zzzzzzzz"), HasSubstr("running_max"),
                    testing::Not(HasSubstr("did you mean"))));
}

TEST(ClusterConfigTest, RefusesAKeyThatIsGivenTwice) {
  EXPECT_THAT(ErrorOf(SmallWith("model: other.gguf")), HasSubstr("'model' is given twice"));
}

TEST(ClusterConfigTest, RefusesWhatIsNotYaml) {
  EXPECT_THAT(ErrorOf("model: [a\ncompute: }"),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("not YAML")));
  EXPECT_THAT(ErrorOf(""), HasSubstr("no cluster file"));
  EXPECT_THAT(ErrorOf("just a sentence"), HasSubstr("no cluster file"));
}

// Its keys would go unheard.
TEST(ClusterConfigTest, RefusesASecondDocument) {
  EXPECT_THAT(ErrorOf(SmallWith("---\npolicy: local")), HasSubstr("a second YAML document"));
}

struct BadValue {
  std::string line;
  std::string expected;
};
class BadValueTest : public testing::TestWithParam<BadValue> {};

TEST_P(BadValueTest, IsInvalidAndNamed) {
  EXPECT_THAT(ErrorOf("model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n",
                      {GetParam().line}),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(GetParam().expected)));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, BadValueTest,
    testing::Values(
        BadValue{"model=", "model: missing"}, BadValue{"model=[a]", "model: wants one value"},
        BadValue{"coordinator.listen=7400", "like 127.0.0.1:7400"},
        BadValue{"coordinator.listen=127.0.0.1:99999", "like 127.0.0.1:7400"},
        BadValue{"coordinator.listen=:7400", "like 127.0.0.1:7400"},
        BadValue{"compute=[]", "compute: the cluster has none"},
        BadValue{"memory=[]", "memory: the cluster has none"},
        BadValue{"memory=3", "memory: wants a list"}, BadValue{"compute.0.name=", "a node name"},
        BadValue{"compute.0.name=a/b", "a node name"},
        BadValue{"compute.0.name=coordinator", "another daemon"},
        BadValue{"compute.0.name=m0", "another node has this name"},
        BadValue{"compute.0.host=", "a host name"}, BadValue{"compute.0.device=tpu", "cpu, cuda"},
        BadValue{"compute.0.device=cuda:one", "cpu, cuda"},
        BadValue{"compute.0.device=cuda:-1", "cpu, cuda"},
        BadValue{"compute.0.device=cuda:64", "cpu, cuda"},
        BadValue{"compute.0.cores=0-", "not a list of cores"},
        BadValue{"compute.0.cores=5000", "not a list of cores"},
        BadValue{"compute.0.threads=9999", "[0, 1024]"},
        BadValue{"compute.0.threads=-1", "not a whole number"},
        BadValue{"limits.running_max=9999999999", "'9999999999' is more than 4294967295"},
        BadValue{"compute.0.compute_type=int8", "bf16, f32"},
        BadValue{"memory.0.capacity=2 gigs", "memory.0.capacity: '2 gigs'"},
        BadValue{"memory.0.price=1.2", "memory.0.price: '1.2' is not a price"},
        BadValue{"compute.0.price=-1/h", "write it like 1.2/h"},
        BadValue{"memory.0.capacity=0", "memory.0.capacity: missing or zero"},
        BadValue{"memory.0.windows=gpu", "auto, host, device"},
        BadValue{"memory.0.windows=device", "'m0' is on the processor; give it a device"},
        BadValue{"compute.0.windows=host", "compute.0"},
        BadValue{"transport=[]", "transport: the list is empty"},
        BadValue{"transport=tcp", "one of shm, ucx, verbs"},
        BadValue{"transport=[ucx, shm, ucx]", "names ucx twice"},
        BadValue{"verbs.gid=256", "verbs.gid"}, BadValue{"verbs.mtu=1500", "256, 512, 1024"},
        BadValue{"verbs.retries=7", "[0, 6]"}, BadValue{"verbs.device=a?b", "verbs.device"},
        BadValue{"verbs.near=gpu0", "verbs.near"}, BadValue{"verbs.mtus=256", "did you mean 'mtu'"},
        BadValue{"verbs.port=x", "verbs.port"},
        BadValue{"pipeline.mode=circular", "rotational, fixed, sequential"},
        BadValue{"pipeline.lanes=0", "[1, 8]"}, BadValue{"pipeline.lanes=9", "[1, 8]"},
        BadValue{"pipeline={mode: sequential, lanes: 2}", "contradicts pipeline.mode sequential"},
        BadValue{"pipeline.lanes=many", "not a whole number, nor auto"},
        BadValue{"pipeline.device_waits=on", "auto, off"}, BadValue{"pipeline.chunks=0", "[1, 16]"},
        BadValue{"pipeline.chunks=17", "[1, 16]"},
        BadValue{"transport=throttle(shm", "throttle(...)+shm"},
        BadValue{"transport=throttle(latency=1us)+tcp", "one of shm, ucx, verbs"},
        BadValue{"partition=rows", "request, head, token_range"},
        BadValue{"policy=", "policy: '' is not one of"},
        BadValue{"policy=magic", "attend_remote, fetch_heads, fetch_recompute"},
        BadValue{"prefill.mode=lazy", "inline, dedicated"},
        BadValue{"prefill.mode=dedicated", "none has role prefill"},
        BadValue{"compute.0.role=prefill", "contradict prefill.mode inline"},
        BadValue{"compute.0.role=decode", "compute, prefill"},
        BadValue{"prefill.chunk_tokens=0", "[1, 8192]"},
        BadValue{"limits.sequence_tokens_max=1", "[2, 1048576]"},
        BadValue{"gateway.listen=8000", "gateway.listen"},
        BadValue{"gateway={listen: '127.0.0.1:0', tls_key: k}", "go together"},
        BadValue{"gateway={idle_seconds: 7}", "gateway.listen"},
        BadValue{"gateway={listen: '127.0.0.1:0', cores: 1-}", "not a list of cores"},
        BadValue{"coordinator.cores=[1, 1]", "names core 1 twice"},
        BadValue{"gateway={listen: '127.0.0.1:0', idle_seconds: 0}", "[1, 86400]"},
        BadValue{"gateway={listen: '127.0.0.1:0', body_bytes_max: 1}", "gateway.body_bytes_max"},
        BadValue{"gateway={listen: '127.0.0.1:0', model_names: ['']}", "gateway.model_names"},
        BadValue{"limits.running_max=0", "[1, 4096]"},
        BadValue{"limits.waiting_max=0", "[1, 1048576]"},
        BadValue{"limits.stuck_after=1s", "limits.stuck_after: '1s' is not in [2s, 1h]"},
        BadValue{"limits.stuck_after=30", "write it like 250ms or 5s"},
        BadValue{"order=lifo", "fcfs, priority"}));

TEST(ClusterConfigTest, LanesMayBeAutomatic) {
  const auto config = Parse(kSmall, {"pipeline={lanes: auto}"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->pipeline.lanes_auto);
  EXPECT_EQ(config->pipeline.lanes, 2u);
  EXPECT_THAT(ToYaml(*config), HasSubstr("lanes: auto"));
}

TEST(ClusterConfigTest, LanesAreAutomaticUnlessGivenOrSequential) {
  const auto config = Parse(kSmall, {"pipeline={mode: rotational}"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->pipeline.lanes_auto);
  const auto given = Parse(kSmall, {"pipeline={lanes: 2}"});
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_FALSE(given->pipeline.lanes_auto);
  const auto sequential = Parse(kSmall, {"pipeline={mode: sequential}"});
  ASSERT_TRUE(sequential.ok()) << sequential.status();
  EXPECT_FALSE(sequential->pipeline.lanes_auto);
  EXPECT_EQ(sequential->pipeline.lanes, 1u);
}

TEST(ClusterConfigTest, SubBatchesAreAutomaticUnlessGiven) {
  const auto config = Parse(kSmall, {});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->pipeline.chunks_auto);
  EXPECT_THAT(ToYaml(*config), HasSubstr("chunks: auto"));
  const auto given = Parse(kSmall, {"pipeline={chunks: 3}"});
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_FALSE(given->pipeline.chunks_auto);
  EXPECT_EQ(given->pipeline.chunks, 3u);
  EXPECT_THAT(ToYaml(*given), HasSubstr("chunks: 3"));
}

TEST(ClusterConfigTest, ATransportMayBeThrottled) {
  const auto config = Parse(kSmall, {"transport='throttle(bandwidth=100MB,latency=20us)+shm'"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->transport, ElementsAre("throttle(bandwidth=100MB,latency=20us)+shm"));
}

TEST(ClusterConfigTest, WhatATransportWouldRefuseIsRefused) {
  EXPECT_THAT(ErrorOf(kSmall, {"transport='throttle(bandwidth=0,latency=-1us)+shm'"}),
              AllOf(HasSubstr("bandwidth cannot be \"0\""), HasSubstr("transport")));
  EXPECT_THAT(ErrorOf(kSmall, {"transport='throttle(speed=1)+ucx'"}), HasSubstr("latency"));
  EXPECT_THAT(ErrorOf(kSmall, {"transport='throttle(latency=1us+shm'"}), HasSubstr("one of shm"));
}

// Nobody on another host needs to reach nodes that are all on this one.
TEST(ClusterConfigTest, OnOneHostTransportsListenOnLoopback) {
  auto config = Parse(kSmall, {"transport=ucx"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->UcxUri(), "ucx://?peers=local");
  EXPECT_EQ(config->VerbsUri(), "verbs://?peers=local");
  config->verbs.gid = 3;
  EXPECT_EQ(config->VerbsUri(), "verbs://?gid=3&peers=local");
  config->memory.back().host = "there";
  EXPECT_EQ(config->UcxUri(), "ucx://");
  EXPECT_EQ(config->VerbsUri(), "verbs://?gid=3");
}

TEST(ClusterConfigTest, NodesElsewhereMustReachTheCoordinator) {
  const std::vector<std::string> there = {"transport=ucx", "memory.0.host=there"};
  for (const char* listen : {"127.0.0.1:7400", "localhost:7400", "127.0.1.1:7400", "[::1]:7400"}) {
    auto overrides = there;
    overrides.push_back(absl::StrCat("coordinator.listen='", listen, "'"));
    EXPECT_THAT(ErrorOf(kSmall, overrides), HasSubstr("that m0 on there can reach")) << listen;
    overrides[1] = "memory.0.host='::1'";
    EXPECT_TRUE(Parse(kSmall, overrides).ok()) << ErrorOf(kSmall, overrides);
  }
}

// The largest number stands for no number that was not given.
TEST(ClusterConfigTest, RefusesTheLargestNumberOfLanesToo) {
  EXPECT_THAT(ErrorOf(kSmall, {"pipeline={lanes: 4294967295}"}),
              HasSubstr("pipeline.lanes: '4294967295' is not in [1, 8]"));
}

TEST(ClusterConfigTest, RefusesMoreLanesThanRows) {
  EXPECT_THAT(ErrorOf(kSmall, {"pipeline.lanes=3", "limits.running_max=2"}),
              HasSubstr("a lane would never have a row"));
  const auto config = Parse(kSmall, {"pipeline={mode: rotational}", "limits.running_max=1"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 1u);
}

class NotServedTest : public testing::TestWithParam<BadValue> {};

TEST_P(NotServedTest, IsUnimplementedAndSaysWhatIs) {
  EXPECT_THAT(ErrorOf("model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n",
                      {GetParam().line}),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr(GetParam().expected)));
}

INSTANTIATE_TEST_SUITE_P(Keys, NotServedTest,
                         testing::Values(BadValue{"compute.0.host=node17", "localhost, 127.0.0.1"},
                                         BadValue{"memory.0.host=node17", "localhost, 127.0.0.1"}));

TEST(ClusterConfigTest, PolicyLocalHasCudaDevicesToo) {
  EXPECT_EQ(ErrorOf("model: m\npolicy: local\n"
                    "compute: [{name: c0, capacity: 1GiB, device: 'cuda:0'}]\n"),
            "no error");
}

TEST(ClusterConfigTest, WithPolicyFetchHeadsACudaDeviceIsNotServed) {
  EXPECT_THAT(ErrorOf("model: m\npolicy: fetch_heads\n"
                      "compute: [{name: c0, device: 'cuda:0'}]\n"
                      "memory: [{name: m0, capacity: 1GiB}]\n"),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("compute.0.device: 'cuda:0'"),
                    HasSubstr("cpu, with policy fetch_heads")));
}

TEST(ClusterConfigTest, KnowsWhetherANodeIsOnADevice) {
  EXPECT_FALSE(Parse(kSmall)->HasDevices());
  EXPECT_TRUE(Parse(kSmall, {"compute.0.device=cuda"})->HasDevices());
  EXPECT_TRUE(Parse(kSmall, {"memory.1.device=cuda:1"})->HasDevices());
}

TEST(ClusterConfigTest, NodesMayHaveACudaDevice) {
  EXPECT_EQ(ErrorOf("model: m\ncompute: [{name: c0, device: cuda}]\n"
                    "memory: [{name: m0, capacity: 1GiB, device: 'cuda:1'}]\n"),
            "no error");
}

TEST(ClusterConfigTest, MemoryNodesOnCudaSayWhereTheirWindowsLie) {
  constexpr char kText[] =
      "model: m\ncompute: [{name: c0}]\n"
      "memory: [{name: m0, capacity: 1GiB, device: cuda}, {name: m1, capacity: 1GiB, device: cuda, "
      "windows: device}]\n";
  const auto config = Parse(kText);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->memory[0].windows, WindowPlace::kAuto);
  EXPECT_EQ(config->memory[1].windows, WindowPlace::kDevice);
  const auto again = Parse(ToYaml(*config), {"memory.m0.windows=host"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->memory[0].windows, WindowPlace::kHost);
  EXPECT_EQ(again->memory[1].windows, WindowPlace::kDevice);
}

// A cluster file with so many nodes.
std::string WithNodes(int compute, int memory) {
  std::string text = "model: m\npipeline: {lanes: 2}\ncompute:\n";
  for (int i = 0; i < compute; ++i) {
    absl::StrAppend(&text, "  - {name: c", i, "}\n");
  }
  absl::StrAppend(&text, "memory:\n");
  for (int i = 0; i < memory; ++i) {
    absl::StrAppend(&text, "  - {name: m", i, ", capacity: 1MiB}\n");
  }
  return text;
}

TEST(ClusterConfigTest, RefusesMoreNodesThanItServes) {
  EXPECT_EQ(ErrorOf(WithNodes(128, 128)), "no error");
  EXPECT_EQ(ErrorOf(WithNodes(1, 255)), "no error");
  EXPECT_THAT(ErrorOf(WithNodes(129, 1)), AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("1 to 128")));
  EXPECT_THAT(ErrorOf(WithNodes(1, 256)), AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("1 to 255")));
  EXPECT_THAT(ErrorOf(WithNodes(120, 137)),
              AllOf(HasSubstr("UNIMPLEMENTED"), HasSubstr("256 in all; make several clusters")));
}

TEST(ClusterConfigTest, NodesMayBeElsewhereWhereATransportReachesThem) {
  for (const char* transport : {"ucx", "[verbs, ucx]", "[shm, ucx]"}) {
    EXPECT_TRUE(Parse("model: m\ncompute: [{name: c0, host: h0}]\n"
                      "memory: [{name: m0, host: 192.0.2.7, capacity: 1GiB}]\n",
                      {std::string("transport=") + transport, "coordinator.listen=0.0.0.0:7400"})
                    .ok())
        << transport;
  }
  EXPECT_THAT(ErrorOf("model: m\ncompute: [{name: c0}]\ntransport: ucx\n"
                      "memory: [{name: m0, host: h1, capacity: 1GiB}]\n"),
              AllOf(HasSubstr("coordinator.listen"), HasSubstr("m0 on h1")));
}

TEST(ClusterConfigTest, VerbsOptionsBecomeAUri) {
  EXPECT_EQ(VerbsConfig().Uri(), "verbs://");
  const auto config = Parse(kSmall, {"transport=[verbs, ucx]", "verbs={device: mlx5_1, gid: 3}",
                                     "verbs.retries=0", "verbs.near=0000:41:00.0"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->transport, ElementsAre("verbs", "ucx"));
  EXPECT_EQ(config->verbs.Uri(), "verbs://mlx5_1?near=0000:41:00.0&gid=3&retries=0");
  const auto again = Parse(ToYaml(*config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->verbs, config->verbs);
}

TEST(ClusterConfigTest, SequentialHasOneLaneUnlessTold) {
  const auto config = Parse(
      "model: m\ncompute: [{name: c0}]\nmemory: [{name: m0, capacity: 1GiB}]\n"
      "pipeline: {mode: sequential}\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 1u);
}

TEST(ClusterConfigTest, HasOneLaneMoreThanReplicasUnlessTold) {
  const auto config = Parse(
      "model: m\ncompute: [{name: c0}, {name: c1}, {name: c2}]\n"
      "memory: [{name: m0, capacity: 1GiB}]\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 4u);
}

TEST(ClusterConfigTest, PromptsMayHaveNodesOfTheirOwn) {
  const std::string rest = "memory: [{name: m0, capacity: 1GiB}]\nprefill: {mode: dedicated}\n";
  const auto config =
      Parse("model: m\ncompute: [{name: c0}, {name: p0, role: prefill}, {name: c1}]\n" + rest);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 3u);  // One more than those that decode.
  EXPECT_EQ(config->CountCompute(ComputeRole::kPrefill), 1u);
  const auto again = Parse(ToYaml(*config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->compute[1].role, ComputeRole::kPrefill);
  EXPECT_EQ(again->compute[2].role, ComputeRole::kCompute);
  EXPECT_EQ(again->prefill.mode, PrefillMode::kDedicated);

  EXPECT_THAT(ErrorOf("model: m\ncompute: [{name: p0, role: prefill}]\n" + rest),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("nobody would decode")));
  EXPECT_TRUE(Parse("model: m\ncompute: [{name: c0, replica: r, stage: 0}, {name: c1, replica: r, "
                    "stage: 1}, {name: p0, role: prefill}]\n" +
                    rest)
                  .ok());
  EXPECT_TRUE(Parse("model: m\ncompute: [{name: c0}, {name: p0, role: prefill}]\n" + rest +
                    "pipeline: {mode: sequential}\n")
                  .ok());
}

TEST(ClusterConfigTest, RefusesReplicasThatCannotWorkTogether) {
  const std::string memory = "memory: [{name: m0, capacity: 1GiB}]\n";
  EXPECT_THAT(
      ErrorOf("model: m\ncompute: [{name: c0}, {name: c1}]\n" + memory +
              "pipeline: {mode: sequential}\n"),
      AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("2 replicas"), HasSubstr("sequential")));
  EXPECT_THAT(ErrorOf("model: m\ncompute: [{name: c0}, {name: c1, compute_type: f32}]\n" + memory),
              AllOf(HasSubstr("compute.1.compute_type"), HasSubstr("bf16, that of the other")));
}

TEST(ClusterConfigTest, OverridesAnyKey) {
  const auto config =
      Parse(kSmall, {"model=other.gguf", "pipeline.mode=fixed", "pipeline.lanes=1",
                     "compute.0.cores=1", "memory.m1.capacity=1GiB", "memory.0.cores=[0, 1]",
                     "limits.running_max=3", "coordinator.listen=127.0.0.1:0", "transport=[shm]"});
  ASSERT_TRUE(config.ok()) << config.status();

  EXPECT_EQ(config->model, "other.gguf");
  EXPECT_EQ(config->pipeline.mode, PipelineMode::kFixed);
  EXPECT_EQ(config->pipeline.lanes, 1u);
  EXPECT_THAT(config->compute[0].cores, ElementsAre(1));
  EXPECT_EQ(config->memory[0].capacity_bytes, GiB(2));
  EXPECT_EQ(config->memory[1].capacity_bytes, GiB(1));
  EXPECT_THAT(config->memory[0].cores, ElementsAre(0, 1));
  EXPECT_EQ(config->limits.running_max, 3u);
  EXPECT_EQ(config->coordinator_listen, "127.0.0.1:0");
  EXPECT_EQ(Parse(kSmall, {"coordinator.listen=[::1]:7400"})->coordinator_listen, "[::1]:7400");
}

TEST(ClusterConfigTest, OverridesAppendToListsAndTakeKeysAway) {
  const auto config = Parse(SmallWith("limits: {running_max: 3}"),
                            {"memory.2={name: m2, capacity: 4MiB}", "limits.running_max=null"});
  ASSERT_TRUE(config.ok()) << config.status();

  ASSERT_EQ(config->memory.size(), 3u);
  EXPECT_EQ(config->memory[2].name, "m2");
  EXPECT_EQ(config->limits.running_max, 256u);
}

TEST(ClusterConfigTest, TheLastOverrideOfAKeyWins) {
  const auto config = Parse(kSmall, {"pipeline.lanes=3", "pipeline.lanes=4"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pipeline.lanes, 4u);
}

TEST(ClusterConfigTest, NamesTheOverrideThatIsWrong) {
  EXPECT_THAT(ErrorOf(kSmall, {"pipelin.mode=fixed"}),
              AllOf(HasSubstr("--set pipelin.mode=fixed"), HasSubstr("did you mean 'pipeline'?")));
  EXPECT_THAT(ErrorOf(kSmall, {"pipeline.lanes=two"}),
              AllOf(HasSubstr("--set pipeline.lanes=two"), HasSubstr("not a whole number")));
  EXPECT_THAT(ErrorOf(kSmall, {"pipeline.lanes"}), HasSubstr("write it like"));
  EXPECT_THAT(ErrorOf(kSmall, {"memory.m7.capacity=1GiB"}),
              AllOf(HasSubstr("no element 'm7'"), HasSubstr("m0, m1")));
  EXPECT_THAT(ErrorOf(kSmall, {"model.name=x"}), HasSubstr("'model' is a value"));
  EXPECT_THAT(ErrorOf(kSmall, {"a..b=x"}), HasSubstr("empty part"));
  EXPECT_THAT(ErrorOf(kSmall, {"transport=[shm"}), HasSubstr("the value is not YAML"));
  EXPECT_THAT(ErrorOf(kSmall, {"transport=[ucx] shm"}), HasSubstr("ends before the text does"));
  EXPECT_THAT(ErrorOf(kSmall, {"memory.m0.capcity=1GiB"}),
              AllOf(HasSubstr("--set memory.m0.capcity=1GiB"), HasSubstr("'capacity'")));
}

TEST(ClusterConfigTest, NamesTheOverrideWhoseValueIsNotAllowed) {
  EXPECT_THAT(ErrorOf(kSmall, {"pipeline.lanes=3", "pipeline.lanes=9"}),
              HasSubstr("--set pipeline.lanes=9: pipeline.lanes: '9' is not in [1, 8]"));
  EXPECT_THAT(ErrorOf(kSmall, {"memory.m1.name=m0"}),
              HasSubstr("--set memory.m1.name=m0: memory.1.name: 'm0' is not unique"));
  EXPECT_THAT(ErrorOf(SmallWith("limits: {running_max: 0}"), {"pipeline.lanes=1"}),
              AllOf(HasSubstr("limits.running_max: '0'"), Not(HasSubstr("--set"))));
}

TEST(ClusterConfigTest, WritesWhatItReadsBackAsTheSame) {
  const auto config =
      Parse(kSmall, {"memory.0.capacity=1000001", "compute.0.cores=0-3,8", "coordinator.cores=2,3",
                     "gateway={listen: '127.0.0.1:0', cores: 5}", "memory.1.price=1234.5678/h"});
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string yaml = ToYaml(*config);

  const auto again = Parse(yaml);
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << yaml;

  EXPECT_EQ(ToYaml(*again), yaml);
  EXPECT_EQ(again->memory[0].capacity_bytes, 1000001u);
  EXPECT_EQ(again->memory[1].capacity_bytes, GiB(2));
  EXPECT_EQ(again->memory[1].price_per_hour, 1234.5678);
  EXPECT_THAT(again->compute[0].cores, ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(again->coordinator_cores, ElementsAre(2, 3));
  EXPECT_THAT(again->gateway.cores, ElementsAre(5));
}

TEST(ClusterConfigTest, TheJournalIsOffUnlessAFileIsNamed) {
  const auto plain = Parse(kSmall);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->coordinator_journal, "");
  const auto with = Parse(kSmall, {"coordinator.journal=j", "coordinator.journal_keep=90s"});
  ASSERT_TRUE(with.ok()) << with.status();

  const auto again = Parse(ToYaml(*with));

  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->coordinator_journal, "j");
  EXPECT_EQ(again->coordinator_journal_keep, Seconds(90));
  EXPECT_THAT(ErrorOf(kSmall, {"coordinator.journal_keep=10ms"}), HasSubstr("in [1s, 1h]"));
}

TEST(ClusterConfigTest, SaysWhenTheFileIsMissing) {
  const auto config = LoadClusterConfig("/nonexistent/cluster.yaml", {});
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("/nonexistent/cluster.yaml"));
}

TEST(ClusterConfigTest, SaysWhenTheFileIsADirectory) {
  EXPECT_FALSE(LoadClusterConfig("/", {}).ok());
}

TEST(ClusterConfigTest, TheExamplesAreValid) {
  size_t examples = 0;
  const std::filesystem::path folder = test_support::SourcePath("deploy/clusters");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto config = LoadClusterConfig(entry.path().string(), {});
    EXPECT_TRUE(config.ok()) << entry.path() << ": " << config.status();
    ++examples;
  }
  EXPECT_GE(examples, 11u);
}

TEST(ParseCoresTest, TakesNumbersAndRanges) {
  EXPECT_THAT(ParseCores("0-3,8").value(), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(ParseCores(" 7 , 2 ").value(), ElementsAre(7, 2));
  EXPECT_THAT(ParseCores("").value(), IsEmpty());
}

TEST(ParseCoresTest, RefusesWhatIsNotAListOfCores) {
  for (const char* text : {"a", "-1", "3-1", "1-", "0,,1", "0-9999", "1,1", "0-3,2", "1.5", "+1"}) {
    EXPECT_EQ(ParseCores(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace lamina
