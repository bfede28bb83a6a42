// SPDX-License-Identifier: Apache-2.0
//
// A whole worker whose rows attend by a path that it has never heard of: the tokens are those of
// the path that needs nothing from elsewhere. And one that waits for a peer in vain, while there is
// always something else to do.

#include "tests/unit/compute_node/toy_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "compute_node/local_path_maker.h"
#include "compute_node/step_worker.h"
#include "compute_node/streamed_weights.h"
#include "control/blame.h"
#include "control/inbox.h"
#include "plan/epoch_shape.h"
#include "tests/unit/compute_node/slice_program.h"
#include "transport/fake/fake_network.h"

namespace lamina::compute_node {
namespace {

constexpr uint64_t kEpoch = 5;
constexpr uint64_t kSteps = 8;
constexpr uint32_t kLanes = 2;
constexpr uint32_t kPrompt = 9;  // Tokens of a lane's sequence.
constexpr Nanos kLong = Seconds(60);

class Results final : public control::NodeReporter {
 public:
  void ReportResult(plan::StepResult result) override { inbox.Push(std::move(result)); }
  void ReportFault(uint64_t, const absl::Status& status) override { ADD_FAILURE() << status; }
  void ReportSpill(const plan::SpillReport&) override {}
  void ReportLinks(uint64_t, std::vector<control::LinkReport>) override {}

  control::Inbox<plan::StepResult> inbox;
};

// Weights that are never here at once: the first times that a slice asks, they are on their way.
class SlowWeights final : public WeightSource {
 public:
  SlowWeights(const ModelWeights& weights, int times) : weights_(weights), times_(times) {}

  const ModelWeights& weights() const override { return weights_; }
  absl::StatusOr<WeightWait> Ask(uint32_t slice) override {
    if (asked_[slice]++ < times_) {
      return WeightWait{.here = false, .look_again = RealClock().Now() + Micros(50)};
    }
    asked_[slice] = 0;
    ++held_[slice];
    return WeightWait{};
  }
  void Release(uint32_t slice) override {
    --held_[slice];
    ++released_;
  }

  int released() const { return released_; }
  bool holds_any() const {
    return std::any_of(held_.begin(), held_.end(),
                       [](const auto& held) { return held.second != 0; });
  }

 private:
  const ModelWeights& weights_;
  const int times_;
  std::map<uint32_t, int> asked_;
  std::map<uint32_t, int> held_;
  int released_ = 0;
};

// Rows of lane 0 wait for a signal that nobody raises; those of other lanes attend to nothing, at
// once.
class StalledPath final : public AttentionPath {
 public:
  explicit StalledPath(const WorkerContext& context) : context_(context) {}

  absl::Status BeginStep(Lane&, const PathRows&) override { return absl::OkStatus(); }
  absl::Status Attend(Lane& lane) override {
    const auto out =
        context_.executor.AttentionRows(lane.slice, lane.positions.size(), lane.buffers);
    for (size_t row = 0; row < out.rows; ++row) {
      std::fill_n(out.row(row), out.cols, BFloat16());
    }
    return absl::OkStatus();
  }
  bool Await(Lane& lane) override { return lane.index == 0; }
  absl::StatusOr<bool> Poll(Lane&) override { return false; }
  std::optional<Nanos> PollPause(const Lane&) const override { return 0; }
  void AppendAwaited(const Lane&, std::vector<AwaitedSignal>& awaited) const override {
    awaited.push_back(
        {.peer = ComputePeer(0), .word = context_.layout.compute_probe_word(0), .value = 1});
  }

 private:
  const WorkerContext& context_;
};

class StalledPathMaker final : public PathMaker {
 public:
  plan::AttentionPath kind() const override { return plan::AttentionPath::kLocal; }
  absl::Status Reserve(const plan::EpochConfig&, const plan::Stage&) override {
    return absl::OkStatus();
  }
  void Release() override {}
  uint64_t kv_bytes() const override { return 0; }
  std::string Describe() const override { return "waits in vain"; }
  std::unique_ptr<AttentionPath> Make(const WorkerContext& context) override {
    return std::make_unique<StalledPath>(context);
  }
};

// Plans a lane's next step while it reports that one is done.
class EndlessPlans final : public control::NodeReporter {
 public:
  using Plan = plan::StepPlan (*)(uint32_t lane, uint64_t step);

  explicit EndlessPlans(Plan plan) : plan_(plan) {}

  void ReportResult(plan::StepResult result) override {
    worker->PushPlan(plan_(result.lane, result.step + 1));
  }
  void ReportFault(uint64_t, const absl::Status& status) override { ADD_FAILURE() << status; }
  void ReportSpill(const plan::SpillReport&) override {}
  void ReportLinks(uint64_t, std::vector<control::LinkReport>) override {}

  StepWorker* worker = nullptr;  // Set before it runs.

 private:
  const Plan plan_;
};

class ToyPathTest : public ::testing::Test {
 protected:
  ToyPathTest() {
    EXPECT_TRUE(executor().device().Begin().ok());
    config_ = {.epoch = kEpoch,
               .lanes = kLanes,
               .plan_ahead = 1,
               .rows_max = 4,
               .chunk_tokens_max = 16,
               .scratch_tokens = 64,
               .sequence_tokens_max = 64,
               .compute_nodes = {"c0"},
               .attention_paths = {plan::AttentionPath::kLocal},
               .memory_nodes = {"c0"},
               .slots = {256},
               .transport = "fake://unnamed"};
    for (uint32_t layer = 0; layer + 1 < executor().slice_count(); ++layer) {
      config_.layers.push_back(executor().attention(layer).descriptor);
    }
    EXPECT_TRUE(executor().Prepare(config_.rows_max + config_.chunk_tokens_max).ok());
  }

  SliceExecutor& executor() { return program_.executor(); }

  // The lane's sequence joins with its prompt and first slot; then a token a step.
  static plan::StepPlan Plan(uint32_t lane, uint64_t step) {
    const plan::SequenceId id = lane + 1;
    plan::StepPlan plan{.epoch = kEpoch, .lane = lane, .step = step};
    const uint32_t first_slot = 100 * lane;
    if (step == 1) {
      plan::SequenceJoin join{.id = id,
                              .prompt_tokens = kPrompt,
                              .tokens_max = 60,
                              .path = plan::AttentionPath::kLocal};
      for (uint32_t i = 0; i < kPrompt; ++i) {
        join.tokens.push_back(static_cast<TokenId>((7 * i + 11 * lane + 3) % 96));
      }
      plan.joins.push_back(std::move(join));
      plan.allocations.push_back({.sequence = id, .extent = {first_slot, kPrompt}});
      plan.chunks.push_back({.sequence = id, .tokens = kPrompt, .last = true});
    } else {
      const auto position = static_cast<uint32_t>(kPrompt + step - 2);
      plan.allocations.push_back({.sequence = id, .extent = {first_slot + position, 1}});
      plan.rows.push_back({.sequence = id, .position = position});
    }
    return plan;
  }

  // The tokens of both lanes, by a worker whose path the maker makes.
  std::vector<std::vector<TokenId>> TokensBy(PathMaker& maker) {
    return TokensBy(maker, executor());
  }
  std::vector<std::vector<TokenId>> TokensBy(PathMaker& maker, SliceExecutor& slices) {
    EXPECT_TRUE(
        maker.Reserve(config_, {.layers = static_cast<uint32_t>(config_.layers.size())}).ok());
    transport::FakeNetwork network(transport::FakeNetworkOptions{});
    const auto transport = network.MakeTransport();
    const plan::WindowShape shape = plan::WindowShapeOf(config_);
    const plan::WindowLayout layout(shape);
    const auto region = transport->CreateRegion({.name = "c0",
                                                 .bytes = layout.compute_region_bytes(),
                                                 .signal_words = layout.compute_region_words(),
                                                 .epoch = kEpoch});
    EXPECT_TRUE(region.ok()) << region.status();
    Results results;
    StepCounters counters;
    PathMaker* const makers[] = {&maker};
    StepWorker worker(
        {.config = config_, .shape = shape, .vocabulary = program_.model().config.vocabulary},
        slices, *transport, **region, makers, pool_, results, counters);
    EXPECT_TRUE(worker.Prepare().ok());
    worker.SetPeers({}, std::vector<std::unique_ptr<transport::RemoteRegion>>(1));
    std::jthread thread([&worker] {
      const absl::Status status = worker.Run();
      EXPECT_TRUE(status.ok()) << status;
    });
    std::vector<std::vector<TokenId>> tokens(kLanes);
    for (uint64_t step = 1; step <= kSteps; ++step) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        worker.PushPlan(Plan(lane, step));
      }
      std::vector<plan::StepResult> found;
      const Nanos deadline = RealClock().Now() + kLong;
      while (found.size() < kLanes && RealClock().Now() < deadline) {
        results.inbox.WaitForItem(Millis(100));
        results.inbox.TakeAll(found);
      }
      for (const plan::StepResult& result : found) {
        EXPECT_EQ(result.tokens.size(), 1u);
        tokens[result.lane].push_back(result.tokens.at(0).token);
      }
    }
    worker.Stop();
    return tokens;
  }

  // Each step of the lane is the first one of a sequence that joins with three tokens.
  static plan::StepPlan PlanOfNewSequence(uint32_t lane, uint64_t step) {
    const plan::SequenceId id = 1000 * lane + step;
    plan::StepPlan plan{.epoch = kEpoch, .lane = lane, .step = step};
    if (step > 1) {
      plan.leaves.push_back({.id = id - 1});
    }
    plan.joins.push_back({.id = id,
                          .tokens = {3, 5, 8},
                          .prompt_tokens = 3,
                          .tokens_max = 60,
                          .path = plan::AttentionPath::kLocal});
    plan.rows.push_back({.sequence = id, .position = 2});
    return plan;
  }

  static test_support::RandomModelSpec Model() {
    test_support::RandomModelSpec spec = Spec("llama");
    spec.layers = 6;  // More than slots.
    return spec;
  }
  Program program_{Model(), DType::kBF16};
  ThreadPool pool_{{.threads = 2}};
  const kernels::KvDeviceMaker kv_ = kernels::CpuKvDevices(kernels::CpuAttention(), pool_);
  plan::EpochConfig config_;
};

TEST_F(ToyPathTest, HasTheTokensOfThePathThatIsHere) {
  LocalPathMaker local("c0", executor().device(), /*holds_kv=*/true);
  ToyPathMaker toy(kv_);
  const std::vector<std::vector<TokenId>> wanted = TokensBy(local);
  ASSERT_EQ(wanted[0].size(), kSteps);
  EXPECT_NE(wanted[0], wanted[1]);
  EXPECT_EQ(TokensBy(toy), wanted);
  EXPECT_EQ(toy.steps_ended(), static_cast<int>(kLanes * kSteps));
}

// Other lanes run what they have, and each slice gives its weights back.
TEST_F(ToyPathTest, SlicesWaitForTheirWeights) {
  LocalPathMaker local("c0", executor().device(), /*holds_kv=*/true);
  const std::vector<std::vector<TokenId>> wanted = TokensBy(local);
  for (const int times : {1, 4}) {
    SlowWeights slow(executor().weight_source().weights(), times);
    auto slices = SliceExecutor::Create(program_.model().graph, slow, executor().device(), 64);
    ASSERT_TRUE(slices.ok()) << slices.status();
    ASSERT_TRUE((*slices)->Prepare(config_.rows_max + config_.chunk_tokens_max).ok());
    ToyPathMaker toy(kv_);
    EXPECT_EQ(TokensBy(toy, **slices), wanted);
    EXPECT_EQ(slow.released(), static_cast<int>(kLanes * kSteps * (*slices)->slice_count()));
    EXPECT_FALSE(slow.holds_any());
    if (times > 1) {
      EXPECT_GT(toy.waits(), 0) << "a path hears of those who look in vain again";
    }
  }
}

// A lane that waits for a peer in vain is given up in time, though another lane keeps the thread
// from ever sleeping.
TEST_F(ToyPathTest, ABusyLaneDoesNotHideThatAnotherWaitsInVain) {
  transport::FakeNetwork network(transport::FakeNetworkOptions{});
  const auto transport = network.MakeTransport();
  const plan::WindowShape shape = plan::WindowShapeOf(config_);
  const plan::WindowLayout layout(shape);
  const auto region = transport->CreateRegion({.name = "c0",
                                               .bytes = layout.compute_region_bytes(),
                                               .signal_words = layout.compute_region_words(),
                                               .epoch = kEpoch});
  ASSERT_TRUE(region.ok()) << region.status();
  EndlessPlans plans(&PlanOfNewSequence);
  StepCounters counters;
  StalledPathMaker maker;
  PathMaker* const makers[] = {&maker};
  StepWorker worker({.config = config_,
                     .shape = shape,
                     .vocabulary = program_.model().config.vocabulary,
                     .peer_deadline = Millis(1)},
                    executor(), *transport, **region, makers, pool_, plans, counters);
  plans.worker = &worker;
  ASSERT_TRUE(worker.Prepare().ok());
  worker.SetPeers({}, std::vector<std::unique_ptr<transport::RemoteRegion>>(1));
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    worker.PushPlan(PlanOfNewSequence(lane, 1));
  }
  absl::Status status;
  std::atomic<bool> ended = false;
  std::thread thread([&] {
    status = worker.Run();
    ended = true;
  });
  const Nanos deadline = RealClock().Now() + kLong;
  while (!ended && RealClock().Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  worker.Stop();
  thread.join();

  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(control::BlamedIn(status), config_.compute_nodes[0]);
}

// Weights that come from a file, through slots that all lanes share.
TEST_F(ToyPathTest, LanesShareWeightsThatCome) {
  LocalPathMaker local("c0", executor().device(), /*holds_kv=*/true);
  const std::vector<std::vector<TokenId>> wanted = TokensBy(local);
  const SliceProgram& program = executor().program();
  const uint64_t all = executor().weight_source().weights().bytes();
  StreamedWeights weights(executor().device(),
                          {.budget = all - 1, .lanes = kLanes, .directory = testing::TempDir()});
  const absl::Status loaded = weights.Load(program, *program_.model().weights,
                                           program.OpsOf(0, program.slice_count()), [](double) {});
  ASSERT_TRUE(loaded.ok()) << loaded;
  ASSERT_NE(weights.Describe().find("slices come from"), std::string::npos) << weights.Describe();
  auto slices = SliceExecutor::Create(program_.model().graph, weights, executor().device(), 64);
  ASSERT_TRUE(slices.ok()) << slices.status();
  ASSERT_TRUE((*slices)->Prepare(config_.rows_max + config_.chunk_tokens_max).ok());
  EXPECT_EQ(TokensBy(local, **slices), wanted);
}

}  // namespace
}  // namespace lamina::compute_node
