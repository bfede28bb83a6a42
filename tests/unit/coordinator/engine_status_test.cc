// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "coordinator/node_costs.h"
#include "tests/unit/coordinator/small_limits.h"
#include "tests/unit/coordinator/stub_port.h"

namespace lamina::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EngineOptions Options() {
  return {.nodes = {{.name = "c0"},
                    {.name = "m0", .is_memory = true},
                    {.name = "m1", .is_memory = true}},
          .layers = {{.query_heads = 2, .kv_heads = 2, .head_dim = 16}},
          .scheduler = SmallLimits()};
}

// What an engine of these options has, its nodes attached.
class StatusBuilderTest : public ::testing::Test {
 protected:
  void SetOptions(const EngineOptions& options) {
    options_ = options;
    membership_.emplace(options_.nodes);
    transport_.emplace(options_.transports);
    nodes_.emplace(AttachedNodes::Limits{}, 0);
    splits_.emplace(options_);
    scheduler_.emplace(options_.scheduler, core::MakeFirstComeFirstServed());
    for (const core::Member& member : options_.nodes) {
      nodes_->Add({.hello = {.identity = {.name = member.name, .is_memory = member.is_memory}},
                   .port = std::make_shared<StubPort>(),
                   .slots = 100});
      ASSERT_TRUE(membership_->Join(member.name, member.is_memory).ok());
    }
  }

  void BeginEpoch() {
    ASSERT_EQ(membership_->Next(), core::MembershipAction::kConfigure);
    EpochMembers members{.epoch = membership_->epoch(), .transport = transport_->uri()};
    for (const core::Member* member : membership_->compute_members()) {
      members.compute.push_back({.name = member->name});
    }
    members.local = membership_->local();
    members.prefill_nodes = membership_->prefill_members();
    for (const core::Member* member : membership_->kv_members()) {
      members.kv.push_back({.name = member->name, .slots = 100, .capacity_bytes = 12800});
      members.bandwidth.bytes_per_second.push_back(1e9);
    }
    auto formed = EpochForming(options_).Form(members);
    ASSERT_TRUE(formed.ok()) << formed.status();
    epoch_ = *std::move(formed);
    core::Events events;
    scheduler_->StartEpoch(membership_->epoch(), epoch_->shares, {}, events);
  }

  void Serve() {
    for (const core::Member& member : options_.nodes) {
      membership_->Prepared(member.name, membership_->epoch(), "region");
    }
    ASSERT_EQ(membership_->Next(), core::MembershipAction::kConnect);
    for (const core::Member& member : options_.nodes) {
      membership_->Ready(member.name, membership_->epoch());
    }
    ASSERT_EQ(membership_->Next(), core::MembershipAction::kServe);
  }

  StatusSources Sources() const {
    return {.membership = *membership_,
            .transport = *transport_,
            .nodes = *nodes_,
            .splits = *splits_,
            .scheduler = *scheduler_,
            .epoch = epoch_.has_value() ? &*epoch_ : nullptr};
  }
  EngineStatus Build(const StatusSources& sources) const {
    return StatusBuilder(options_).Build(sources);
  }
  EngineStatus Build() const { return Build(Sources()); }

  EngineOptions options_;
  std::optional<core::Membership> membership_;
  std::optional<core::TransportChoice> transport_;
  std::optional<AttachedNodes> nodes_;
  std::optional<ReplicaSplits> splits_;
  std::optional<core::Scheduler> scheduler_;
  std::optional<FormedEpoch> epoch_;
};

TEST_F(StatusBuilderTest, BeforeTheFirstEpochThereAreNodesAndNoSlots) {
  SetOptions(Options());
  const EngineStatus status = Build();
  EXPECT_EQ(status.epoch, 0u);
  EXPECT_EQ(status.transport, "shm");
  EXPECT_EQ(status.policy, "attend_remote");
  EXPECT_EQ(status.partition, "");
  ASSERT_EQ(status.nodes.size(), 3u);
  EXPECT_EQ(status.nodes[1].kv.slots_total, 0u);
  EXPECT_THAT(status.warnings, IsEmpty());
}

TEST_F(StatusBuilderTest, AnEpochHasAPartitionAndSlots) {
  SetOptions(Options());
  BeginEpoch();
  Serve();
  StatusSources sources = Sources();
  sources.shares_by = "by attention of late m0 50%, m1 50%";
  const EngineStatus status = Build(sources);
  EXPECT_EQ(status.epoch, 1u);
  EXPECT_EQ(status.state, "serving");
  EXPECT_EQ(status.partition, "request; by attention of late m0 50%, m1 50%");
  EXPECT_EQ(status.prefill, "inline");
  EXPECT_EQ(status.nodes[0].kv.slots_total, 0u) << "a compute node";
  EXPECT_EQ(status.nodes[2].kv.slots_total, 100u);
}

TEST_F(StatusBuilderTest, WithHeadsSpreadAllMemoryNodesHaveTheSameSlots) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  SetOptions(options);
  BeginEpoch();
  const EngineStatus status = Build();
  EXPECT_EQ(status.nodes[1].kv.slots_total, 200u) << "half the heads of twice as many tokens";
  EXPECT_EQ(status.nodes[2].kv.slots_total, 200u);
}

TEST_F(StatusBuilderTest, TellsWhatNodesSayOfThemselves) {
  SetOptions(Options());
  nodes_->TakeStatus("m1", 0.25, {.units = 9});
  nodes_->at("c0").links = {{.peer = "m1", .path = "memory"}};
  nodes_->at("m1").windows = "host memory";
  nodes_->Remove("m0");
  const EngineStatus status = Build();
  EXPECT_EQ(status.nodes[2].busy_share, 0.25);
  EXPECT_EQ(status.nodes[2].counters.units, 9u);
  EXPECT_EQ(status.nodes[2].windows, "host memory");
  EXPECT_EQ(status.nodes[1].hello.identity.name, "") << "not attached";
  ASSERT_EQ(status.links.size(), 1u);
  EXPECT_EQ(status.links[0].from, "c0");
  EXPECT_EQ(status.links[0].report.peer, "m1");
}

TEST_F(StatusBuilderTest, DrainingGoesBeforeWhatTheMembersDo) {
  SetOptions(Options());
  StatusSources sources = Sources();
  sources.draining = true;
  EXPECT_EQ(Build(sources).state, "draining");
}

TEST_F(StatusBuilderTest, PolicyAutoTellsNothingUntilItHasChosen) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  SetOptions(options);
  EXPECT_EQ(Build().policy, "");
  StatusSources sources = Sources();
  sources.policy_choice =
      core::PolicyChoice{.policy = cost::KvPolicy::kAttendRemote, .why = "faster"};
  const EngineStatus status = Build(sources);
  EXPECT_EQ(status.policy, "attend_remote");
  EXPECT_EQ(status.policy_choice, "faster");
  EXPECT_TRUE(status.policy_figures.has_value());
}

TEST_F(StatusBuilderTest, UnderPolicyLocalRowsLeaveForNowhere) {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0", .holds_kv = true}};
  SetOptions(options);
  membership_->KeepKvOnCompute(true);
  BeginEpoch();
  const EngineStatus status = Build();
  EXPECT_EQ(status.policy, "local");
  EXPECT_EQ(status.scheduler.sub_batches.why, "");
  EXPECT_EQ(status.nodes[0].kv.slots_total, 100u);
}

// K and V of a token are 128 bytes of the one layer.
TEST_F(StatusBuilderTest, AttentionOfComputeNodesIsInProportionToWhatTheyRead) {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0", .holds_kv = true}};
  SetOptions(options);
  membership_->KeepKvOnCompute(true);
  BeginEpoch();
  AttachedNode one;
  AttachedNode other;
  const std::vector<const AttachedNode*> nodes = {&one, &other};
  EXPECT_EQ(MeanAttention(*epoch_, *splits_, nodes).slope, 0);

  one.counters.kv_bytes_read = 100 * 128;
  one.counters.parts = {{"dense", 9.0}, {"attend", 2.0}};
  other.counters.kv_bytes_read = 300 * 128;
  other.counters.parts = {{"attend", 6.0}};

  const cost::UnitTimes attention = MeanAttention(*epoch_, *splits_, nodes);
  EXPECT_EQ(attention.fixed, 0);
  EXPECT_DOUBLE_EQ(attention.slope, 0.02);
}

TEST_F(StatusBuilderTest, LinksThatWereMeasuredAtABadMomentAreOddAndNotBelieved) {
  SetOptions(Options());
  BeginEpoch();
  Serve();
  nodes_->at("c0").links = {
      {.peer = "m0", .path = "shm", .latency_seconds = 692e-6, .bytes_per_second = 1e9},
      {.peer = "m1", .path = "shm", .latency_seconds = 4e-6, .bytes_per_second = 2e9}};
  const MeasuredNodes measured = {.compute = {&nodes_->at("c0")}, .memory = {&nodes_->at("m0")}};
  EXPECT_DOUBLE_EQ(CostsOfLinks(*epoch_, measured).seconds_per_message, 692e-6);
  const double row_seconds = CostsOfLinks(*epoch_, measured).seconds_per_row;
  EXPECT_THAT(Build().links[0].odd, HasSubstr("far from its kind"));

  nodes_->at("c0").counters.links = {
      {.peer = "m1"}, {.peer = "m0", .exchange_seconds = 40e-6, .exchange_bytes_per_second = 2e9}};

  EXPECT_DOUBLE_EQ(CostsOfLinks(*epoch_, measured).seconds_per_message, 20e-6);
  EXPECT_DOUBLE_EQ(CostsOfLinks(*epoch_, measured).seconds_per_row, row_seconds / 2);
  const EngineStatus status = Build();
  EXPECT_EQ(status.links[0].report.latency_seconds, 692e-6) << "as measured";
  EXPECT_EQ(status.links[0].exchange_seconds, 40e-6);
  EXPECT_THAT(status.links[0].odd, HasSubstr("a bad moment"));
  EXPECT_EQ(status.links[1].odd, "");
}

TEST(FetchFitsTest, TheWorstLinkAndWhatTheComputeNodeMakesAreTold) {
  AttachedNode node;
  MeasuredNodes nodes;
  EXPECT_EQ(DescribeFits(FetchFitsOf(nodes)), "");
  nodes.compute = {&node};
  EXPECT_EQ(DescribeFits(FetchFitsOf(nodes)), "") << "nothing is fitted yet";
  node.links = {
      {.peer = "m0", .r_squared = 0.9996}, {.peer = "m1", .r_squared = 0.98}, {.peer = "m2"}};
  EXPECT_EQ(DescribeFits(FetchFitsOf(nodes)), "; lines fitted with R squared 0.980 (links)");
  node.counters.making = {1e-6, 2e-9, 27.0 / 28};
  const FetchFits fits = FetchFitsOf(nodes);
  EXPECT_EQ(fits.making, node.counters.making);
  EXPECT_EQ(DescribeFits(fits),
            "; lines fitted with R squared 0.980 (links) and 0.964 (making K and V)");
  node.links.clear();
  EXPECT_EQ(DescribeFits(FetchFitsOf(nodes)),
            "; lines fitted with R squared 0.964 (making K and V)");
}

TEST_F(StatusBuilderTest, SpeedsThatUseHasNotBorneOutAreToldAfterAThousandSlices) {
  EngineOptions options = Options();
  options.nodes = {{.name = "c0", .replica = "r"},
                   {.name = "c1", .replica = "r"},
                   {.name = "m0", .is_memory = true}};
  options.replicas = {{.name = "r", .nodes = {"c0", "c1"}}};
  options.slice_costs = {1, 1, 1, 1, 1};
  SetOptions(options);
  ASSERT_TRUE(splits_->Split({{"c0", 1.0}, {"c1", 3.0}}).ok());
  for (const char* name : {"c0", "c1"}) {
    nodes_->at(name).counters.unit_seconds_fixed = 1e-3;
    nodes_->at(name).counters.units = 999;
  }
  EXPECT_EQ(Build().stages_odd, "");
  for (const char* name : {"c0", "c1"}) {
    nodes_->at(name).counters.units = 1000;
  }
  EXPECT_THAT(Build().stages_odd,
              HasSubstr("c0 was taken for 0.50 of the mean speed and has 1.00"));
}

TEST_F(StatusBuilderTest, WarnsOfATransportThatWasPassedOver) {
  EngineOptions options = Options();
  options.transports = {"ucx://", "shm://"};
  SetOptions(options);
  ASSERT_TRUE(transport_->PassOver("c0", "no device"));
  EXPECT_THAT(Build().warnings, Contains(HasSubstr("no device")));
  EXPECT_EQ(Build().transport, "shm");
}

TEST_F(StatusBuilderTest, WarnsThatPromptsRunInlineForWantOfANode) {
  EngineOptions options = Options();
  options.nodes.insert(options.nodes.begin() + 1, {.name = "p0", .prefill = true});
  SetOptions(options);
  BeginEpoch();
  Serve();
  EXPECT_EQ(Build().prefill, "dedicated: p0");
  EXPECT_THAT(Build().warnings, IsEmpty());
  membership_->Leave("p0");
  ASSERT_EQ(membership_->Next(), core::MembershipAction::kConfigure);
  EXPECT_THAT(Build().warnings, IsEmpty()) << "not while it forms";
  Serve();
  EXPECT_THAT(Build().warnings,
              ElementsAre("prefill.mode dedicated runs inline, for no prefill node is there"));
}

TEST_F(StatusBuilderTest, WarnsThatBitsMayDifferWherePromptsAndDecodeAttendOtherwise) {
  EngineOptions options = Options();
  options.attention.prefill = AttentionArithmetic::kTensor;
  SetOptions(options);
  EXPECT_THAT(Build().warnings,
              ElementsAre(HasSubstr("prompts attend on tensor cores, decode does not")));
}

TEST_F(StatusBuilderTest, WarnsThatBitsMayDifferWhereDecodeAloneAttendsInPairs) {
  EngineOptions options = Options();
  options.attention = {.decode = AttentionArithmetic::kPairs,
                       .prefill = AttentionArithmetic::kAuto};
  SetOptions(options);
  EXPECT_THAT(Build().warnings,
              ElementsAre(HasSubstr("decode attends in pairs of bf16, prompts do not")));
  options.attention.decode = AttentionArithmetic::kAuto;
  SetOptions(options);
  EXPECT_THAT(Build().warnings, IsEmpty());
}

TEST_F(StatusBuilderTest, WarnsThatBitsMayDifferWherePromptsRunInOtherShards) {
  EngineOptions options = Options();
  options.nodes.insert(options.nodes.begin() + 1,
                       {{.name = "p0", .prefill = true, .replica = "q"},
                        {.name = "p1", .prefill = true, .replica = "q"}});
  options.replicas = {{.name = "q", .nodes = {"p0", "p1"}, .shards = 2}};
  options.slice_costs = {1, 1};
  options.shard_costs = {.heads = 2, .columns = 64, .head = 1, .column = 1};
  SetOptions(options);
  ASSERT_TRUE(splits_->Split({{"p0", 0.0}, {"p1", 0.0}}).ok());
  BeginEpoch();
  EXPECT_THAT(Build().warnings, Contains(HasSubstr("prompts run in 2 shards (p0), decode in 1")));
  EXPECT_THAT(Build().nodes[2].layers, HasSubstr("KV heads 1-1"));
}

}  // namespace
}  // namespace lamina::coordinator
