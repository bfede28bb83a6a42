// SPDX-License-Identifier: Apache-2.0
//
// The link between a memory node and the compute node is cut in the middle of a piece of K and V,
// while both live: under every policy that fetches, requests end with the tokens that they would
// have had, or with an error that says what was cut, and the cluster serves on.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "tests/integration/cluster_modes.h"
#include "tests/integration/cluster_test_util.h"
#include "transport/fake/fake_network.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using transport::FakeFate;
using transport::FakePut;

// A tile of K or V of one head of SmallModel(): a piece has one of bf16 at least, with room for the
// rows' own tokens. Headers are smaller.
constexpr size_t kPartBytes = 1024;
// So many parts of pieces are some of the hundred steps and more that requests take.
constexpr uint32_t kParts = 25;

// Cuts the link of one memory node to c0, both ways.
class LinkCutter {
 public:
  explicit LinkCutter(const std::string& name)
      : uri_(absl::StrCat("fake://", name)),
        network_(transport::FakeNetwork::Named(name, {.seed = 3, .delay_steps_max = 2})) {
    network_->SetLinks([this](const FakePut& put) { return FateOf(put); });
  }
  ~LinkCutter() { network_->SetLinks(nullptr); }
  LinkCutter(const LinkCutter&) = delete;
  LinkCutter& operator=(const LinkCutter&) = delete;

  const std::string& uri() const { return uri_; }

  // The memory node that is the first to put so many parts of pieces from now on is cut off before
  // the last one leaves: in that epoch, or until Mend().
  void Arm(uint32_t parts, FakeFate fate, bool for_good) {
    const std::lock_guard lock(mutex_);
    parts_left_ = {parts, parts};
    fate_ = fate;
    for_good_ = for_good;
  }
  void Mend() {
    const std::lock_guard lock(mutex_);
    cut_off_.clear();
  }

  // Returns the name of the memory node that is cut off; empty: none is.
  std::string cut_off() const {
    const std::lock_guard lock(mutex_);
    return cut_off_;
  }

 private:
  // Regions have the name of their node in front.
  static bool IsOf(absl::string_view region, const std::string& node) {
    return absl::StartsWith(region, absl::StrCat(node, " "));
  }

  FakeFate FateOf(const FakePut& put) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < parts_left_.size(); ++i) {
      const std::string node = absl::StrCat("m", i);
      if (parts_left_[i] > 0 && put.bytes >= kPartBytes && IsOf(put.from, node) &&
          IsOf(put.to, "c0") && --parts_left_[i] == 0) {
        cut_off_ = node;
        epoch_ = put.epoch;
        parts_left_ = {};
      }
    }
    const bool cut = !cut_off_.empty() && (for_good_ || put.epoch == epoch_) &&
                     (IsOf(put.from, cut_off_) || IsOf(put.to, cut_off_));
    return cut ? fate_ : FakeFate::kArrives;
  }

  const std::string uri_;
  const std::shared_ptr<transport::FakeNetwork> network_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<uint32_t> parts_left_;  // By memory node, until one is cut off; empty: none will be.
  FakeFate fate_ = FakeFate::kArrives;
  bool for_good_ = false;
  std::string cut_off_;
  uint64_t epoch_ = 0;
};

struct FetchMode {
  std::string name;
  void (*apply)(LocalClusterOptions& options);
  // What is computed again has the bits of the first time. Where only some tokens are attended to,
  // what had been generated is a prompt then, whose rows attend to all.
  bool exact = true;
};

// The modes of all suites that fetch, which have the same bits, and some that have others, or whose
// requests name their policies.
const std::vector<FetchMode>& FetchModes() {
  static const std::vector<FetchMode> modes = [] {
    std::vector<FetchMode> all = {
        {"fetch_heads_int8",
         [](LocalClusterOptions& options) {
           options.fetch_bytes = 2 << 20;
           options.int8 = true;
         }},
        {"fetch_heads_streaming",
         [](LocalClusterOptions& options) {
           options.fetch_bytes = 2 << 20;
           options.streaming = {.sink = 5, .window = 37, .layers = {{1}, {0, 1}}};
         }},
        {"several_policies",
         [](LocalClusterOptions& options) {
           options.fetch_bytes = 8 << 20;
           options.recompute_percent = 40;
           options.policies = {"fetch_heads", "fetch_recompute", "attend_remote"};
           options.lanes = 3;
         }},
        {"fetch_sparse",
         [](LocalClusterOptions& options) {
           options.fetch_bytes = 8 << 20;
           options.sparse_ratio = 0.3;
         },
         /*exact=*/false},
        {"fetch_sparse_int8",
         [](LocalClusterOptions& options) {
           options.fetch_bytes = 8 << 20;
           options.sparse_ratio = 0.3;
           options.int8 = true;
         },
         /*exact=*/false}};
    for (const ClusterMode& mode : ClusterModes()) {
      LocalClusterOptions options;
      mode.apply(options);
      if (options.fetch_bytes > 0) {
        all.push_back({mode.name, mode.apply});
      }
    }
    return all;
  }();
  return modes;
}

// Where there are several policies requests name them in turn.
std::vector<GenerateSpec> RequestsOf(const FetchMode& mode) {
  LocalClusterOptions options;
  mode.apply(options);
  std::vector<GenerateSpec> specs = LongRequests(4);
  for (size_t i = 0; i < specs.size() && !options.policies.empty(); ++i) {
    specs[i].policy = options.policies[i % options.policies.size()];
  }
  return specs;
}

LocalClusterOptions OptionsOf(const FetchMode& mode, const LinkCutter& cutter) {
  LocalClusterOptions options{.model = SmallModel(), .memory_nodes = 2, .lanes = 2};
  options.transports = {cutter.uri()};
  mode.apply(options);
  return options;
}

void ExpectAnswers(const std::vector<GenerateResult>& found,
                   const std::vector<GenerateResult>& undisturbed, bool exact) {
  if (exact) {
    return ExpectSame(found, undisturbed);
  }
  ASSERT_EQ(found.size(), undisturbed.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("request ", i));
    ASSERT_TRUE(found[i].status.ok()) << found[i].status;
    ASSERT_EQ(found[i].choices.size(), 1u);
    EXPECT_EQ(found[i].choices[0].tokens.size(), undisturbed[i].choices[0].tokens.size());
    EXPECT_EQ(found[i].choices[0].finish, undisturbed[i].choices[0].finish);
  }
}

// The state once the cluster serves without the node, which is there and set aside.
std::string StateWithout(LocalCluster& cluster, const std::string& node) {
  const Nanos deadline = RealClock().Now() + LocalCluster::kTimeout;
  std::string state = cluster.engine().GetStatus().state;
  while (!absl::StartsWith(state, absl::StrCat("serving; ", node, " failed: ")) &&
         RealClock().Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    state = cluster.engine().GetStatus().state;
  }
  return state;
}

class CutLinkTest : public ::testing::TestWithParam<size_t> {
 protected:
  const FetchMode& mode() const { return FetchModes()[GetParam()]; }

  // The link is cut in one epoch, and works in the next one: nothing of the first one shows there.
  void ExpectNothingIsLost(FakeFate fate, uint32_t parts, Nanos peer_deadline) {
    LinkCutter cutter(absl::StrCat("cut_once_", mode().name));
    LocalClusterOptions options = OptionsOf(mode(), cutter);
    options.peer_deadline = peer_deadline;
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
    ASSERT_NE(cluster, nullptr);
    const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs_);
    const uint64_t epoch = cluster->engine().GetStatus().epoch;

    cutter.Arm(parts, fate, /*for_good=*/false);
    ExpectAnswers(cluster->GenerateMany(specs_), undisturbed, mode().exact);

    EXPECT_NE(cutter.cut_off(), "");
    EXPECT_GT(cluster->engine().GetStatus().epoch, epoch);
    ASSERT_TRUE(cluster->WaitForState("serving").ok());
    ExpectSame(cluster->GenerateMany(specs_), undisturbed);
    for (const std::string node : {"c0", "m0", "m1"}) {
      EXPECT_EQ(cluster->handler(node).Counters().refused_messages, 0u) << node;
    }
    EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  }

  const std::vector<GenerateSpec> specs_ = RequestsOf(mode());
};

INSTANTIATE_TEST_SUITE_P(Policies, CutLinkTest, ::testing::Range(size_t{0}, FetchModes().size()),
                         [](const auto& tested) { return FetchModes()[tested.param].name; });

TEST_P(CutLinkTest, NothingIsLostWithAConnectionThatIsReset) {
  ExpectNothingIsLost(FakeFate::kIsRefused, kParts, Seconds(60));
}

// Neither end hears of it: the compute node gives the other one up.
TEST_P(CutLinkTest, NothingIsLostOnALinkThatFallsSilent) {
  ExpectNothingIsLost(FakeFate::kHangs, kParts + 1, Seconds(3));
}

TEST_P(CutLinkTest, AMemoryNodeThatStaysCutOffIsSetAsideAndTheOtherServesOn) {
  LinkCutter cutter(absl::StrCat("cut_off_", mode().name));
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf(mode(), cutter));
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs_);

  cutter.Arm(kParts, FakeFate::kIsRefused, /*for_good=*/true);
  ExpectAnswers(cluster->GenerateMany(specs_), undisturbed, mode().exact);

  const std::string node = cutter.cut_off();
  ASSERT_NE(node, "");
  EXPECT_THAT(StateWithout(*cluster, node),
              AllOf(StartsWith(absl::StrCat("serving; ", node, " failed: ")),
                    HasSubstr("the link to the peer is cut")));
  // After a while it is tried again, which disturbs them once more.
  ExpectAnswers(cluster->GenerateMany(specs_), undisturbed, mode().exact);

  cutter.Mend();
  cluster->Detach(node);
  cluster->Attach(node);
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  ExpectSame(cluster->GenerateMany(specs_), undisturbed);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

// Without another memory node requests end, and say why.
TEST_P(CutLinkTest, WhatNobodyCanServeEndsWithTheReason) {
  LinkCutter cutter(absl::StrCat("cut_alone_", mode().name));
  LocalClusterOptions options = OptionsOf(mode(), cutter);
  options.memory_nodes = 1;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const std::vector<GenerateResult> undisturbed = cluster->GenerateMany(specs_);

  cutter.Arm(kParts, FakeFate::kIsRefused, /*for_good=*/true);
  for (const GenerateResult& result : cluster->GenerateMany(specs_)) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(result.status.ToString(),
                AllOf(HasSubstr("m0"), HasSubstr("the link to the peer is cut")));
  }
  ASSERT_EQ(cutter.cut_off(), "m0");

  cutter.Mend();
  cluster->Detach("m0");
  cluster->Attach("m0");
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  ExpectSame(cluster->GenerateMany(specs_), undisturbed);
  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
}

}  // namespace
}  // namespace lamina::test_support
