// SPDX-License-Identifier: Apache-2.0
//
// A memory node as the coordinator drives it, epoch by epoch, with the test as its one compute
// node: what it refuses, what it keeps over epochs, and what it says of a fault.

#include "memory_node/memory_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/memlock.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "kernels/attention.h"
#include "plan/epoch_shape.h"
#include "transport/fake/fake_network.h"
#include "transport/link_probe.h"
#include "transport/put_all.h"

namespace lamina::memory_node {
namespace {

using ::testing::HasSubstr;

constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.
constexpr AttentionDescriptor kLayer = {
    .query_heads = 2, .kv_heads = 1, .head_dim = 16, .scale = 0.25f};

class Faults final : public control::NodeReporter {
 public:
  void ReportResult(plan::StepResult) override {}
  void ReportFault(uint64_t epoch, const absl::Status& status) override {
    const std::lock_guard lock(mutex_);
    faults_.emplace_back(epoch, status);
    came_.notify_all();
  }
  void ReportSpill(const plan::SpillReport&) override {}
  void ReportLinks(uint64_t, std::vector<control::LinkReport>) override {}

  // Waits for the first one.
  std::pair<uint64_t, absl::Status> First() {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, std::chrono::nanoseconds(kLong), [this] { return !faults_.empty(); });
    return faults_.empty() ? std::pair(uint64_t{0}, absl::OkStatus()) : faults_.front();
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return faults_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::pair<uint64_t, absl::Status>> faults_;
};

struct DeviceLanes {
  uint32_t most = 8;  // That there is memory for.
  uint32_t made = 0;
};

// The processor's device, until it is broken. It takes lanes, and makes no channel on them.
class BreakableDevice final : public kernels::KvDevice {
 public:
  BreakableDevice(std::unique_ptr<kernels::KvDevice> device, const bool& broken, DeviceLanes& lanes)
      : device_(std::move(device)), broken_(broken), lanes_(lanes) {}

  const std::string& name() const override { return device_->name(); }
  uint32_t slots() const override { return device_->slots(); }
  uint64_t bytes() const override { return device_->bytes(); }
  uint32_t query_tokens_max() const override { return device_->query_tokens_max(); }
  bool usable() const override { return !broken_; }
  absl::Status Begin() override { return device_->Begin(); }
  absl::Status Store(uint32_t layer, HeadRange heads,
                     absl::Span<const kernels::KvRows> rows) override {
    return device_->Store(layer, heads, rows);
  }
  absl::Status Attend(uint32_t layer, HeadRange heads,
                      absl::Span<const kernels::AttentionItem> items) override {
    return broken_ ? absl::InternalError("the device is broken")
                   : device_->Attend(layer, heads, items);
  }
  kernels::KvDeviceRows* device_rows() override { return nullptr; }
  absl::Status MakeStepLanes(const kernels::StepLanes& lanes) override {
    const bool fits = lanes.lanes <= lanes_.most;
    lanes_.made = fits ? lanes.lanes : 0;
    return fits ? absl::OkStatus() : absl::ResourceExhaustedError("no memory for lanes");
  }
  kernels::KvStepAttention* step_attention() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MakeChannel(
      const kernels::ChannelOptions&) override {
    return nullptr;
  }

 private:
  const std::unique_ptr<kernels::KvDevice> device_;
  const bool& broken_;
  DeviceLanes& lanes_;
};

class WholeMemoryNodeTest : public ::testing::Test {
 protected:
  void TearDown() override {
    node_.reset();  // It may still put to the region.
  }

  plan::EpochConfig Config(uint64_t epoch, uint32_t slots = 64) const {
    return {.epoch = epoch,
            .lanes = 1,
            .rows_max = 4,
            .chunk_tokens_max = 4,
            .scratch_tokens = 16,
            .sequence_tokens_max = 64,
            .layers = {kLayer},
            .compute_nodes = {"c0"},
            .memory_nodes = {"m0"},
            .slots = {slots},
            .transport = transport_};
  }

  MemoryNode& Make(MemoryNodeOptions options = {}) {
    options.name = "m0";
    if (!options.make_device) {
      options.make_device = MakeDevices();
    }
    node_ = std::make_unique<MemoryNode>(std::move(options), pool_);
    node_->SetReporter(&faults_);
    return *node_;
  }

  // Devices of the processor that fail when `refuses` says so of what is asked for.
  kernels::KvDeviceMaker MakeDevices() {
    return [this, cpu = kernels::CpuKvDevices(kernels::CpuAttention(), pool_)](
               const kernels::KvDeviceOptions& options)
               -> absl::StatusOr<std::unique_ptr<kernels::KvDevice>> {
      if (refuses_ && refuses_(options)) {
        return absl::ResourceExhaustedError("no memory for that");
      }
      auto device = cpu(options);
      if (!device.ok()) {
        return device.status();
      }
      return std::make_unique<BreakableDevice>(*std::move(device), broken_, lanes_);
    };
  }

  // The compute node's end of the epoch.
  plan::EpochPeers MakeCompute(const plan::EpochConfig& config) {
    layout_ = std::make_unique<plan::WindowLayout>(plan::WindowShapeOf(config));
    queries_.reset();
    region_.reset();
    compute_ = transport::FakeNetwork::Named("memory_node_test")->MakeTransport();
    region_ = *compute_->CreateRegion({.name = "c0",
                                       .bytes = layout_->compute_region_bytes(),
                                       .signal_words = layout_->compute_region_words(),
                                       .epoch = config.epoch});
    EXPECT_TRUE(compute_->RegisterSource(window_, transport::MemoryKind::kHost).ok());
    return {.epoch = config.epoch, .compute_regions = {region_->Descriptor()}};
  }

  // The node takes part in the epoch, and has answered the measuring of its link.
  control::PreparedNode Begin(const plan::EpochConfig& config) {
    absl::StatusOr<control::PreparedNode> prepared = node_->Configure(config);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    if (!prepared.ok()) {
      return {};
    }
    const plan::EpochPeers peers = MakeCompute(config);
    const absl::Status connected = node_->Connect(peers);
    EXPECT_TRUE(connected.ok()) << connected;
    queries_ = *compute_->OpenRegion(prepared->region, config.epoch);
    const auto speed = transport::MeasureLink(*compute_,
                                              {.peer = queries_.get(),
                                               .ask_word = layout_->query_probe_word(0),
                                               .bytes = absl::MakeConstSpan(window_).first(64),
                                               .region = region_.get(),
                                               .answer_word = layout_->memory_probe_word(0)},
                                              {.deadline = RealClock().Now() + kLong});
    EXPECT_TRUE(speed.ok()) << speed.status();
    return *std::move(prepared);
  }

  // A step of one row of sequence 1, whose own slot is that of its position; `earlier` tokens lie
  // in the slots before.
  static plan::StepPlan PlanOf(uint64_t epoch, uint64_t step, uint32_t position, uint32_t earlier) {
    plan::StepPlan plan{
        .epoch = epoch,
        .step = step,
        .allocations = {{.sequence = 1,
                         .extent = {.first_slot = position - earlier, .tokens = earlier + 1}}},
        .rows = {{.sequence = 1, .position = position}}};
    if (step == 1) {
      plan.joins = {{.id = 1, .tokens = {1}, .prompt_tokens = 1, .tokens_max = 64}};
    }
    return plan;
  }

  // Puts a window whose query and k are 0, and whose v is all of this value.
  void PutRow(uint64_t epoch, uint64_t step, float v,
              const std::function<void(plan::WindowHeader&)>& change = nullptr) {
    plan::WindowHeader header{.epoch = epoch, .step = step, .rows = 1};
    if (change) {
      change(header);
    }
    std::memcpy(window_.data(), &header, sizeof(header));
    auto* const row = reinterpret_cast<BFloat16*>(window_.data() + sizeof(header));
    std::fill_n(row, kLayer.qkv_width(), ToBFloat16(0.0f));
    std::fill_n(row + kLayer.q_width() + kLayer.kv_width(), kLayer.kv_width(), ToBFloat16(v));
    const uint64_t value = layout_->SignalValue(step, 0);
    const transport::SignalUpdate signal{.word = layout_->query_word(0, 0), .value = value};
    const size_t bytes = sizeof(header) + kLayer.qkv_width() * sizeof(BFloat16);
    const absl::Status put = compute_->Put(*queries_, layout_->QueryWindow(0, 0, value),
                                           absl::MakeConstSpan(window_).first(bytes), &signal);
    ASSERT_TRUE(put.ok()) << put;
  }

  // What comes back for the row: the mean of v over its tokens, in every element.
  float AwaitRow(uint64_t step) {
    const uint64_t value = layout_->SignalValue(step, 0);
    const transport::SignalCondition come{.word = layout_->reply_word(0, 0), .at_least = value};
    const auto waited =
        compute_->Wait(*region_, {&come, 1}, {.deadline = RealClock().Now() + kLong});
    EXPECT_TRUE(waited.ok()) << waited.status();
    const auto* const out = reinterpret_cast<const BFloat16*>(
        region_->bytes().data() + layout_->ReplyWindow(0, 0, value) + sizeof(plan::WindowHeader));
    for (size_t i = 1; i < kLayer.q_width(); ++i) {
      EXPECT_EQ(out[i].bits, out[0].bits) << "element " << i;
    }
    return ToFloat(out[0]);
  }

  std::string transport_ = "fake://memory_node_test";
  const std::shared_ptr<transport::FakeNetwork> network_ =
      transport::FakeNetwork::Named("memory_node_test");
  ThreadPool pool_{{}};
  bool broken_ = false;  // The device, in the middle of an epoch.
  DeviceLanes lanes_;
  std::function<bool(const kernels::KvDeviceOptions&)> refuses_;
  Faults faults_;
  std::vector<std::byte> window_ = std::vector<std::byte>(4096);
  std::unique_ptr<plan::WindowLayout> layout_;
  std::unique_ptr<transport::Transport> compute_;
  std::unique_ptr<transport::Region> region_;
  std::unique_ptr<transport::RemoteRegion> queries_;
  std::unique_ptr<MemoryNode> node_;
};

// --- What it refuses ---

TEST_F(WholeMemoryNodeTest, AnEpochThatDoesNotNameItIsRefused) {
  plan::EpochConfig config = Config(1);
  config.memory_nodes = {"m1"};

  const absl::Status status = Make().Configure(config).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the configuration of epoch 1 does not name m0");
}

TEST_F(WholeMemoryNodeTest, AnEpochThatCannotBeIsRefused) {
  plan::EpochConfig config = Config(1);
  config.slots = {64, 64};

  const absl::Status status = Make().Configure(config).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("gives slots to 2 of 1 memory nodes"));
  EXPECT_FALSE(control::IsTransportFault(status));
}

TEST_F(WholeMemoryNodeTest, WindowsTooLargeForARegionAreRefused) {
  plan::EpochConfig config = Config(1);
  config.layers[0] = {.query_heads = 1u << 20, .kv_heads = 1u << 20, .head_dim = 256};
  config.rows_max = 4096;

  EXPECT_EQ(Make().Configure(config).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(WholeMemoryNodeTest, WindowsThatVerbsCannotPinAreTheTransportsFault) {
  plan::EpochConfig config = Config(1);
  config.attention_paths = plan::AttentionPaths({plan::AttentionPath::kFetch});
  config.fetch_bytes = uint64_t{1} << 20;
  config.fetch_heads = 1;
  config.transport = "verbs://";
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small = {.rlim_cur = std::min<rlim_t>(65536, before.rlim_max),
                        .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  if (MemlockLimit() == UINT64_MAX) {
    setrlimit(RLIMIT_MEMLOCK, &before);
    GTEST_SKIP() << "this process may pin past the limit";
  }

  const absl::Status status = Make().Configure(config).status();

  setrlimit(RLIMIT_MEMLOCK, &before);
  EXPECT_TRUE(control::IsTransportFault(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("fetch.window: 1.0 MiB makes windows of"));
}

TEST_F(WholeMemoryNodeTest, ATransportThatIsNotThereIsTheTransportsFault) {
  transport_ = "carrier_pigeon://";

  const absl::Status status = Make().Configure(Config(1)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(control::IsTransportFault(status)) << "another transport may work";
}

TEST_F(WholeMemoryNodeTest, WindowsOnADeviceThatItDoesNotHaveAreRefused) {
  const absl::Status status = Make({.windows = WindowPlace::kDevice}).Configure(Config(1)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "memory.m0.windows: device, but the node has none");
}

TEST_F(WholeMemoryNodeTest, WithoutMemoryForItsSlotsItTakesNoPartUntilThereIsSome) {
  refuses_ = [](const kernels::KvDeviceOptions& options) { return options.slots > 64; };

  const absl::Status status = Make().Configure(Config(1, 128)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(control::IsTransportFault(status));
  EXPECT_EQ(node_->Connect({.epoch = 1}).code(), absl::StatusCode::kAborted);
  EXPECT_NE(Begin(Config(2, 64)).kv_arena, 0u);
}

TEST_F(WholeMemoryNodeTest, ConnectsToTheEpochThatItIsConfiguredForAlone) {
  Make();
  const absl::Status before = node_->Connect({.epoch = 1});
  EXPECT_EQ(before.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(before.message(), "not configured for epoch 1");

  ASSERT_TRUE(node_->Configure(Config(2)).ok());
  plan::EpochPeers peers = MakeCompute(Config(2));
  peers.epoch = 1;

  EXPECT_EQ(node_->Connect(peers).code(), absl::StatusCode::kAborted);
}

TEST_F(WholeMemoryNodeTest, APeerWhoseRegionIsNoneIsBlamed) {
  Make();
  ASSERT_TRUE(node_->Configure(Config(1)).ok());

  const absl::Status status = node_->Connect({.epoch = 1, .compute_regions = {"no descriptor"}});

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(control::BlamedIn(status), "c0");
  EXPECT_TRUE(control::IsTransportFault(status));
  EXPECT_EQ(node_->Counters().activity, ThreadActivity::kNone) << "no thread was started";
}

// --- What it does ---

TEST_F(WholeMemoryNodeTest, ServesTheUnitsOfAnEpoch) {
  Make();
  EXPECT_TRUE(node_->LoadLayers({}).ok()) << "it has no layers";
  const control::PreparedNode prepared = Begin(Config(1));
  EXPECT_EQ(prepared.windows, "host memory");

  node_->TakePlan(PlanOf(1, 1, 0, 0));
  PutRow(1, 1, 3.0f);
  EXPECT_EQ(AwaitRow(1), 3.0f);
  node_->TakePlan(PlanOf(1, 2, 1, 0));
  PutRow(1, 2, 5.0f);
  EXPECT_EQ(AwaitRow(2), 4.0f);

  node_->LeaveEpoch();
  const telemetry::NodeCounters counters = node_->Counters();
  EXPECT_EQ(counters.units, 2u);
  EXPECT_EQ(counters.device_units, 0u);
  EXPECT_EQ(counters.kv_bytes_read, 3u * 2 * kLayer.kv_width() * sizeof(BFloat16));
  EXPECT_GT(counters.bytes_sent, 0u);
  EXPECT_GT(counters.bytes_received, 0u);
  EXPECT_GT(counters.beats, 0u);
  EXPECT_EQ(counters.activity, ThreadActivity::kNone);
  EXPECT_EQ(faults_.count(), 0u);
}

TEST_F(WholeMemoryNodeTest, KeepsWhatIsStoredOverEpochsOfTheSameShape) {
  Make();
  const uint64_t arena = Begin(Config(1)).kv_arena;
  node_->TakePlan(PlanOf(1, 1, 0, 0));
  PutRow(1, 1, 3.0f);
  AwaitRow(1);

  EXPECT_EQ(Begin(Config(2)).kv_arena, arena);
  node_->TakePlan(PlanOf(2, 1, 1, 1));  // Token 0 is there already.
  PutRow(2, 1, 5.0f);

  EXPECT_EQ(AwaitRow(1), 4.0f);
  EXPECT_NE(arena, 0u);
}

TEST_F(WholeMemoryNodeTest, OtherSlotsAreAnotherArena) {
  Make();
  const uint64_t arena = Begin(Config(1, 64)).kv_arena;

  const uint64_t larger = Begin(Config(2, 128)).kv_arena;

  EXPECT_NE(larger, 0u);
  EXPECT_NE(larger, arena);
}

TEST_F(WholeMemoryNodeTest, ADeviceThatFailedIsMadeAnewWithAnotherArena) {
  Make();
  const uint64_t arena = Begin(Config(1)).kv_arena;
  broken_ = true;

  EXPECT_NE(Begin(Config(2)).kv_arena, arena);
}

TEST_F(WholeMemoryNodeTest, TwoNodesHaveUnlikeArenas) {
  Make();
  const uint64_t arena = Begin(Config(1)).kv_arena;

  Make();

  EXPECT_NE(Begin(Config(1)).kv_arena, arena);
}

TEST_F(WholeMemoryNodeTest, AWrongWindowIsReportedAsAFaultOfItsSender) {
  Make();
  Begin(Config(4));
  node_->TakePlan(PlanOf(4, 1, 0, 0));

  PutRow(4, 1, 3.0f, [](plan::WindowHeader& header) { header.rows = 2; });

  const auto [epoch, status] = faults_.First();
  EXPECT_EQ(epoch, 4u);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(control::BlamedIn(status), "c0");
  EXPECT_EQ(node_->Counters().refused_messages, 1u);
}

TEST_F(WholeMemoryNodeTest, AFailureOfItsDeviceIsItsOwnFault) {
  Make();
  Begin(Config(4));
  node_->TakePlan(PlanOf(4, 1, 0, 0));
  broken_ = true;

  PutRow(4, 1, 3.0f);

  const absl::Status status = faults_.First().second;
  EXPECT_EQ(status.message(), "the device is broken") << status;
  EXPECT_EQ(control::BlamedIn(status), "m0");
  EXPECT_EQ(node_->Counters().refused_messages, 0u);
}

TEST_F(WholeMemoryNodeTest, TakesPartInTheNextEpochAfterAFault) {
  Make();
  Begin(Config(4));
  node_->TakePlan(PlanOf(4, 1, 0, 0));
  PutRow(4, 1, 3.0f, [](plan::WindowHeader& header) { header.rows = 2; });
  faults_.First();

  Begin(Config(5));
  node_->TakePlan(PlanOf(5, 1, 0, 0));
  PutRow(5, 1, 7.0f);

  EXPECT_EQ(AwaitRow(1), 7.0f);
  EXPECT_EQ(faults_.count(), 1u);
}

TEST_F(WholeMemoryNodeTest, AfterItHasLeftNothingOfTheEpochIsThere) {
  Make();
  Begin(Config(1));

  node_->LeaveEpoch();

  const transport::SignalUpdate signal{.word = layout_->query_word(0, 0), .value = 4};
  EXPECT_EQ(compute_->Put(*queries_, 0, {}, &signal).code(), absl::StatusCode::kUnavailable);
  node_->TakePlan(PlanOf(1, 1, 0, 0));  // Late, and nobody's.
  node_->LeaveEpoch();
  EXPECT_EQ(node_->Connect(MakeCompute(Config(1))).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(faults_.count(), 0u);
}

TEST_F(WholeMemoryNodeTest, ANewEpochEndsTheOneBefore) {
  Make();
  Begin(Config(1));

  ASSERT_TRUE(node_->Configure(Config(2)).ok());

  const transport::SignalUpdate signal{.word = layout_->query_word(0, 0), .value = 4};
  EXPECT_EQ(compute_->Put(*queries_, 0, {}, &signal).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(faults_.count(), 0u);
}

// --- A device that is to wait for windows itself, and does not ---

TEST_F(WholeMemoryNodeTest, WithoutMemoryForItsLanesADeviceServesWithoutWaiting) {
  transport_ = "shm://";
  lanes_.most = 0;
  plan::EpochConfig config = Config(1);
  config.memory_waits = true;

  const auto prepared = Make({.device = "toy"}).Configure(config);

  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->windows,
            "host memory, rows are copied to toy, which does not wait itself: no memory for lanes");
}

// Neither lanes without memory, nor others that have some, nor none cost what is stored.
TEST_F(WholeMemoryNodeTest, OtherLanesKeepTheArena) {
  transport_ = "shm://";
  lanes_.most = 1;
  plan::EpochConfig config = Config(1);
  config.memory_waits = true;
  Make({.device = "toy"});
  const auto before = node_->Configure(config);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_THAT(before->windows, HasSubstr(" cannot wait")) << "lanes fit, a channel fails";
  struct Change {
    uint32_t lanes;
    bool waits;
    std::string windows;
  };
  for (const Change& change : std::vector<Change>{{2, true, "no memory for lanes"},
                                                  {1, true, " cannot wait"},
                                                  {1, false, "rows are copied to toy"}}) {
    SCOPED_TRACE(change.windows);
    ++config.epoch;
    config.lanes = change.lanes;
    config.memory_waits = change.waits;

    const auto after = node_->Configure(config);

    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->kv_arena, before->kv_arena);
    EXPECT_THAT(after->windows, HasSubstr(change.windows));
  }
}

TEST_F(WholeMemoryNodeTest, ADeviceThatCannotWaitServesWithoutIt) {
  transport_ = "shm://";
  plan::EpochConfig config = Config(1);
  config.memory_waits = true;

  const auto prepared = Make({.device = "toy"}).Configure(config);

  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->windows, HasSubstr("which does not wait itself: "));
  EXPECT_THAT(prepared->windows, HasSubstr(" cannot wait"));
  EXPECT_EQ(lanes_.made, 0u) << "memory that nobody uses";
}

TEST_F(WholeMemoryNodeTest, WindowsThatNoDeviceReachesAreServedByTheThread) {
  plan::EpochConfig config = Config(1);
  config.memory_waits = true;
  Make({.device = "toy"});

  EXPECT_EQ(Begin(config).windows,
            "host memory, rows are copied to toy, which does not wait itself: the device does not "
            "reach windows of fake://memory_node_test");
  node_->TakePlan(PlanOf(1, 1, 0, 0));
  PutRow(1, 1, 3.0f);
  EXPECT_EQ(AwaitRow(1), 3.0f);
}

TEST_F(WholeMemoryNodeTest, WhatWasNotAskedForNeedsNoReason) {
  EXPECT_EQ(Make({.device = "toy"}).Configure(Config(1))->windows,
            "host memory, rows are copied to toy");
}

}  // namespace
}  // namespace lamina::memory_node
