// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/version.h"
#include "tests/support/id_tokenizer.h"
#include "tests/unit/coordinator/small_limits.h"

namespace lamina::coordinator {
namespace {

constexpr uint32_t kVocabulary = 100;
constexpr uint64_t kCapacity = 1 << 20;

EngineOptions OneComputeTwoMemoryNodes() {
  return {.nodes = {{.name = "c0"},
                    {.name = "m0", .is_memory = true},
                    {.name = "m1", .is_memory = true}},
          .layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16}},
          .vocabulary = kVocabulary,
          .model_fingerprint = "model",
          .scheduler = SmallLimits()};
}

// A node that takes part in every epoch, and never does a step.
class IdleNode final : public NodePort {
 public:
  IdleNode(std::string name, Engine& engine) : name_(std::move(name)), engine_(engine) {}

  NodeSource source() const { return {.name = name_, .port = this}; }

  void LoadLayers(const plan::Stage&, bool) override {}
  void Configure(const plan::EpochConfig& config) override {
    epoch_ = config.epoch;
    engine_.NodePrepared(source(), epoch_, {.region = "region"});
  }
  void Connect(const plan::EpochPeers&) override { engine_.NodeReady(source(), epoch_); }
  void Leave(const std::string&) override { ++let_go_; }
  int let_go() const { return let_go_; }
  void Dismiss() override {}
  void SendPlan(const OutgoingPlan&) override {}
  void StartTrace(Nanos) override {}
  void CollectTrace(uint64_t) override {}
  void PingClock() override {}
  void Refuse(const absl::Status& why) override { ADD_FAILURE() << name_ << ": " << why; }
  void End() override {}

 private:
  const std::string name_;
  Engine& engine_;
  uint64_t epoch_ = 0;
  std::atomic<int> let_go_ = 0;
};

class StandingClock final : public Clock {
 public:
  Nanos Now() const override { return Seconds(1); }
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const core::Member& member : options_.nodes) {
      const auto node = std::make_shared<IdleNode>(member.name, engine_);
      nodes_[member.name] = node;
      engine_.NodeJoined({.identity = {.name = member.name,
                                       .is_memory = member.is_memory,
                                       .capacity_bytes = kCapacity,
                                       .bandwidth_bytes_per_second = 1e9,
                                       .model_fingerprint = member.is_memory ? "" : "model"},
                          .version = std::string(kVersion)},
                         node);
    }
    AwaitServing(1);
  }

  void AwaitServing(uint64_t epoch) {
    for (;;) {
      const EngineStatus status = engine_.GetStatus();
      if (status.epoch == epoch && status.state.starts_with("serving")) {
        return;
      }
      std::this_thread::yield();
    }
  }

  // What is posted until the result is destroyed reaches the engine's thread in one batch.
  class Batch {
   public:
    explicit Batch(Engine& engine) {
      std::promise<void> begun;
      engine.ReadTrace("nobody", [&begun, go = go_.get_future().share()](auto) {
        begun.set_value();
        go.wait();
      });
      begun.get_future().wait();
    }
    ~Batch() { go_.set_value(); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    std::promise<void> go_;
  };

  const EngineOptions options_ = OneComputeTwoMemoryNodes();
  const test_support::IdTokenizer tokenizer_{kVocabulary};
  StandingClock clock_;
  Engine engine_{options_, tokenizer_, clock_};
  std::map<std::string, std::shared_ptr<IdleNode>> nodes_;
};

TEST_F(EngineTest, AStatusBehindADepartureInOneBatchIsTaken) {
  {
    const Batch batch(engine_);
    engine_.NodeLeft(nodes_.at("m0")->source());
    engine_.NodeStatus(nodes_.at("c0")->source(), 0.5, {});
    engine_.NodeStatus(nodes_.at("m1")->source(), 0.5, {});
  }

  AwaitServing(2);

  for (const NodeReport& node : engine_.GetStatus().nodes) {
    EXPECT_EQ(node.busy_share, node.member.name == "m0" ? 0 : 0.5) << node.member.name;
  }
}

// The clock stands still: nobody waits for others who might ask, too.
TEST_F(EngineTest, ACoordinatorThatEndsLetsGoWhoeverAsksAtOnce) {
  engine_.NodeLeaving(nodes_.at("m0")->source());
  engine_.GetStatus();
  EXPECT_EQ(nodes_.at("m0")->let_go(), 0);
  engine_.Drain([] {});
  engine_.NodeLeaving(nodes_.at("m1")->source());
  while (nodes_.at("m0")->let_go() + nodes_.at("m1")->let_go() < 2) {
    std::this_thread::yield();
  }
  EXPECT_EQ(nodes_.at("c0")->let_go(), 0);
}

}  // namespace
}  // namespace lamina::coordinator
