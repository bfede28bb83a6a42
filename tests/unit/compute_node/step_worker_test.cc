// SPDX-License-Identifier: Apache-2.0
//
// A StepWorker and one memory node, played by the test: steps that end well, and windows that are
// late, of another unit, or never come. All of it both ways, if the device can: rows exchanged by
// the host and by the device itself, in windows of either's memory; what is said of faults is the
// same.

#include "compute_node/step_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "compute_node/remote_path_maker.h"
#include "control/blame.h"
#include "model/grammar/grammar_cache.h"
#include "plan/epoch_shape.h"
#include "tests/unit/compute_node/slice_program.h"
#include "tests/unit/compute_node/suite_window_memory.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "transport/fake/fake_network.h"
#include "transport/link_probe.h"
#include "transport/put_all.h"
#include "transport/registry.h"

namespace lamina::compute_node {
namespace {

constexpr uint64_t kEpoch = 7;
constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.

class Results final : public control::NodeReporter {
 public:
  void ReportResult(plan::StepResult result) override {
    const std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
  }
  void ReportFault(uint64_t, const absl::Status&) override {}
  void ReportSpill(const plan::SpillReport&) override {}
  void ReportLinks(uint64_t, std::vector<control::LinkReport>) override {}

  std::vector<plan::StepResult> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(results_, {});
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return results_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<plan::StepResult> results_;
};

// This says how rows travel.
struct Way {
  std::string name;
  bool by_device = false;  // The device may exchange them.
  std::string uri = "shm://";
  bool polled = false;   // Its windows lie in the device's memory, which it polls,
  bool ordered = false;  // and which orders the writes of NICs.
};
constexpr char kFarUri[] = "fake://step_worker";  // Late, disordered, and with outboxes.

std::vector<Way> Ways() {
  std::vector<Way> ways = {{.name = "OnHost"},
                           {.name = "OnDevice", .by_device = true},
                           {.name = "OnDeviceFar", .by_device = true, .uri = kFarUri}};
  std::vector<std::pair<std::string, std::string>> polled = {{"Far", kFarUri}};
  if (transport::MakeTransport("verbs://").ok()) {
    ways.push_back({.name = "OnDeviceOverVerbs", .by_device = true, .uri = "verbs://"});
    polled.emplace_back("OverVerbs", "verbs://");
  }
  for (const auto& [name, uri] : polled) {
    for (const bool ordered : {true, false}) {
      if (SuiteHasWindowMemory()) {
        ways.push_back({.name = absl::StrCat("OnDevice", ordered ? "Ordered" : "Flushed", name),
                        .by_device = true,
                        .uri = uri,
                        .polled = true,
                        .ordered = ordered});
      }
    }
  }
  return ways;
}

class StepWorkerTest : public ::testing::TestWithParam<Way> {
 protected:
  // What a memory node answers to the unit of the layer; none: nothing.
  using Answer = std::function<bool(uint32_t layer, plan::WindowHeader& header)>;

  void SetUp() override {
    SliceExecutor& executor = program_.executor();
    ASSERT_TRUE(executor.device().Begin().ok());
    config_ = {.epoch = kEpoch,
               .lanes = static_cast<uint32_t>(compute_nodes_.size()),
               .plan_ahead = 1,
               .rows_max = 4,
               .chunk_tokens_max = 4,
               .scratch_tokens = 16,
               .sequence_tokens_max = 64,
               .compute_nodes = compute_nodes_,
               .memory_nodes = {"m0"},
               .slots = {64},
               .transport = GetParam().uri,
               .compute_waits = GetParam().by_device};
    for (uint32_t layer = 0; layer + 1 < executor.slice_count(); ++layer) {
      config_.layers.push_back(executor.attention(layer).descriptor);
    }
    layout_.emplace(plan::WindowShapeOf(config_));
    ASSERT_TRUE(executor.Prepare(config_.rows_max + config_.chunk_tokens_max).ok());
    ASSERT_TRUE(
        path_.Reserve(config_, {.layers = static_cast<uint32_t>(config_.layers.size())}).ok());
    replies_ = *transport_->CreateRegion(
        {.name = "c0 replies",
         .bytes = layout_->compute_region_bytes(),
         .signal_words = layout_->compute_region_words(),
         .kind = GetParam().polled ? transport::MemoryKind::kDevice : transport::MemoryKind::kHost,
         .may_stage = false,
         .epoch = kEpoch,
         .polled_by_device = GetParam().polled});
    queries_ = *memory_transport_->CreateRegion({.name = "m0 queries",
                                                 .bytes = layout_->query_region_bytes(),
                                                 .signal_words = layout_->query_region_words(),
                                                 .epoch = kEpoch,
                                                 .written_by_devices = GetParam().by_device});
    to_replies_ = *memory_transport_->OpenRegion(replies_->Descriptor(), kEpoch);
    reply_.resize(replies_->bytes().size());
    ASSERT_TRUE(memory_transport_->RegisterSource(reply_, transport::MemoryKind::kHost).ok());
    if (compute_nodes_.size() > 1) {
      contexts_ = *memory_transport_->CreateRegion({.name = "c1 contexts",
                                                    .bytes = layout_->compute_region_bytes(),
                                                    .signal_words = layout_->compute_region_words(),
                                                    .epoch = kEpoch});
    }
  }

  void MakeWorker(Nanos peer_deadline) {
    worker_ = std::make_unique<StepWorker>(
        StepWorker::Options{.config = config_,
                            .shape = plan::WindowShapeOf(config_),
                            .vocabulary = program_.model().config.vocabulary,
                            .grammars = &grammars_,
                            .peer_deadline = peer_deadline,
                            .window_memory = memory_.get()},
        program_.executor(), *transport_, *replies_, paths_, pool_, results_, counters_);
    ASSERT_TRUE(worker_->Prepare().ok());
    std::vector<std::unique_ptr<transport::RemoteRegion>> queries;
    queries.push_back(*transport_->OpenRegion(queries_->Descriptor(), kEpoch));
    std::vector<std::unique_ptr<transport::RemoteRegion>> replicas(compute_nodes_.size());
    if (contexts_ != nullptr) {
      replicas[1] = *transport_->OpenRegion(contexts_->Descriptor(), kEpoch);
    }
    worker_->SetPeers(std::move(queries), std::move(replicas));
  }

  bool ByDevice() { return GetParam().by_device && !program_.executor().device().is_host(); }
  uint32_t layers() const { return layout_->layer_count(); }

  // Two rows, whose sequences have tokens that nobody prefilled here.
  static plan::StepPlan Plan(uint64_t step) {
    plan::StepPlan plan{.epoch = kEpoch, .step = step};
    for (const plan::SequenceId id : {1, 2}) {
      if (step == 1) {
        plan.joins.push_back({.id = id, .tokens = {3, 5, 8}, .prompt_tokens = 3, .tokens_max = 64});
      }
      plan.rows.push_back({.sequence = id, .position = static_cast<uint32_t>(step + 1)});
    }
    return plan;
  }

  // That the worker measures its link to the peer with this region.
  void AnswerLink(const transport::Region& region, uint32_t ask_word, uint32_t answer_word) {
    size_t late = 0;
    const transport::LinkAnswerer asker{
        .peer = to_replies_.get(), .ask_word = ask_word, .answer_word = answer_word};
    const transport::WaitOptions wait{.deadline = RealClock().Now() + kLong};
    ASSERT_TRUE(transport::AnswerLinks(*memory_transport_, region, {&asker, 1}, wait, late).ok());
  }

  void AnswerLinks() {
    AnswerLink(*queries_, layout_->query_probe_word(0), layout_->memory_probe_word(0));
    if (contexts_ != nullptr) {
      AnswerLink(*contexts_, layout_->compute_probe_word(0), layout_->compute_probe_word(1));
    }
  }

  // The memory node: links are measured, then units come, one by one, until one is not answered.
  void ServeUnits(const Answer& answer) {
    AnswerLinks();
    for (uint64_t step = 1;; ++step) {
      for (uint32_t layer = 0; layer < layers(); ++layer) {
        const uint64_t value = layout_->SignalValue(step, layer);
        const transport::SignalCondition come{.word = layout_->query_word(0, 0), .at_least = value};
        const transport::WaitOptions wait{.deadline = RealClock().Now() + kLong, .abort = &over_};
        if (!memory_transport_->Wait(*queries_, {&come, 1}, wait).ok()) {
          return;
        }
        CheckQuery(step, layer);
        plan::WindowHeader header{.epoch = kEpoch, .step = step, .layer = layer, .rows = 2};
        if (!answer(layer, header)) {
          return;
        }
        Reply(header, value);
      }
    }
  }

  void CheckQuery(uint64_t step, uint32_t layer) {
    plan::WindowHeader found;
    std::memcpy(
        &found,
        queries_->bytes().data() + layout_->QueryWindow(0, 0, layout_->SignalValue(step, layer)),
        sizeof(found));
    const absl::Status checked =
        plan::CheckHeader(found, {.epoch = kEpoch, .step = step, .layer = layer, .rows = 2});
    EXPECT_TRUE(checked.ok()) << checked;
  }

  // Outputs that are the queries.
  void Reply(const plan::WindowHeader& header, uint64_t value) {
    const AttentionDescriptor& layer = config_.layers[layout_->LayerOf(value)];
    const std::byte* const query = queries_->bytes().data() + layout_->QueryWindow(0, 0, value);
    const size_t out_bytes = layer.q_width() * sizeof(BFloat16);
    const size_t place = layout_->ReplyWindow(0, 0, value);
    const auto window = absl::MakeSpan(reply_).subspan(place, sizeof(header) + 2 * out_bytes);
    std::memcpy(window.data(), &header, sizeof(header));
    for (size_t row = 0; row < 2; ++row) {
      std::memcpy(window.data() + sizeof(header) + row * out_bytes,
                  query + sizeof(header) + row * layer.qkv_width() * sizeof(BFloat16), out_bytes);
    }
    const transport::SignalUpdate signal{.word = layout_->reply_word(0, 0), .value = value};
    EXPECT_TRUE(memory_transport_->Put(*to_replies_, place, window, &signal).ok());
  }

  // Runs until a fault, with a memory node that answers so.
  absl::Status RunUntilFault(const Answer& answer, Nanos peer_deadline) {
    MakeWorker(peer_deadline);
    std::jthread memory([&] { ServeUnits(answer); });
    worker_->PushPlan(Plan(1));
    const absl::Status status = worker_->Run();
    over_.store(1);
    return status;
  }

  // Whether the worker beats more than once from now on.
  bool Beats() const {
    const uint64_t first = counters_.beat.beats();
    const Nanos deadline = RealClock().Now() + kLong;
    while (counters_.beat.beats() < first + 2 && RealClock().Now() < deadline) {
      std::this_thread::yield();
    }
    return counters_.beat.beats() >= first + 2;
  }

  uint64_t Refused(const std::string& reason) const {
    for (const auto& [name, count] : counters_.refusals.ByReason()) {
      if (name == reason) {
        return count;
      }
    }
    return 0;
  }

  // A device waits behind the worker's back.
  const std::shared_ptr<void> async_ =
      GetParam().by_device ? kernels::cuda::MakeStreamsAsync() : nullptr;
  std::vector<std::string> compute_nodes_ = {"c0"};
  Program program_{Spec("gpt_neox_parallel"), DType::kBF16};
  RemotePathMaker path_{plan::AttentionPath::kRemote, "c0", program_.executor().device()};
  std::vector<PathMaker*> paths_ = {&path_};
  ThreadPool pool_{{}};
  model::GrammarCache grammars_{nullptr, {}};
  plan::EpochConfig config_;
  std::optional<plan::WindowLayout> layout_;
  const std::shared_ptr<transport::FakeNetwork> far_ = transport::FakeNetwork::Named(
      "step_worker",
      {.seed = 9, .delay_steps_max = 4, .reaches_devices = true, .shows_memory = true});
  const std::unique_ptr<DeviceMemory> memory_ =
      GetParam().polled ? SuiteWindowMemory(GetParam().ordered) : nullptr;
  const std::unique_ptr<transport::Transport> transport_ =
      transport::MakeTransport(GetParam().uri, memory_.get()).value();
  const std::unique_ptr<transport::Transport> memory_transport_ =
      transport::MakeTransport(GetParam().uri).value();
  std::vector<std::byte> reply_;  // The memory node's, with the windows of the replies.
  std::unique_ptr<transport::Region> replies_;
  std::unique_ptr<transport::Region> queries_;
  std::unique_ptr<transport::Region> contexts_;  // The other compute node's, if there is one.
  std::unique_ptr<transport::RemoteRegion> to_replies_;
  Results results_;
  StepCounters counters_;
  transport::AbortWord over_{0};
  std::unique_ptr<StepWorker> worker_;
};

TEST_P(StepWorkerTest, StepAfterStepEndsWithATokenOfEachRow) {
  constexpr uint64_t kSteps = 5;
  MakeWorker(kLong);
  std::jthread memory([this] { ServeUnits([](uint32_t, plan::WindowHeader&) { return true; }); });
  absl::Status status;
  std::jthread worker([&] { status = worker_->Run(); });

  std::vector<plan::StepResult> results;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    worker_->PushPlan(Plan(step));
    const Nanos deadline = RealClock().Now() + kLong;
    while (results_.count() == 0 && RealClock().Now() < deadline) {
      std::this_thread::yield();
    }
    const std::vector<plan::StepResult> found = results_.Take();
    results.insert(results.end(), found.begin(), found.end());
  }
  worker_->Stop();
  worker.join();
  over_.store(1);

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(results.size(), kSteps);
  for (const plan::StepResult& result : results) {
    ASSERT_EQ(result.tokens.size(), 2u);
    EXPECT_EQ(result.tokens[0].token, result.tokens[1].token);  // Rows are alike.
  }
  EXPECT_EQ(counters_.units.load(), kSteps * (layers() + 1));
  EXPECT_EQ(counters_.device_units.load(), ByDevice() ? kSteps * layers() : 0u);
  const size_t row_bytes = 2 * config_.layers[0].q_width() * sizeof(BFloat16);
  EXPECT_EQ(counters_.bytes_received.load(),
            kSteps * layers() * (sizeof(plan::WindowHeader) + row_bytes));
  EXPECT_GT(counters_.unit_line.fixed.load() + counters_.unit_line.slope.load(), 0);
}

TEST_P(StepWorkerTest, AMemoryNodeThatDoesNotAnswerIsBlamed) {
  const absl::Status status =
      RunUntilFault([](uint32_t layer, plan::WindowHeader&) { return layer == 0; }, Millis(200));

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "nothing from m0 for 0.2 s");
  EXPECT_EQ(control::BlamedIn(status), "m0");
  EXPECT_EQ(results_.count(), 0u);
}

// Nothing is put to it while its outputs are awaited.
TEST_P(StepWorkerTest, AMemoryNodeThatIsKnownToBeGoneIsNotWaitedFor) {
  if (ByDevice()) {
    GTEST_SKIP() << "the device waits";
  }
  const absl::Status status = RunUntilFault(
      [this](uint32_t layer, plan::WindowHeader&) {
        if (layer == 1) {
          queries_.reset();
        }
        return layer == 0;
      },
      kLong);

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(control::BlamedIn(status), "m0");
}

TEST_P(StepWorkerTest, AWindowOfAnOlderEpochIsRefused) {
  const absl::Status status = RunUntilFault(
      [](uint32_t layer, plan::WindowHeader& header) {
        header.epoch = layer == 0 ? kEpoch : kEpoch - 1;
        return true;
      },
      kLong);

  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "window header: epoch 6 where the plan says 7");
  EXPECT_EQ(control::BlamedIn(status), "m0");
  EXPECT_EQ(Refused("stale"), 1u);
  EXPECT_EQ(counters_.refusals.total(), 1u);
}

TEST_P(StepWorkerTest, AWindowOfOtherRowsIsRefused) {
  const absl::Status status = RunUntilFault(
      [this](uint32_t layer, plan::WindowHeader& header) {
        header.rows = layer + 1 < layers() ? 2 : 3;  // That behind which the tail comes.
        return true;
      },
      kLong);

  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "window header: rows 3 where the plan says 2");
  EXPECT_EQ(control::BlamedIn(status), "m0");
  EXPECT_EQ(Refused("rows"), 1u);
  EXPECT_EQ(results_.count(), 0u);
}

TEST_P(StepWorkerTest, StoppingEndsAWaitAtOnce) {
  const absl::Status status = RunUntilFault(
      [this](uint32_t layer, plan::WindowHeader&) {
        if (layer == 1) {
          worker_->Stop();
        }
        return layer == 0;
      },
      kLong);

  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(StepWorkerTest, BeatsWhileItAwaitsAReply) {
  bool beats = false;
  const absl::Status status = RunUntilFault(
      [&](uint32_t layer, plan::WindowHeader&) {
        if (layer == 1) {
          beats = Beats();
          worker_->Stop();
        }
        return layer == 0;
      },
      kLong);

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(beats);
}

TEST_P(StepWorkerTest, SaysThatItSleepsForWantOfWorkAndBeats) {
  MakeWorker(kLong);
  std::jthread memory([this] { AnswerLinks(); });
  std::jthread worker([this] { EXPECT_TRUE(worker_->Run().ok()); });
  const Nanos deadline = RealClock().Now() + kLong;
  while (counters_.beat.activity() != ThreadActivity::kIdle && RealClock().Now() < deadline) {
    std::this_thread::yield();
  }

  EXPECT_EQ(counters_.beat.activity(), ThreadActivity::kIdle);
  EXPECT_TRUE(Beats());
  worker_->Stop();
}

// With another compute node, which runs all steps of lane 1 and is never heard of.
class WorkerWithASilentPeerTest : public StepWorkerTest {
 protected:
  WorkerWithASilentPeerTest() { compute_nodes_ = {"c0", "c1"}; }

  absl::Status RunUntilFault(plan::StepPlan plan) {
    config_.mode = PipelineMode::kFixed;
    MakeWorker(Millis(200));
    std::jthread peers([this] { AnswerLinks(); });
    plan.lane = 1;
    worker_->PushPlan(std::move(plan));
    return worker_->Run();
  }
};

TEST_P(WorkerWithASilentPeerTest, IsBlamed) {
  const absl::Status status = RunUntilFault(Plan(1));

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "nothing from c1 for 0.4 s");
  EXPECT_EQ(control::BlamedIn(status), "c1");
}

TEST_P(WorkerWithASilentPeerTest, IsAwaitedForLongerWhileItComputesAPrompt) {
  plan::StepPlan plan = Plan(1);
  plan.rows.clear();
  plan.chunks = {{.sequence = 1, .tokens = 3}};
  plan.joins.resize(1);
  const absl::Status status = RunUntilFault(std::move(plan));

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "nothing from c1 for 0.41875 s");
  EXPECT_EQ(control::BlamedIn(status), "c1");
}

TEST_P(WorkerWithASilentPeerTest, IsAwaitedForAsLongWhereAPromptComesAsRows) {
  plan::StepPlan plan = Plan(1);
  plan.rows = {{.sequence = 1, .position = 0},
               {.sequence = 1, .position = 1},
               {.sequence = 1, .position = 2}};
  const absl::Status status = RunUntilFault(std::move(plan));

  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "nothing from c1 for 0.41875 s");
  EXPECT_EQ(control::BlamedIn(status), "c1");
}

// A path whose outputs never come, and which raises no signal for them.
class EndlessPath final : public AttentionPath {
 public:
  absl::Status BeginStep(Lane&, const PathRows&) override { return absl::OkStatus(); }
  absl::Status Attend(Lane&) override { return absl::OkStatus(); }
  bool Await(Lane&) override { return true; }
  absl::StatusOr<bool> Poll(Lane&) override { return false; }
  std::optional<Nanos> PollPause(const Lane&) const override { return Micros(50); }
};

class EndlessPathMaker final : public PathMaker {
 public:
  plan::AttentionPath kind() const override { return plan::AttentionPath::kRemote; }
  absl::Status Reserve(const plan::EpochConfig&, const plan::Stage&) override {
    return absl::OkStatus();
  }
  void Release() override {}
  uint64_t kv_bytes() const override { return 0; }
  std::string Describe() const override { return ""; }
  std::unique_ptr<AttentionPath> Make(const WorkerContext&) override {
    return std::make_unique<EndlessPath>();
  }
};

TEST_P(WorkerWithASilentPeerTest, IsBlamedWhileAnotherLaneIsPolled) {
  EndlessPathMaker endless;
  paths_ = {&endless};
  config_.mode = PipelineMode::kFixed;
  MakeWorker(Millis(200));
  std::jthread peers([this] { AnswerLinks(); });
  worker_->PushPlan(Plan(1));
  plan::StepPlan elsewhere = Plan(1);
  elsewhere.lane = 1;
  for (plan::SequenceJoin& join : elsewhere.joins) {
    join.id += 10;
  }
  for (plan::DecodeRow& row : elsewhere.rows) {
    row.sequence += 10;
  }
  worker_->PushPlan(std::move(elsewhere));
  // Without an end of its own the run would not end.
  std::jthread watch([this](const std::stop_token& over) {
    const Nanos deadline = RealClock().Now() + kLong;
    while (!over.stop_requested() && RealClock().Now() < deadline) {
      std::this_thread::yield();
    }
    worker_->Stop();
  });
  const absl::Status status = worker_->Run();

  EXPECT_EQ(status.message(), "nothing from c1 for 0.4 s");
  EXPECT_EQ(control::BlamedIn(status), "c1");
  watch.request_stop();
}

INSTANTIATE_TEST_SUITE_P(Ways, WorkerWithASilentPeerTest, ::testing::Values(Ways().front()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Ways, StepWorkerTest, ::testing::ValuesIn(Ways()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lamina::compute_node
