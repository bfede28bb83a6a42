// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/version.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "coordinator/member_trial.h"
#include "coordinator/node_costs.h"
#include "plan/policy_times.h"
#include "tests/unit/coordinator/small_limits.h"
#include "tests/unit/coordinator/stub_port.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ManualClock final : public Clock {
 public:
  Nanos Now() const override { return now; }
  Nanos now = Seconds(1000);
};

class NotingOwner final : public EpochOwner {
 public:
  void BeginEpoch(const FormedEpoch& epoch, const std::vector<std::string>& lost) override {
    begun.push_back(epoch.config());
    losses.push_back(lost);
  }
  void EpochServes(const FormedEpoch& epoch) override { served.push_back(epoch.config().epoch); }
  void StopServing(const absl::Status& status) override { stopped.push_back(status); }

  std::vector<plan::EpochConfig> begun;
  std::vector<uint64_t> served;
  std::vector<std::vector<std::string>> losses;
  std::vector<absl::Status> stopped;
};

EngineOptions Options() {
  return {.nodes = {{.name = "c0"},
                    {.name = "m0", .is_memory = true},
                    {.name = "m1", .is_memory = true}},
          .layers = {{.query_heads = 2, .kv_heads = 2, .head_dim = 16}},
          .model_fingerprint = "model",
          .transports = {"ucx://", "shm://"},
          .scheduler = SmallLimits(),
          .node_silence_max = Seconds(10)};
}

class ClusterMembersTest : public ::testing::Test {
 protected:
  void SetOptions(const EngineOptions& options) {
    options_ = options;
    members_.emplace(options_, clock_, owner_);
  }

  StubPort& Join(const std::string& name, const std::string& kernels = "") {
    const bool is_memory = name[0] == 'm';
    ports_[name] = std::make_shared<StubPort>();
    members_->Joined({.identity = {.name = name,
                                   .is_memory = is_memory,
                                   .capacity_bytes = uint64_t{1} << 20,
                                   .bandwidth_bytes_per_second = 1e9,
                                   .kernels = kernels,
                                   .model_fingerprint = is_memory ? "" : "model",
                                   .policy_times = is_memory ? plan::PolicyTimes() : times_},
                      .version = std::string(kVersion)},
                     ports_[name]);
    members_->Advance();
    return *ports_[name];
  }
  void Leave(const std::string& name) {
    members_->Left({.name = name, .port = ports_.at(name).get()});
    members_->Advance();
  }
  // All that were configured prepare and are ready.
  void Serve() {
    const uint64_t epoch = members_->membership().epoch();
    for (const auto& [name, port] : ports_) {
      if (members_->IsFrom({.name = name, .port = port.get()})) {
        members_->Prepared(name, epoch, {.region = "of " + name});
      }
    }
    members_->Advance();
    for (const auto& [name, port] : ports_) {
      if (members_->IsFrom({.name = name, .port = port.get()})) {
        members_->Ready(name, epoch);
      }
    }
    members_->Advance();
  }
  void ServeAll() {
    for (const core::Member& member : options_.nodes) {
      Join(member.name);
    }
    Serve();
    ASSERT_TRUE(members_->serving());
  }

  EngineOptions options_;
  plan::PolicyTimes times_;  // Compute nodes that join have measured these.
  ManualClock clock_;
  NotingOwner owner_;
  std::map<std::string, std::shared_ptr<StubPort>> ports_;
  std::optional<ClusterMembers> members_;
};

TEST_F(ClusterMembersTest, TheFirstEpochWaitsForAllNodes) {
  SetOptions(Options());
  Join("c0");
  Join("m0");
  EXPECT_THAT(owner_.begun, IsEmpty());
  EXPECT_EQ(members_->epoch(), nullptr);
  Join("m1");
  ASSERT_THAT(owner_.begun, SizeIs(1));
  for (const auto& [name, port] : ports_) {
    ASSERT_THAT(port->configured, SizeIs(1)) << name;
    EXPECT_EQ(port->configured[0], owner_.begun[0]) << name;
  }
  EXPECT_THAT(owner_.served, IsEmpty());
  Serve();
  EXPECT_TRUE(members_->serving());
  EXPECT_THAT(owner_.served, ElementsAre(owner_.begun[0].epoch));
  ASSERT_THAT(ports_["m1"]->connected, SizeIs(1));
  EXPECT_THAT(ports_["m1"]->connected[0].compute_regions, ElementsAre("of c0"));
  EXPECT_THAT(ports_["m1"]->connected[0].memory_regions, ElementsAre("of m0", "of m1"));
}

TEST_F(ClusterMembersTest, ANodeThatIsNotNamedIsRefused) {
  SetOptions(Options());
  EXPECT_THAT(Join("m7").refused, ElementsAre(HasSubstr("m7")));
  EXPECT_EQ(members_->nodes().Find("m7"), nullptr);
}

TEST_F(ClusterMembersTest, AShardOfExpertsOnAProcessorOfAnotherClassIsRefused) {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0", .replica = "r"},
                   {.name = "c1", .replica = "r"},
                   {.name = "m0", .is_memory = true}};
  options.replicas = {{.name = "r", .nodes = {"c0", "c1"}, .shards = 2}};
  options.has_experts = true;
  SetOptions(options);
  Join("c0", "loop A");
  EXPECT_THAT(Join("c1", "loop B").refused, ElementsAre(HasSubstr("'loop B', and c0")));
  EXPECT_EQ(members_->nodes().Find("c1"), nullptr);
  EXPECT_THAT(Join("c1", "loop A").refused, IsEmpty());
  EXPECT_NE(members_->nodes().Find("c1"), nullptr);
}

TEST_F(ClusterMembersTest, AnEpochOfThoseLeftFollowsALoss) {
  SetOptions(Options());
  ServeAll();
  Leave("m0");
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_THAT(owner_.begun[1].memory_nodes, ElementsAre("m1"));
  EXPECT_THAT(owner_.losses[1], ElementsAre("m0"));
  EXPECT_THAT(owner_.stopped, IsEmpty());
  Serve();
  Join("m0");
  ASSERT_THAT(owner_.begun, SizeIs(3));
  EXPECT_THAT(owner_.losses[2], IsEmpty());
}

TEST_F(ClusterMembersTest, NodesThatAreLetGoCostOneEpoch) {
  SetOptions(Options());
  ServeAll();
  const MemberTrial trial(options_, *members_);
  EXPECT_TRUE(trial.CanServeWithout({"m0"}));
  EXPECT_FALSE(trial.CanServeWithout({"m0", "m1"}));
  EXPECT_FALSE(trial.CanServeWithout({"c0"}));
  members_->Release({"m0"});
  members_->Advance();
  EXPECT_EQ(ports_["m0"]->ended, 1);
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_THAT(owner_.begun[1].memory_nodes, ElementsAre("m1"));
  EXPECT_THAT(owner_.losses[1], ElementsAre("m0"));
  EXPECT_THAT(owner_.stopped, IsEmpty());
}

// Two nodes have room for the longest request together, and neither has alone.
TEST_F(ClusterMembersTest, ANodeWhoseRoomIsNeededCannotBeLetGo) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  options.scheduler.sequence_tokens_max = 10'000;
  SetOptions(options);
  ServeAll();
  const MemberTrial trial(options_, *members_);
  EXPECT_FALSE(trial.CanServeWithout({"m0"}));
  options.scheduler.sequence_tokens_max = 5'000;
  SetOptions(options);
  ServeAll();
  EXPECT_TRUE(MemberTrial(options_, *members_).CanServeWithout({"m0"}));
}

TEST_F(ClusterMembersTest, WithoutAComputeNodeNobodyIsServed) {
  SetOptions(Options());
  ServeAll();
  Leave("c0");
  EXPECT_THAT(owner_.begun, SizeIs(1));
  ASSERT_THAT(owner_.stopped, SizeIs(1));
  EXPECT_EQ(owner_.stopped[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(owner_.stopped[0].message()), HasSubstr("node c0 is gone"));
}

TEST_F(ClusterMembersTest, ADepartureOverAnotherPortIsNone) {
  SetOptions(Options());
  ServeAll();
  const StubPort other;
  members_->Left({.name = "m0", .port = &other});
  members_->Advance();
  EXPECT_THAT(owner_.begun, SizeIs(1));
}

TEST_F(ClusterMembersTest, MembersThatCannotServeTogetherWaitForOthers) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  options.nodes.push_back({.name = "m2", .is_memory = true});
  SetOptions(options);
  for (const core::Member& member : options.nodes) {
    Join(member.name);
  }
  EXPECT_THAT(owner_.begun, IsEmpty()) << "three nodes, two heads";
  ASSERT_THAT(owner_.stopped, SizeIs(1));
  EXPECT_THAT(std::string(owner_.stopped[0].message()), HasSubstr("cannot serve: "));
  Leave("m2");
  EXPECT_THAT(owner_.begun, SizeIs(1));
}

TEST_F(ClusterMembersTest, AFaultOfTheTransportTriesTheNext) {
  SetOptions(Options());
  ServeAll();
  EXPECT_EQ(owner_.begun[0].transport, "ucx://");
  members_->Fault("c0", 1, control::TransportFault(absl::UnavailableError("no device")));
  members_->Advance();
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_EQ(owner_.begun[1].transport, "shm://");
  EXPECT_THAT(members_->transport().Warning(), HasSubstr("no device"));
  Serve();
  Leave("m0");
  Join("m0");
  EXPECT_EQ(owner_.begun.back().transport, "ucx://") << "what was missing may have come with it";
}

TEST_F(ClusterMembersTest, ANodeThatSaysNothingIsLeftOut) {
  SetOptions(Options());
  ServeAll();
  for (int i = 0; i < 12; ++i) {
    clock_.now += Seconds(1);
    members_->BeginTurn();
    for (const char* name : {"c0", "m0"}) {
      members_->TakeStatus(name, 0, {});
    }
    members_->DropLostNodes();
    members_->Advance();
  }
  EXPECT_EQ(members_->nodes().Find("m1"), nullptr);
  EXPECT_EQ(ports_["m1"]->ended, 1);
  EXPECT_THAT(ports_["m1"]->left, ElementsAre(HasSubstr("no sign of life from m1")));
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_THAT(owner_.begun[1].memory_nodes, ElementsAre("m0"));
}

TEST_F(ClusterMembersTest, AStageThatComesBackLoadsItsLayersBeforeItJoins) {
  EngineOptions options = Options();
  options.layers.resize(2, options.layers[0]);
  options.nodes = {{.name = "c0", .replica = "r"},
                   {.name = "c1", .replica = "r"},
                   {.name = "m0", .is_memory = true}};
  options.replicas = {{.name = "r", .nodes = {"c0", "c1"}}};
  options.slice_costs = {1, 1, 1};
  SetOptions(options);
  ServeAll();
  EXPECT_THAT(ports_["c1"]->loaded, IsEmpty()) << "configured with them";
  Leave("c1");
  StubPort& port = Join("c1");
  ASSERT_THAT(port.loaded, SizeIs(1));
  EXPECT_EQ(port.loaded[0].first_layer, 1u);
  EXPECT_THAT(owner_.begun, SizeIs(1));
  EXPECT_FALSE(port.measures) << "nothing is chosen by it";
  members_->Loaded("c1", plan::PolicyTimes());
  members_->Advance();
  EXPECT_THAT(owner_.begun, SizeIs(2));
  Leave("c1");
  StubPort& again = Join("c1");
  members_->Loaded("c1", absl::DataLossError("a damaged file"));
  EXPECT_THAT(again.refused, ElementsAre("a damaged file"));
  EXPECT_EQ(members_->nodes().Find("c1"), nullptr);
}

// Replica r of c0 and c1 in stages, and m0.
EngineOptions InStagesUnderAuto() {
  EngineOptions options = Options();
  options.layers.resize(2, options.layers[0]);
  options.nodes = {{.name = "c0", .replica = "r", .holds_kv = true},
                   {.name = "c1", .replica = "r", .holds_kv = true},
                   {.name = "m0", .is_memory = true}};
  options.replicas = {{.name = "r", .nodes = {"c0", "c1"}}};
  options.slice_costs = {1, 1, 1};
  options.policy_auto =
      PolicyAutoOptions{.load = {.rows = 1, .context = 16}, .memory = {{.names = {"m0"}}}};
  return options;
}

// Slices and tails of one second each with memory nodes, of so many without.
plan::PolicyTimes Measured(double local) {
  return {.local = {{.rows = 1, .slice_seconds = local, .tail_seconds = local}},
          .pools = {{.rows = 1, .slice_seconds = 1, .tail_seconds = 1}},
          .attention_local = 1e9,
          .read_bandwidth = 1e9};
}

class AutoMembersTest : public ClusterMembersTest {
 protected:
  // All have joined, and an epoch of policy local begins.
  void BeginInStagesUnderAuto() {
    SetOptions(InStagesUnderAuto());
    for (const char* name : {"m0", "c0", "c1"}) {
      Join(name);
    }
    members_->Loaded("c0", Measured(0.5));
    members_->Loaded("c1", Measured(0.5));
    members_->Advance();
  }
};

TEST_F(ClusterMembersTest, UnderPolicyAutoPartsOfAReplicaJoinWithWhatTheyHaveMeasured) {
  SetOptions(InStagesUnderAuto());
  Join("m0");
  Join("c0");
  EXPECT_THAT(ports_["c0"]->loaded, IsEmpty());
  EXPECT_EQ(members_->nodes().DescribeJoining(), "c0 waits for the other nodes of its replica");
  members_->Loaded("c0", Measured(0.5));
  EXPECT_THAT(members_->nodes().DescribeJoining(), HasSubstr("c0 waits")) << "nobody asked for it";
  Join("c1");
  for (const char* name : {"c0", "c1"}) {
    ASSERT_THAT(ports_[name]->loaded, SizeIs(1)) << name;
    EXPECT_TRUE(ports_[name]->measures) << name;
  }
  EXPECT_EQ(ports_["c1"]->loaded[0].first_layer, 1u);
  EXPECT_EQ(members_->nodes().DescribeJoining(), "c0, c1 load their layers");
  members_->Loaded("c0", Measured(0.5));
  members_->Advance();
  EXPECT_THAT(owner_.begun, IsEmpty());
  EXPECT_EQ(members_->nodes().DescribeJoining(), "c1 loads its layers");

  members_->Loaded("c1", plan::PolicyTimes());
  EXPECT_THAT(ports_["c1"]->refused, ElementsAre(HasSubstr("has measured nothing")));
  EXPECT_THAT(Join("c1").loaded, SizeIs(1)) << "it is known which";
  members_->Loaded("c1", Measured(-1));
  EXPECT_THAT(ports_["c1"]->refused, ElementsAre(HasSubstr("wanted are positive times")));
  EXPECT_EQ(members_->nodes().Find("c1"), nullptr);
  EXPECT_EQ(members_->policy()->current(), std::nullopt);

  Join("c1");
  members_->Loaded("c1", Measured(0.5));
  members_->Advance();
  ASSERT_THAT(owner_.begun, SizeIs(1));
  EXPECT_EQ(members_->policy()->current(), cost::KvPolicy::kLocal);
  EXPECT_THAT(owner_.begun[0].memory_nodes, ElementsAre("c0", "c1")) << "they have K and V";
  EXPECT_EQ(members_->nodes().DescribeJoining(), "");
}

// The other policy serves until a node comes, with which it is tried again.
TEST_F(AutoMembersTest, UnderPolicyAutoAPolicyThatCannotBePreparedIsLeftOut) {
  BeginInStagesUnderAuto();
  ASSERT_EQ(members_->policy()->current(), cost::KvPolicy::kLocal);
  members_->Fault("c1", 1, absl::ResourceExhaustedError("no room for K and V"));
  members_->Fault("c0", 1, absl::ResourceExhaustedError("no room for K and V"));
  members_->Advance();
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_EQ(members_->policy()->current(), cost::KvPolicy::kAttendRemote);
  EXPECT_THAT(members_->policy()->choice()->why,
              HasSubstr("it could not be prepared: c1: no room for K and V"));
  EXPECT_THAT(owner_.begun[1].memory_nodes, ElementsAre("m0"));
  Serve();
  EXPECT_TRUE(members_->serving());
  clock_.now += Seconds(100);
  members_->BeginTurn();
  members_->WatchLoad(false, nullptr);
  EXPECT_TRUE(members_->serving()) << "and is not tried again for want of work";

  Leave("c1");
  Join("c1");
  members_->Loaded("c1", Measured(0.5));
  members_->Advance();
  EXPECT_EQ(members_->policy()->current(), cost::KvPolicy::kLocal);
}

// Where no other policy is left, the node is what fails.
TEST_F(AutoMembersTest, UnderPolicyAutoTheNodeIsSetAsideWhenNoPolicyIsLeft) {
  BeginInStagesUnderAuto();
  for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
    members_->Fault("c1", epoch, absl::ResourceExhaustedError("no room"));
    members_->Advance();
  }
  EXPECT_THAT(members_->membership().Describe(), HasSubstr("c1 failed: no room"));
}

// One that is lost is measured anew, and the choice with it.
TEST_F(AutoMembersTest, UnderPolicyAutoAPartThatComesBackIsMeasuredAgain) {
  BeginInStagesUnderAuto();
  Serve();
  ASSERT_TRUE(members_->serving());
  Leave("c1");
  EXPECT_FALSE(members_->serving());
  EXPECT_THAT(Join("c1").loaded, SizeIs(1));
  EXPECT_THAT(owner_.begun, SizeIs(1));
  members_->Loaded("c1", Measured(50));
  members_->Advance();
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_EQ(members_->policy()->current(), cost::KvPolicy::kAttendRemote);
  EXPECT_THAT(owner_.begun[1].memory_nodes, ElementsAre("m0"));
}

// A token's K and V have 128 bytes, its activation half of them.
FetchOptions Hybrid() {
  return {.bytes = 1 << 20,
          .heads = 2,
          .activation_width = 32,
          .hybrid = HybridOptions{.share = 512, .automatic = true}};
}

// Links are assumed to be as fast as copies, 500 MB/s, and turn out to have a tenth.
TEST_F(AutoMembersTest, UnderPolicyAutoAnotherShareOfActivationsIsAnotherEpoch) {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0"}, {.name = "m0", .is_memory = true}};
  options.policy_auto =
      PolicyAutoOptions{.load = {.rows = 4, .context = 64},
                        .memory = {{.names = {"m0"}}},
                        .policies = {{.policy = cost::KvPolicy::kFetchHybrid, .fetch = Hybrid()}}};
  times_ = Measured(1);
  times_.pools = {{.rows = 1, .slice_seconds = 1e-9, .tail_seconds = 1e-9}};
  times_.attention_pools = 1e12;
  times_.make_seconds = 7.5 * 128 / 5e8;
  SetOptions(options);
  ServeAll();
  EXPECT_EQ(owner_.begun.back().activation_share, 2 * 64u);
  members_->Links("c0", 1, {{.peer = "m0", .bytes_per_second = 5e7}});
  members_->WatchLoad(false, nullptr);
  members_->Advance();
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_EQ(owner_.begun[1].activation_share, 13 * 64u);
  Serve();
  members_->Links("c0", 2, {{.peer = "m0", .bytes_per_second = 5.5e7}});
  clock_.now += Seconds(100);
  members_->WatchLoad(false, nullptr);
  clock_.now += Seconds(100);
  members_->WatchLoad(false, nullptr);
  members_->Advance();
  EXPECT_THAT(owner_.begun, SizeIs(2)) << "a sixteenth is not worth it";
}

TEST_F(ClusterMembersTest, WithFetchHybridTheShareOfActivationsFollowsTheLoad) {
  EngineOptions options = Options();
  options.fetch = Hybrid();
  SetOptions(options);
  ServeAll();
  EXPECT_EQ(owner_.begun.back().activation_share, 512u);
  // K and V of a token take a microsecond either way, and in two slices of a step, the tail one of
  // them, four rows as long as K and V of half of 400 tokens.
  members_->TakeStatus(
      "c0", 0,
      {.recomputed_tokens = 1000, .unit_seconds_slope = 25e-6, .parts = {{"recompute", 1e-3}}});
  members_->Links("c0", 1, {{.peer = "m0", .bytes_per_second = 128e6}});
  members_->WatchLoad(false, nullptr);
  members_->Advance();
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_EQ(owner_.begun[1].activation_share, 11 * 64u);
  Serve();
  members_->Links("c0", 2, {{.peer = "m0", .bytes_per_second = 128e6}});
  members_->WatchLoad(false, nullptr);
  const auto run = [&](ClusterMembers::Load load) {
    for (int i = 0; i < 100; ++i) {
      clock_.now += Millis(10);
      members_->WatchLoad(true, [&] { return load; });
    }
  };
  run({.rows = 4, .prefilling = 4, .lanes = 1, .context_tokens = 400});
  members_->WatchLoad(false, nullptr);
  EXPECT_TRUE(members_->serving()) << "none of the rows decoded";
  run({.rows = 4, .lanes = 1, .context_tokens = 400});
  EXPECT_TRUE(members_->serving()) << "something runs";
  members_->WatchLoad(false, nullptr);
  members_->Advance();
  ASSERT_THAT(owner_.begun, SizeIs(3));
  EXPECT_EQ(owner_.begun[2].activation_share, 5 * 64u);
  EXPECT_THAT(members_->epoch()->fetch_why, HasSubstr("200 us in a step of 400 tokens"));
}

TEST_F(ClusterMembersTest, APartThatNeverSaysWhatItHasMeasuredIsLeftOut) {
  EngineOptions options = InStagesUnderAuto();
  options.node_silence_max = 0;
  options.stuck_after = Seconds(30);
  SetOptions(options);
  for (const char* name : {"m0", "c0", "c1"}) {
    Join(name);
  }
  members_->Loaded("c0", Measured(0.5));
  for (int i = 0; i < 310 && members_->nodes().Find("c1") != nullptr; ++i) {
    clock_.now += Seconds(1);
    members_->BeginTurn();
    members_->TakeStatus("c1", 0, {.activity = ThreadActivity::kLoading, .beats = 7});
    members_->DropLostNodes();
    members_->Advance();
  }
  EXPECT_EQ(members_->nodes().Find("c1"), nullptr);
  EXPECT_THAT(ports_["c1"]->left, ElementsAre(HasSubstr("has not moved")));
  EXPECT_EQ(members_->nodes().DescribeJoining(), "");
  EXPECT_THAT(members_->membership().Describe(), HasSubstr("waiting for c1"));
}

TEST_F(ClusterMembersTest, LinksAndWindowsAreThoseOfTheEpoch) {
  SetOptions(Options());
  ServeAll();
  members_->Links("c0", 1, {{.peer = "m0", .path = "memory"}});
  EXPECT_THAT(members_->nodes().at("c0").links, SizeIs(1));
  members_->Links("c0", 0, {});
  EXPECT_THAT(members_->nodes().at("c0").links, SizeIs(1)) << "of another epoch";
  Leave("m1");
  EXPECT_THAT(members_->nodes().at("c0").links, IsEmpty());
}

// m1 has no part in what is measured of an epoch without it.
TEST_F(ClusterMembersTest, CostsAreWhatTheMembersHaveMeasured) {
  SetOptions(Options());
  ServeAll();
  const auto links = [this] {
    return CostsOfLinks(*members_->epoch(), MeasuredNodesOf(*members_));
  };
  EXPECT_FALSE(links().measured);
  members_->Links("c0", 1,
                  {{.peer = "m0", .latency_seconds = 1e-6, .bytes_per_second = 2e9},
                   {.peer = "m1", .latency_seconds = 5e-6, .bytes_per_second = 1e9},
                   {.peer = "c9", .latency_seconds = 9e-6, .bytes_per_second = 1}});
  EXPECT_TRUE(links().measured);
  EXPECT_EQ(links().kv_heads, 2u);
  EXPECT_DOUBLE_EQ(links().seconds_per_message, 5e-6);
  // q, k, v and the output of two heads of 16 elements in bf16, at the slowest link.
  EXPECT_DOUBLE_EQ(links().seconds_per_row, 4 * 2 * 16 * 2 / 1e9);

  const auto lanes = [this] {
    return CostsOfLanes(*members_->epoch(), members_->splits(), MeasuredNodesOf(*members_));
  };
  EXPECT_FALSE(lanes().measured);
  for (const char* name : {"c0", "m0", "m1"}) {
    members_->TakeStatus(name, 0, {.unit_seconds_fixed = 1e-3, .unit_seconds_slope = 1e-6});
  }
  EXPECT_TRUE(lanes().measured);
  EXPECT_DOUBLE_EQ(lanes().slice_fixed, 1e-3);
  EXPECT_EQ(lanes().replicas, 1u);
}

}  // namespace
}  // namespace lamina::coordinator
