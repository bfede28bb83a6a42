// SPDX-License-Identifier: Apache-2.0
#include "coordinator/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/departures.h"
#include "tests/support/id_tokenizer.h"
#include "tests/unit/coordinator/idle_node.h"
#include "tests/unit/coordinator/small_limits.h"

namespace lamina::coordinator {
namespace {

EngineOptions OneComputeTwoMemoryNodes() {
  return {.nodes = {{.name = "c0"},
                    {.name = "m0", .is_memory = true},
                    {.name = "m1", .is_memory = true}},
          .layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16}},
          .vocabulary = kIdleVocabulary,
          .model_fingerprint = "model",
          .scheduler = SmallLimits()};
}

class StandingClock final : public Clock {
 public:
  Nanos Now() const override { return now; }
  std::atomic<Nanos> now = Seconds(1);
};

struct DeafSink final : public RequestSink {
  void OnAccepted(const std::string&) override {}
  void OnOutput(ChoiceOutput) override {}
  void OnProgress(uint32_t) override {}
  void OnScores(std::vector<float>, std::vector<plan::TokenRank>) override {}
  void OnDone(const absl::Status&) override {}
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const core::Member& member : options_.nodes) {
      nodes_[member.name] = IdleNode::Join(engine_, member);
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
  const test_support::IdTokenizer tokenizer_{kIdleVocabulary};
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

TEST_F(EngineTest, AStatusSaysThatNothingIsTakenWhileANodeThatIsNeededLeaves) {
  EXPECT_TRUE(engine_.GetStatus().admits);
  engine_.Submit({.prompt = {1}}, Engine::NewKey(), std::make_shared<DeafSink>());
  engine_.NodeLeaving(nodes_.at("c0")->source());
  engine_.GetStatus();
  clock_.now += Departures::kTogether;

  EngineStatus status = engine_.GetStatus();
  while (status.admits) {
    status = engine_.GetStatus();
  }

  EXPECT_TRUE(status.state.starts_with("serving")) << status.state;
  EXPECT_EQ(nodes_.at("c0")->let_go(), 0);
}

}  // namespace
}  // namespace lamina::coordinator
