// SPDX-License-Identifier: Apache-2.0
//
// Nodes come and go, and peers write what they should not: a request ends with its tokens or with
// an error, never with wrong text.

#include <thread>

#include "common/version.h"
#include "plan/window_layout.h"
#include "tests/integration/cluster_test_util.h"
#include "transport/registry.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MembershipTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  LocalClusterOptions Options() const {
    return {.model = SmallModel(), .memory_nodes = 2, .lanes = GetParam(), .chunk_tokens = 32};
  }

  void SetUp() override {
    cluster_ = MakeCluster(Options());
    ASSERT_NE(cluster_, nullptr);
  }

  std::vector<std::shared_ptr<LocalRequest>> StartAll(const std::vector<GenerateSpec>& specs) {
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs) {
      requests.push_back(cluster_->Start(spec));
    }
    return requests;
  }

  // Waits for all; every one ends as `undisturbed` or UNAVAILABLE. Returns how many ended well.
  static size_t ExpectRightOrUnavailable(const std::vector<std::shared_ptr<LocalRequest>>& requests,
                                         const std::vector<GenerateResult>& undisturbed) {
    size_t well = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const GenerateResult result = requests[i]->Wait();
      if (result.status.ok()) {
        ++well;
        ExpectSameChoice(result.choices[0], undisturbed[i].choices[0]);
        continue;
      }
      EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
      // What was shown before the end was right.
      const std::vector<TokenId>& shown = result.choices[0].tokens;
      const std::vector<TokenId>& all = undisturbed[i].choices[0].tokens;
      EXPECT_EQ(shown, std::vector<TokenId>(
                           all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown.size())));
    }
    return well;
  }

  std::unique_ptr<LocalCluster> cluster_;
};

TEST_P(MembershipTest, RequestsOfAMemoryNodeThatLeavesGoOnElsewhere) {
  const std::vector<GenerateSpec> specs = LongRequests(10);
  const std::vector<GenerateResult> undisturbed = cluster_->GenerateMany(specs);
  const std::vector<std::shared_ptr<LocalRequest>> requests = StartAll(specs);
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    request->WaitForTokens(2);
  }

  cluster_->Detach("m0");

  EXPECT_EQ(ExpectRightOrUnavailable(requests, undisturbed), requests.size());
  ASSERT_TRUE(cluster_->WaitForState("serving; without m0").ok());
  ExpectSame(cluster_->GenerateMany(specs), undisturbed);  // By the one that is left.

  cluster_->Attach("m0");
  ASSERT_TRUE(cluster_->WaitForState("serving").ok());
  const uint64_t units = cluster_->handler("m0").Counters().units;
  ExpectSame(cluster_->GenerateMany(specs), undisturbed);
  EXPECT_GT(cluster_->handler("m0").Counters().units, units);
  EXPECT_TRUE(cluster_->WaitForNoSlots().ok());
}

// An epoch with one node more: nobody loses anything.
TEST_P(MembershipTest, RequestsGoOnWhenANodeJoins) {
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> undisturbed = cluster_->GenerateMany(specs);
  cluster_->Detach("m1");
  ASSERT_TRUE(cluster_->WaitForState("serving; without m1").ok());
  const std::vector<std::shared_ptr<LocalRequest>> requests = StartAll(specs);
  for (const std::shared_ptr<LocalRequest>& request : requests) {
    request->WaitForTokens(2);
  }

  cluster_->Attach("m1");

  EXPECT_EQ(ExpectRightOrUnavailable(requests, undisturbed), requests.size());
}

TEST_P(MembershipTest, AllRequestsEndWhenTheComputeNodeLeaves) {
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> undisturbed = cluster_->GenerateMany(specs);
  const std::vector<std::shared_ptr<LocalRequest>> requests = StartAll(specs);
  requests[0]->WaitForTokens(2);

  cluster_->Detach("c0");

  EXPECT_EQ(ExpectRightOrUnavailable(requests, undisturbed), 0u);
  const GenerateResult refused = cluster_->Generate(specs[0]);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("waiting for c0"));
  cluster_->Attach("c0");
  ASSERT_TRUE(cluster_->WaitForState("serving").ok());
  ExpectSame(cluster_->GenerateMany(specs), undisturbed);
}

TEST_P(MembershipTest, AllRequestsEndWhenTheLastMemoryNodeLeaves) {
  const std::vector<GenerateSpec> specs = LongRequests(6);
  const std::vector<GenerateResult> undisturbed = cluster_->GenerateMany(specs);
  const std::vector<std::shared_ptr<LocalRequest>> requests = StartAll(specs);
  requests[0]->WaitForTokens(2);

  cluster_->Detach("m0");
  cluster_->Detach("m1");

  EXPECT_LT(ExpectRightOrUnavailable(requests, undisturbed), requests.size());
  EXPECT_EQ(cluster_->Generate(specs[0]).status.code(), absl::StatusCode::kUnavailable);
  cluster_->Attach("m1");
  ASSERT_TRUE(cluster_->WaitForState("serving; without m0").ok());
  ExpectSame(cluster_->GenerateMany(specs), undisturbed);
}

TEST_P(MembershipTest, NodesComeAndGoManyTimes) {
  const std::vector<GenerateSpec> specs = LongRequests(8);
  const std::vector<GenerateResult> undisturbed = cluster_->GenerateMany(specs);
  Prng random(GetParam());
  for (int round = 0; round < 12; ++round) {
    const std::vector<std::shared_ptr<LocalRequest>> requests = StartAll(specs);
    requests[random.Below(requests.size())]->WaitForTokens(random.Below(20));
    const std::string node = random.Chance(0.2) ? "c0" : random.Chance(0.5) ? "m0" : "m1";
    cluster_->Detach(node);
    requests[random.Below(requests.size())]->WaitForTokens(random.Below(40));
    cluster_->Attach(node);
    const size_t well = ExpectRightOrUnavailable(requests, undisturbed);
    EXPECT_TRUE(node == "c0" || well == requests.size()) << node;
    ASSERT_TRUE(cluster_->WaitForState("serving").ok());
  }
  ExpectSame(cluster_->GenerateMany(specs), undisturbed);
  EXPECT_TRUE(cluster_->WaitForNoSlots().ok());
}

INSTANTIATE_TEST_SUITE_P(Lanes, MembershipTest, ::testing::Values(1u, 2u));

// --- Who may join ---

// With heads spread over the memory nodes each has a part of every sequence.
class HeadPartitionTest : public ::testing::Test {
 protected:
  static LocalClusterOptions Options(uint32_t slots) {
    return {.model = SmallModel(),
            .memory_nodes = 2,
            .partition = Partition::kHead,
            .slots = slots,
            .chunk_tokens = 32};
  }
  // Ends when it is cancelled, or by an error.
  static GenerateSpec Endless() { return Greedy(RandomPrompt(10, 1), 240); }
};

TEST_F(HeadPartitionTest, RequestsOutliveAMemoryNodeThatTookItsHeadsOfThem) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options(4096));
  ASSERT_NE(cluster, nullptr);
  const GenerateResult undisturbed = cluster->Generate(Greedy(RandomPrompt(10, 1), 20));
  const GenerateResult whole = cluster->Generate(Endless());
  const std::shared_ptr<LocalRequest> running = cluster->Start(Endless());
  running->WaitForTokens(2);

  cluster->Detach("m1");

  const GenerateResult ended = running->Wait();
  ASSERT_TRUE(ended.status.ok()) << ended.status;
  ExpectSameChoice(ended.choices[0], whole.choices[0]);
  ASSERT_TRUE(cluster->WaitForEpoch(2).ok());
  EXPECT_THAT(cluster->engine().GetStatus().partition, HasSubstr("m0 2 of 2 KV heads"));
  ExpectSameChoice(cluster->Generate(Greedy(RandomPrompt(10, 1), 20)).choices[0],
                   undisturbed.choices[0]);
  cluster->Attach("m1");
  ASSERT_TRUE(cluster->WaitForEpoch(3).ok());
  EXPECT_THAT(cluster->engine().GetStatus().partition, HasSubstr("m0 1, m1 1 of 2 KV heads"));
  ExpectSameChoice(cluster->Generate(Greedy(RandomPrompt(10, 1), 20)).choices[0],
                   undisturbed.choices[0]);
}

TEST_F(HeadPartitionTest, NodesLeftWithTooLittleRoomSaySoAndWaitForTheOthers) {
  // Room for one head of a sequence of 256 tokens on each node, not for two.
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Options(150));
  ASSERT_NE(cluster, nullptr);
  const std::shared_ptr<LocalRequest> running = cluster->Start(Endless());
  running->WaitForTokens(2);

  cluster->Detach("m1");

  EXPECT_TRUE(running->ended() || !running->Wait().status.ok());
  EXPECT_THAT(cluster->engine().GetStatus().state,
              AllOf(HasSubstr("cannot serve"), HasSubstr("room for 1 of 2 KV heads")));
  const GenerateResult refused = cluster->Generate(Endless());
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("room for 1 of 2 KV heads"));
  cluster->Attach("m1");
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_TRUE(cluster->Generate(Endless()).status.ok());
}

// Before any node joins; what the engine says of members that cannot serve is
// cluster_members_test's.
TEST_F(HeadPartitionTest, MoreNodesThanHeadsAreRefused) {
  LocalClusterOptions options = Options(4096);
  options.memory_nodes = 3;
  const absl::Status refused = LocalCluster::Create(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("3 memory nodes"), HasSubstr("2 KV heads")));
}

TEST(JoinTest, RequestsBeforeAllNodesAreThereAreToldWhoIsMissing) {
  const std::unique_ptr<LocalCluster> cluster =
      MakeCluster({.model = SmallModel(), .memory_nodes = 2, .attach = false});
  ASSERT_NE(cluster, nullptr);
  cluster->Attach("m1");

  const GenerateResult early = cluster->Generate(Greedy({1}, 2));

  EXPECT_EQ(early.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(early.status.message()), AllOf(HasSubstr("c0"), HasSubstr("m0")));
  cluster->Attach("m0");
  cluster->Attach("c0");
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_TRUE(cluster->Generate(Greedy({1}, 2)).status.ok());
}

class RefusalTest : public ::testing::Test {
 protected:
  // What a node of that hello is told.
  std::string Refusal(const coordinator::NodeHello& hello) {
    const std::unique_ptr<LocalCluster> cluster =
        MakeCluster({.model = SmallModel(), .memory_nodes = 1});
    const auto port = std::make_shared<Port>();
    cluster->engine().NodeJoined(hello, port);
    EXPECT_EQ(cluster->engine().GetStatus().state, "serving");
    EXPECT_TRUE(cluster->Generate(Greedy({1}, 2)).status.ok());
    return port->reason;
  }

 private:
  struct Port final : coordinator::NodePort {
    void Configure(const plan::EpochConfig&) override {}
    void Connect(const plan::EpochPeers&) override {}
    void Leave(const std::string&) override {}
    void Dismiss() override {}
    void LoadLayers(const plan::Stage&, bool) override {}
    void SendPlan(const coordinator::OutgoingPlan&) override {}
    void StartTrace(Nanos) override {}
    void CollectTrace(uint64_t) override {}
    void PingClock() override {}
    void Refuse(const absl::Status& why) override { reason = std::string(why.message()); }
    void End() override {}
    std::string reason;
  };
};

TEST_F(RefusalTest, OfAnotherVersionNamesBoth) {
  EXPECT_THAT(Refusal({.identity = {.name = "m0", .is_memory = true, .capacity_bytes = 1 << 30},
                       .version = "0.0.9"}),
              AllOf(HasSubstr("0.0.9"), HasSubstr(kVersion)));
}

TEST_F(RefusalTest, OfAnotherModelSaysSo) {
  EXPECT_THAT(
      Refusal({.identity = {.name = "c0", .model_fingerprint = "other"}, .version = kVersion}),
      HasSubstr("model"));
}

TEST_F(RefusalTest, OfTooLittleMemorySaysHowMuchIsNeeded) {
  EXPECT_THAT(Refusal({.identity = {.name = "m0", .is_memory = true, .capacity_bytes = 4096},
                       .version = kVersion}),
              AllOf(HasSubstr("4.0 KiB"), HasSubstr("256"), HasSubstr("raise its capacity")));
}

TEST_F(RefusalTest, OfAnUnknownNameListsTheKnownOnes) {
  EXPECT_THAT(Refusal({.identity = {.name = "m7", .is_memory = true, .capacity_bytes = 1 << 30},
                       .version = kVersion}),
              AllOf(HasSubstr("m7"), HasSubstr("m0")));
}

TEST_F(RefusalTest, OfANameInUseSaysSo) {
  EXPECT_THAT(Refusal({.identity = {.name = "m0", .is_memory = true, .capacity_bytes = 1 << 30},
                       .version = kVersion}),
              HasSubstr("already"));
}

// --- Peers that write what they should not ---

// Writes into the regions of a cluster's nodes as a peer of an epoch would.
class Rogue {
 public:
  explicit Rogue(LocalCluster& cluster) : cluster_(cluster), transport_(Make()) {}

  // Overwrites the header of the window of `value` in the region of `node`, and raises the signal
  // if asked to. Nothing happens when the node has left that epoch meanwhile.
  void WriteHeader(const std::string& node, const plan::WindowHeader& header, uint64_t value,
                   bool raise) {
    const plan::EpochConfig config = cluster_.link(node).config();
    const plan::WindowLayout layout({.compute_nodes = 1,
                                     .memory_nodes = 1,
                                     .lanes = config.lanes,
                                     .rows_max = config.rows_max,
                                     .kv_rows_max = config.chunk_tokens_max,
                                     .layers = config.layers});
    const auto region = transport_->OpenRegion(cluster_.link(node).region(), config.epoch);
    if (!region.ok()) {
      return;
    }
    const size_t window =
        node == "c0" ? layout.ReplyWindow(0, 0, value) : layout.QueryWindow(0, 0, value);
    const transport::SignalUpdate signal{.word = 0, .value = value};
    transport_
        ->Put(**region, window, {reinterpret_cast<const std::byte*>(&header), sizeof(header)},
              raise ? &signal : nullptr)
        .IgnoreError();
  }

 private:
  static std::unique_ptr<transport::Transport> Make() {
    auto transport = transport::MakeTransport("shm://");
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

  LocalCluster& cluster_;
  std::unique_ptr<transport::Transport> transport_;
};

class RogueTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    cluster_ = MakeCluster({.model = SmallModel()});
    ASSERT_NE(cluster_, nullptr);
    undisturbed_ = cluster_->GenerateMany(specs_);
    // A step that was planned before the last token came runs on for a moment.
    const absl::Status idle = cluster_->WaitForIdle();
    ASSERT_TRUE(idle.ok()) << idle;
  }

  uint64_t epoch() { return cluster_->engine().GetStatus().epoch; }
  // Returns the step of the idle cluster's next unit.
  uint64_t NextStep() { return cluster_->engine().GetStatus().scheduler.lanes[0].step_done + 1; }
  uint64_t NextValue() {
    return ((NextStep() - 1) * cluster_->layers().size() + 1) * plan::kSubBatchesMax;
  }

  // Faults without a step between them set a node aside; it comes back like any other.
  void Recover() {
    for (const coordinator::NodeReport& node : cluster_->engine().GetStatus().nodes) {
      if (node.member.state == core::MemberState::kFailed) {
        cluster_->Detach(node.member.name);
        cluster_->Attach(node.member.name);
      }
    }
    const absl::Status serving = cluster_->WaitForState("serving");
    ASSERT_TRUE(serving.ok()) << serving;
  }

  const std::vector<GenerateSpec> specs_ = LongRequests(4);
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<GenerateResult> undisturbed_;
};

using StaleWindowTest = RogueTest;

TEST_F(StaleWindowTest, OfAnOlderEpochIsRefusedAndCounted) {
  const uint64_t before = epoch();
  const uint64_t refused = cluster_->handler("m0").Counters().refused_messages;

  Rogue(*cluster_).WriteHeader("m0", {.epoch = before - 1, .step = NextStep()}, NextValue(), true);
  ASSERT_TRUE(cluster_->WaitForEpoch(before + 1).ok());

  EXPECT_EQ(cluster_->handler("m0").Counters().refused_messages, refused + 1);
  ExpectSame(cluster_->GenerateMany(specs_), undisturbed_);
}

TEST_F(StaleWindowTest, OfAnOlderStepIsRefusedAndCounted) {
  const uint64_t before = epoch();
  const uint64_t refused = cluster_->handler("m0").Counters().refused_messages;

  Rogue(*cluster_).WriteHeader("m0", {.epoch = before, .step = NextStep() - 1}, NextValue(), true);
  ASSERT_TRUE(cluster_->WaitForEpoch(before + 1).ok());

  EXPECT_EQ(cluster_->handler("m0").Counters().refused_messages, refused + 1);
  ExpectSame(cluster_->GenerateMany(specs_), undisturbed_);
}

TEST_F(StaleWindowTest, OfAValueAlreadyServedWakesNobody) {
  const uint64_t before = epoch();
  const uint64_t refused = cluster_->handler("m0").Counters().refused_messages;

  Rogue(*cluster_).WriteHeader("m0", {.epoch = before - 1, .step = 1}, 1, false);

  ExpectSame(cluster_->GenerateMany(specs_), undisturbed_);
  EXPECT_EQ(cluster_->handler("m0").Counters().refused_messages, refused);
  EXPECT_EQ(epoch(), before);
}

// Headers are spoiled at random moments while requests run. Most are written over by the right
// ones; one that is seen ends the epoch, and the requests are computed again.
TEST_P(RogueTest, WrongHeadersNeverMakeWrongText) {
  const std::string& node = GetParam();
  Rogue rogue(*cluster_);
  Prng random(3);
  const uint64_t before = epoch();
  for (int round = 0; round < 200 && epoch() < before + 10; ++round) {
    std::vector<std::shared_ptr<LocalRequest>> requests;
    for (const GenerateSpec& spec : specs_) {
      requests.push_back(cluster_->Start(spec));
    }
    while (!requests[0]->ended()) {
      plan::WindowHeader header{.epoch = cluster_->link(node).config().epoch,
                                .step = 1 + random.Below(100),
                                .rows = static_cast<uint32_t>(random.Below(5)),
                                .sender = 9};
      header.magic = random.Chance(0.5) ? plan::WindowHeader::kMagic : 0;
      rogue.WriteHeader(node, header, plan::kSubBatchesMax * (1 + random.Below(2)), false);
      std::this_thread::sleep_for(std::chrono::microseconds(random.Below(2000)));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const GenerateResult result = requests[i]->Wait();
      if (result.status.ok()) {
        ExpectSameChoice(result.choices[0], undisturbed_[i].choices[0]);
      } else {
        EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
      }
    }
    Recover();
  }
  EXPECT_GT(epoch(), before);
  ExpectSame(cluster_->GenerateMany(specs_), undisturbed_);
}

INSTANTIATE_TEST_SUITE_P(Nodes, RogueTest, ::testing::Values("m0", "c0"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lamina::test_support
