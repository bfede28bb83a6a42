// SPDX-License-Identifier: Apache-2.0
#include "coordinator/member_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "coordinator/member_trial.h"
#include "plan/attention_paths.h"
#include "tests/unit/coordinator/small_limits.h"
#include "tests/unit/coordinator/stub_port.h"

namespace lamina::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two layers of two KV heads: 256 bytes a token, of which a request has 64.
constexpr uint64_t kRoomOfARequest = 256 * 64;

class NotingOwner final : public EpochOwner {
 public:
  void BeginEpoch(const FormedEpoch& epoch, const std::vector<std::string>& lost) override {
    begun.push_back(epoch.config());
    losses.push_back(lost);
  }
  void EpochServes(const FormedEpoch&) override {}
  void StopServing(const absl::Status& status) override { stopped.push_back(status); }

  std::vector<plan::EpochConfig> begun;
  std::vector<std::vector<std::string>> losses;
  std::vector<absl::Status> stopped;
};

EngineOptions Options() {
  return {.nodes = {{.name = "c0"},
                    {.name = "m0", .is_memory = true},
                    {.name = "m1", .is_memory = true}},
          .layers = {{.query_heads = 2, .kv_heads = 2, .head_dim = 16},
                     {.query_heads = 2, .kv_heads = 2, .head_dim = 16}},
          .model_fingerprint = "model",
          .scheduler = SmallLimits()};
}

class MemberChangesTest : public ::testing::Test {
 protected:
  void SetOptions(const EngineOptions& options) {
    options_ = options;
    members_.emplace(options_, RealClock(), owner_);
    changes_.emplace(options_, *members_);
  }

  static NodeHello HelloOf(const std::string& name, uint64_t capacity, const std::string& device) {
    const bool is_memory = name[0] == 'm';
    return {.identity = {.name = name,
                         .is_memory = is_memory,
                         .device = device,
                         .capacity_bytes = is_memory ? capacity : 0,
                         .bandwidth_bytes_per_second = 1e9,
                         .model_fingerprint = is_memory ? "" : "model"},
            .version = std::string(kVersion)};
  }
  // Lets a node in as the engine does: asks the changes first, and tells them of it.
  absl::Status Join(const std::string& name, uint64_t capacity = uint64_t{1} << 20,
                    const std::string& device = "cpu") {
    const NodeHello hello = HelloOf(name, capacity, device);
    const absl::Status may = changes_->CheckJoin(hello);
    if (may.ok()) {
      ports_[name] = std::make_shared<StubPort>();
      members_->Joined(hello, ports_[name]);
      members_->Advance();
    }
    return may;
  }
  void Serve() {
    for (const core::Member& member : options_.nodes) {
      ASSERT_TRUE(Join(member.name).ok());
    }
    Settle();
  }
  void Settle() {
    const uint64_t epoch = members_->membership().epoch();
    for (const auto& [name, port] : ports_) {
      if (members_->nodes().Find(name) != nullptr) {
        members_->Prepared(name, epoch, {.region = "of " + name});
      }
    }
    members_->Advance();
    for (const auto& [name, port] : ports_) {
      if (members_->nodes().Find(name) != nullptr) {
        members_->Ready(name, epoch);
      }
    }
    members_->Advance();
    ASSERT_TRUE(members_->serving());
  }
  absl::Status Add(const std::string& name) {
    const absl::Status status = changes_->Add(name).status();
    members_->Advance();
    return status;
  }
  absl::Status Drain(const std::string& name) {
    const absl::Status status = changes_->Drain(name).status();
    members_->Advance();
    return status;
  }

  EngineOptions options_;
  NotingOwner owner_;
  std::map<std::string, std::shared_ptr<StubPort>> ports_;
  std::optional<ClusterMembers> members_;
  std::optional<MemberChanges> changes_;
};

TEST_F(MemberChangesTest, ANodeThatIsAddedJoinsAtTheNextEpoch) {
  SetOptions(Options());
  Serve();
  EXPECT_THAT(changes_->Warnings(), IsEmpty());
  EXPECT_TRUE(Add("m2").ok());
  EXPECT_TRUE(Add("m2").ok());  // Again.
  EXPECT_THAT(owner_.begun, SizeIs(1));
  ASSERT_TRUE(Join("m2").ok());
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_THAT(owner_.begun[1].memory_nodes, ElementsAre("m0", "m1", "m2"));
  EXPECT_THAT(owner_.losses[1], IsEmpty());
  EXPECT_THAT(changes_->Warnings(), ElementsAre(HasSubstr("m2 is not in the cluster file")));
}

TEST_F(MemberChangesTest, ANodeThatIsDrainedEndsAndCostsNoRequestALoss) {
  SetOptions(Options());
  Serve();
  EXPECT_TRUE(Drain("m0").ok());
  EXPECT_EQ(ports_["m0"]->dismissed, 1);
  EXPECT_EQ(members_->nodes().Find("m0"), nullptr);
  ASSERT_THAT(owner_.begun, SizeIs(2));
  EXPECT_THAT(owner_.begun[1].memory_nodes, ElementsAre("m1"));
  EXPECT_THAT(owner_.losses[1], IsEmpty());
  EXPECT_THAT(owner_.stopped, IsEmpty());
  Settle();
  EXPECT_EQ(members_->membership().Describe(), "serving");

  EXPECT_TRUE(Drain("m0").ok());  // Again.
  EXPECT_THAT(owner_.begun, SizeIs(2));
  EXPECT_THAT(changes_->Warnings(), ElementsAre(HasSubstr("still in the cluster file")));
  EXPECT_THAT(std::string(Join("m0").message()), HasSubstr("lamina node add m0"));
}

TEST_F(MemberChangesTest, ADrainedNodeMayBeAddedAgain) {
  SetOptions(Options());
  Serve();
  ASSERT_TRUE(Drain("m0").ok());
  Settle();
  ASSERT_TRUE(Add("m0").ok());
  EXPECT_THAT(changes_->Warnings(), IsEmpty());
  ASSERT_TRUE(Join("m0").ok());
  EXPECT_THAT(owner_.begun.back().memory_nodes, ElementsAre("m1", "m0"));
}

TEST_F(MemberChangesTest, TheLastMemoryNodeIsNotDrained) {
  SetOptions(Options());
  Serve();
  ASSERT_TRUE(Drain("m0").ok());
  Settle();
  const absl::Status refused = Drain("m1");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("m1 is the last memory node"));
  EXPECT_TRUE(members_->serving());
}

TEST_F(MemberChangesTest, NorTheOnlyOneThatIsThere) {
  SetOptions(Options());
  Serve();
  members_->Left({.name = "m1", .port = ports_["m1"].get()});
  members_->Advance();
  Settle();
  const absl::Status refused = Drain("m0");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("m0 is the only memory node that is there (m1 not)"));
  // The one that is gone may be forgotten.
  EXPECT_TRUE(Drain("m1").ok());
  EXPECT_EQ(members_->membership().Describe(), "serving");
}

TEST_F(MemberChangesTest, UnknownNodesAndComputeNodesAreNotDrained) {
  SetOptions(Options());
  Serve();
  const absl::Status unknown = Drain("m7");
  EXPECT_TRUE(absl::IsNotFound(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("no memory node m7; there are m0, m1"));
  const absl::Status compute = Drain("c0");
  EXPECT_TRUE(absl::IsInvalidArgument(compute));
  EXPECT_THAT(std::string(compute.message()),
              AllOf(HasSubstr("c0 is a compute node"), HasSubstr("SIGTERM")));
}

TEST_F(MemberChangesTest, NamesThatCannotBeAreNotAdded) {
  SetOptions(Options());
  Serve();
  EXPECT_TRUE(absl::IsAlreadyExists(Add("c0")));
  for (const std::string name : {"", "-m", "a b", "gateway"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Add(name))) << name;
  }
}

TEST_F(MemberChangesTest, PoliciesThatKnowTheNodesOfTheFileTakeNoOthers) {
  EngineOptions options = Options();
  options.policy_auto.emplace();
  SetOptions(options);
  EXPECT_THAT(std::string(Add("m2").message()), HasSubstr("policy auto"));
  options = Options();
  options.nodes = {{.name = "c0", .holds_kv = true}};
  SetOptions(options);
  EXPECT_THAT(std::string(Add("m2").message()), HasSubstr("policy local"));
}

TEST_F(MemberChangesTest, ThereAreNoMoreNodesThanKvHeads) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  SetOptions(options);
  Serve();
  const absl::Status refused = Add("m2");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 memory nodes, but the model has 2"));
  ASSERT_TRUE(Drain("m0").ok());  // One node has room for both heads.
  Settle();
  EXPECT_TRUE(Add("m2").ok());
}

TEST_F(MemberChangesTest, WhatDoesNotFitTheOthersIsNotDrained) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  SetOptions(options);
  ASSERT_TRUE(Join("c0").ok());
  ASSERT_TRUE(Join("m0", kRoomOfARequest / 2).ok());
  ASSERT_TRUE(Join("m1", kRoomOfARequest / 2).ok());
  Settle();
  const absl::Status refused = Drain("m0");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("could not serve without m0"));
  EXPECT_TRUE(members_->serving());
}

TEST_F(MemberChangesTest, AnAddedNodeIsRefusedWhereTheClusterCouldNotServeWithIt) {
  EngineOptions options = Options();
  options.partition = Partition::kHead;
  options.layers[0].kv_heads = options.layers[1].kv_heads = 4;
  options.layers[0].query_heads = options.layers[1].query_heads = 4;
  SetOptions(options);
  Serve();
  ASSERT_TRUE(Add("m2").ok());
  const absl::Status refused = Join("m2", /*capacity=*/1024);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("could not serve with memory node m2"));
  EXPECT_TRUE(members_->serving());
  EXPECT_TRUE(Join("m2").ok());
}

// Requests name attend_remote or fetch_heads. A window needs room for one KV head of the longest
// request: 64 tokens of 64 bytes.
EngineOptions OptionsThatFetch(uint64_t window_bytes) {
  EngineOptions options = Options();
  options.policies = {{.name = "attend_remote", .path = plan::AttentionPath::kRemote},
                      {.name = "fetch_heads", .path = plan::AttentionPath::kFetch}};
  options.fetch.bytes = window_bytes;
  return options;
}

TEST_F(MemberChangesTest, NodesComeAndGoWhereOneOfSeveralPoliciesFetches) {
  SetOptions(OptionsThatFetch(/*window_bytes=*/12 << 16));
  Serve();
  const MemberTrial trial(options_, *members_);
  EXPECT_TRUE(trial.CanServeWithout({"m1"}));
  const absl::Status added = Add("m2");
  ASSERT_TRUE(added.ok()) << added;
  ASSERT_TRUE(Join("m2").ok());
  Settle();
  EXPECT_THAT(owner_.begun.back().memory_nodes, ElementsAre("m0", "m1", "m2"));
  const absl::Status drained = Drain("m0");
  ASSERT_TRUE(drained.ok()) << drained;
  Settle();
  EXPECT_THAT(owner_.begun.back().memory_nodes, ElementsAre("m1", "m2"));
  EXPECT_EQ(owner_.begun.back().fetch_bytes, uint64_t{12} << 16);
  EXPECT_THAT(owner_.stopped, IsEmpty());
}

// Two windows for each memory node: two nodes leave 5 KiB for each, three 3.3 KiB.
TEST_F(MemberChangesTest, ANodeWithWhichWindowsNoLongerHoldARequestIsNotAdded) {
  EngineOptions options = OptionsThatFetch(/*window_bytes=*/20 << 10);
  options.policies.erase(options.policies.begin());
  SetOptions(options);
  Serve();
  const absl::Status refused = Add("m2");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("could not serve with"), HasSubstr("fetch.window: 20")));
  EXPECT_TRUE(members_->serving());
  EXPECT_THAT(owner_.stopped, IsEmpty());
}

TEST_F(MemberChangesTest, AnAddedNodeIsOnAProcessorWherePromptsAreRows) {
  EngineOptions options = Options();
  options.scheduler.prompt_rows_max = 8;
  SetOptions(options);
  Serve();
  ASSERT_TRUE(Add("m2").ok());
  EXPECT_THAT(std::string(Join("m2", uint64_t{1} << 20, "cuda:0").message()),
              HasSubstr("m2 holds K and V on cuda:0"));
}

// With token_range there are no rows for prompts alone, and what is found leaves some.
TEST_F(MemberChangesTest, AnAddedNodeIsOnAProcessorWhereFoundPrefixesLeaveRows) {
  EngineOptions options = Options();
  options.scheduler.prompt_rows_max = 0;
  options.scheduler.prefix_cache = true;
  SetOptions(options);
  Serve();
  ASSERT_TRUE(Add("m2").ok());
  EXPECT_THAT(std::string(Join("m2", uint64_t{1} << 20, "cuda:0").message()),
              HasSubstr("m2 holds K and V on cuda:0"));
}

// So does what comes back from a spill tier.
TEST_F(MemberChangesTest, AnAddedNodeIsOnAProcessorWhereSequencesComeBackFromATier) {
  EngineOptions options = Options();
  options.scheduler.prompt_rows_max = 0;
  options.spills = true;
  SetOptions(options);
  Serve();
  ASSERT_TRUE(Add("m2").ok());
  EXPECT_THAT(std::string(Join("m2", uint64_t{1} << 20, "cuda:0").message()),
              HasSubstr("m2 holds K and V on cuda:0"));
}

TEST_F(MemberChangesTest, BeforeTheFirstEpochAnAddedNodeIsWaitedForAndADrainedOneIsNot) {
  SetOptions(Options());
  ASSERT_TRUE(Join("c0").ok());
  ASSERT_TRUE(Join("m0").ok());
  ASSERT_TRUE(Add("m2").ok());
  EXPECT_EQ(members_->membership().Describe(), "waiting for m1, m2");
  ASSERT_TRUE(Drain("m1").ok());
  EXPECT_THAT(owner_.begun, IsEmpty());
  ASSERT_TRUE(Join("m2").ok());
  ASSERT_THAT(owner_.begun, SizeIs(1));
  EXPECT_THAT(owner_.begun[0].memory_nodes, ElementsAre("m0", "m2"));
}

}  // namespace
}  // namespace lamina::coordinator
