// SPDX-License-Identifier: Apache-2.0
//
// Memory nodes whose query windows lie in the device's memory, over a transport that reaches it:
// the bits of the processor, whatever else is in the cluster; where they lie, and why; and windows
// that are refused. The transport is fake://, late and disordered, which writes and reads the
// device's memory by copies as a NIC would by itself.

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/kv_device.h"
#include "kernels/cuda/window_memory.h"
#include "tests/integration/cluster_test_util.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "transport/fake/fake_network.h"
#include "transport/registry.h"

namespace lamina::test_support {
namespace {

using coordinator::GenerateSpec;
using kernels::cuda::MakeStreamsAsync;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kReached[] = "memory of cuda:0 by peermem, rows stay in cuda:0";

// The device's memory, with copies counted, and perhaps none left.
class CountedMemory final : public DeviceMemory {
 public:
  const std::string& name() const override { return memory_->name(); }
  DeviceAddresses addresses() const override { return memory_->addresses(); }
  absl::StatusOr<absl::Span<std::byte>> Allocate(size_t bytes) override {
    if (full) {
      return absl::ResourceExhaustedError("cuda:0 is full");
    }
    return memory_->Allocate(bytes);
  }
  void Free(absl::Span<std::byte> allocated) override { memory_->Free(allocated); }
  absl::StatusOr<int> ExportDmabuf(absl::Span<const std::byte> pages) override {
    return memory_->ExportDmabuf(pages);
  }
  absl::Status CheckPeerAccess() override { return memory_->CheckPeerAccess(); }
  absl::StatusOr<PeerHandle> ExportToPeers(absl::Span<const std::byte> bytes) override {
    return memory_->ExportToPeers(bytes);
  }
  absl::StatusOr<std::byte*> OpenPeer(const PeerHandle& handle) override {
    return memory_->OpenPeer(handle);
  }
  void ClosePeer(const PeerHandle& handle) override { memory_->ClosePeer(handle); }
  absl::Status CopyIn(std::byte* device, const std::byte* host, size_t bytes) override {
    ++copies_in;
    return memory_->CopyIn(device, host, bytes);
  }
  absl::Status CopyOut(std::byte* host, const std::byte* device, size_t bytes) override {
    ++copies_out;
    return memory_->CopyOut(host, device, bytes);
  }
  absl::Status CopyAcross(std::byte* to, const std::byte* from, size_t bytes) override {
    return memory_->CopyAcross(to, from, bytes);
  }
  bool OrdersPeerWrites() const override { return false; }
  absl::Status FlushPeerWrites() override { return memory_->FlushPeerWrites(); }

  bool full = false;
  std::atomic<uint64_t> copies_in{0};   // By the transport alone: what has come.
  std::atomic<uint64_t> copies_out{0};  // Counts what is put, likewise.

 private:
  const std::unique_ptr<DeviceMemory> memory_ = kernels::cuda::OpenWindowMemory(0).value();
};

// Another device, whose headers that come during an attention are once those of an older epoch.
class StaleHeaderDevice final : public kernels::KvDevice, private kernels::KvDeviceRows {
 public:
  StaleHeaderDevice(std::unique_ptr<kernels::KvDevice> inner, std::atomic<int>& stale_at)
      : inner_(std::move(inner)), stale_at_(stale_at) {}

  const std::string& name() const override { return inner_->name(); }
  uint32_t slots() const override { return inner_->slots(); }
  uint64_t bytes() const override { return inner_->bytes(); }
  uint32_t query_tokens_max() const override { return 1; }
  bool usable() const override { return inner_->usable(); }
  absl::Status Begin() override { return inner_->Begin(); }
  absl::Status Store(uint32_t layer, HeadRange heads,
                     absl::Span<const kernels::KvRows> rows) override {
    return inner_->Store(layer, heads, rows);
  }
  absl::Status Attend(uint32_t layer, HeadRange heads,
                      absl::Span<const kernels::AttentionItem> items) override {
    attended_ = true;
    return inner_->Attend(layer, heads, items);
  }
  kernels::KvDeviceRows* device_rows() override { return this; }
  kernels::KvStepAttention* step_attention() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MakeChannel(
      const kernels::ChannelOptions&) override {
    return nullptr;
  }

 private:
  absl::Status UseMemory(absl::Span<const absl::Span<const std::byte>> ranges) override {
    return inner_->device_rows()->UseMemory(ranges);
  }
  absl::Status Peek(const std::byte* from, size_t bytes) override {
    attended_ = false;
    return inner_->device_rows()->Peek(from, bytes);
  }
  absl::Status Settle() override { return inner_->device_rows()->Settle(); }
  const std::byte* peeked() const override {
    std::memcpy(&header_, inner_->device_rows()->peeked(), sizeof(header_));
    if (attended_ && stale_at_.fetch_sub(1) == 1) {
      --header_.epoch;
    }
    return reinterpret_cast<const std::byte*>(&header_);
  }

  const std::unique_ptr<kernels::KvDevice> inner_;
  std::atomic<int>& stale_at_;  // How many from now on.
  bool attended_ = false;       // Since the last Peek().
  mutable plan::WindowHeader header_;
};

std::vector<GenerateSpec> Requests() {
  std::vector<GenerateSpec> specs;
  for (const size_t tokens : {1u, 17u, 255u, 300u}) {
    specs.push_back(Greedy(RandomPrompt(tokens, tokens), 6));
  }
  specs.push_back(Sampled(RandomPrompt(40, 3), 6, 5));
  return specs;
}

LocalClusterOptions Plain() {
  return {.model = SmallModel(), .slots = 4096, .sequence_tokens_max = 768};
}

std::vector<GenerateResult> Expected(const std::vector<GenerateSpec>& specs) {
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(Plain());
  return cluster == nullptr ? std::vector<GenerateResult>() : cluster->GenerateMany(specs);
}

struct Windows {
  std::string name;
  std::vector<std::string> cuda = {"m0"};
  Partition partition = Partition::kRequest;
  uint32_t memory_nodes = 1;
  uint32_t lanes = 1;
  core::SubBatchOptions sub_batches = {};
  Nanos plan_delay = 0;
  uint32_t compute_nodes = 1;
  uint32_t stages = 1;
  uint32_t shards = 1;
  uint32_t prefill_nodes = 0;
  bool replies_from_device = true;  // At least those of some rows.
};

class CudaWindowsPlaceTest : public ::testing::Test {
 protected:
  LocalClusterOptions OptionsOf(const Windows& wanted) {
    LocalClusterOptions options = Plain();
    options.partition = wanted.partition;
    options.memory_nodes = wanted.memory_nodes;
    options.lanes = wanted.lanes;
    options.sub_batches = wanted.sub_batches;
    options.memory_plan_delay = wanted.plan_delay;
    options.compute_nodes = wanted.compute_nodes;
    options.stages = wanted.stages;
    options.shards = wanted.shards;
    options.prefill_nodes = wanted.prefill_nodes;
    options.chunk_tokens = 64;
    options.transports = {"fake://reached"};
    options.other_device = {
        .names = wanted.cuda, .make = kernels::cuda::CudaKvDevices(0), .window_memory = &memory_};
    return options;
  }

  const std::shared_ptr<void> async_ = MakeStreamsAsync();
  CountedMemory memory_;
  const std::shared_ptr<transport::FakeNetwork> network_ = transport::FakeNetwork::Named(
      "reached", {.seed = 7, .delay_steps_max = 6, .reaches_devices = true});
};

class CudaWindowsTest : public CudaWindowsPlaceTest,
                        public ::testing::WithParamInterface<Windows> {};

// Bits, and that the rows did stay on the device: what a cluster of shards has differs from one
// node's within a tolerance, so there it is compared with the same cluster on the processor.
TEST_P(CudaWindowsTest, HaveTheBitsOfHostWindows) {
  const LocalClusterOptions options = OptionsOf(GetParam());
  std::vector<GenerateResult> expected;
  {
    LocalClusterOptions host = options;
    host.other_device.names.clear();
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(host);
    ASSERT_NE(cluster, nullptr);
    expected = cluster->GenerateMany(Requests());
  }
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);

  ExpectSame(cluster->GenerateMany(Requests()), expected);
  ExpectSame({cluster->Generate(Requests()[3])}, {expected[3]});

  EXPECT_TRUE(cluster->WaitForNoSlots().ok());
  for (const std::string& name : GetParam().cuda) {
    EXPECT_EQ(WindowsOf(*cluster, name), kReached);
    const telemetry::NodeCounters counters = cluster->handler(name).Counters();
    EXPECT_GT(counters.units, 0u);
    EXPECT_EQ(counters.refused_messages, 0u);
  }
  EXPECT_GT(memory_.copies_in, 0u);
  EXPECT_EQ(memory_.copies_out > 0, GetParam().replies_from_device);
}

INSTANTIATE_TEST_SUITE_P(
    Clusters, CudaWindowsTest,
    ::testing::Values(Windows{.name = "Alone"}, Windows{.name = "TwoLanes", .lanes = 2},
                      Windows{.name = "WithTheProcessor", .memory_nodes = 2, .lanes = 2},
                      Windows{.name = "ByHead",
                              .cuda = {"m0", "m1"},
                              .partition = Partition::kHead,
                              .memory_nodes = 2,
                              .lanes = 2},
                      Windows{.name = "ByTokenRange",
                              .partition = Partition::kTokenRange,
                              .memory_nodes = 2,
                              .lanes = 2,
                              .replies_from_device = false},
                      Windows{.name = "Chunks",
                              .sub_batches = {.chunks = 2, .query_first = QueryFirst::kNever}},
                      Windows{.name = "QueriesFirst",
                              .sub_batches = {.chunks = 2, .query_first = QueryFirst::kAlways}},
                      Windows{.name = "GroupsOfHeads",
                              .sub_batches = {.chunks = 4, .query_first = QueryFirst::kAlways}},
                      Windows{.name = "LatePlans", .lanes = 2, .plan_delay = Millis(3)},
                      Windows{.name = "Replicas", .lanes = 3, .compute_nodes = 2},
                      Windows{.name = "Stages", .lanes = 2, .compute_nodes = 2, .stages = 2},
                      Windows{.name = "Shards", .lanes = 2, .compute_nodes = 2, .shards = 2},
                      Windows{.name = "PrefillNodes", .lanes = 2, .prefill_nodes = 1}),
    [](const auto& test) { return test.param.name; });

TEST_F(CudaWindowsPlaceTest, StatusSaysWhereTheyLieAndWhy) {
  struct Case {
    LocalClusterOptions options;
    std::string says;
  };
  std::vector<Case> cases(5, {.options = OptionsOf({}), .says = ""});
  cases[0].options.other_device.windows = WindowPlace::kHost;
  cases[0].says = "host memory, rows are copied to cuda:0";
  cases[1].options.transports = {"shm://"};
  cases[1].says =
      "host memory (CUDA IPC: whether a sender can map memory of cuda:0 shows when it opens it), "
      "rows are copied to cuda:0";
  // Where the device can wait for windows itself, it does.
  cases[2].options.transports = {"shm://"};
  cases[2].options.device_waits = true;
  cases[2].says = "host memory, for which cuda:0 waits itself";
  cases[3].options.device_waits = true;
  cases[3].says = "memory of cuda:0 by peermem, flushed by a thread, for which cuda:0 waits itself";
  cases[4].options.other_device.windows = WindowPlace::kDevice;
  cases[4].says = kReached;
  const std::vector<GenerateSpec> specs = {Greedy(RandomPrompt(17, 17), 4)};
  const std::vector<GenerateResult> expected = Expected(specs);
  for (const Case& one : cases) {
    SCOPED_TRACE(one.says);
    const std::unique_ptr<LocalCluster> cluster = MakeCluster(one.options);
    ASSERT_NE(cluster, nullptr);

    ExpectSame(cluster->GenerateMany(specs), expected);

    EXPECT_EQ(WindowsOf(*cluster, "m0"), one.says);
  }
}

TEST_F(CudaWindowsPlaceTest, WithoutRoomOnTheDeviceTheyLieInTheHostsMemory) {
  memory_.full = true;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf({}));
  ASSERT_NE(cluster, nullptr);

  const std::vector<GenerateSpec> specs = {Greedy(RandomPrompt(17, 17), 4)};
  ExpectSame(cluster->GenerateMany(specs), Expected(specs));
  EXPECT_EQ(WindowsOf(*cluster, "m0"), "host memory (cuda:0 is full), rows are copied to cuda:0");
}

TEST_F(CudaWindowsPlaceTest, OnTheDeviceOrNotAtAllIsRefusedBeforeServing) {
  LocalClusterOptions options = OptionsOf({});
  options.other_device.windows = WindowPlace::kDevice;
  options.transports = {"shm://"};
  options.attach = false;
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  cluster->Attach("m0");
  cluster->Attach("c0");

  std::string said;
  for (const Nanos end = RealClock().Now() + LocalCluster::kTimeout;
       said.find("memory.m0.windows") == std::string::npos && RealClock().Now() < end;) {
    said = cluster->engine().GetStatus().state;
  }

  EXPECT_THAT(
      said, HasSubstr("memory.m0.windows: device, but shm:// does not reach cuda:0 without "
                      "staging: CUDA IPC: whether a sender can map memory of cuda:0 shows when it "
                      "opens it; verbs does by"));
}

// As CudaWaitsLeavingTest has it for windows that the device waits for.
TEST_F(CudaWindowsPlaceTest, AWindowOfAnOlderEpochIsRefusedAndCounted) {
  std::vector<GenerateSpec> specs = LongRequests(2);
  for (GenerateSpec& spec : specs) {
    spec.max_tokens = 50;
  }
  const std::vector<GenerateResult> expected = Expected(specs);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(OptionsOf({}));
  ASSERT_NE(cluster, nullptr);
  const plan::EpochConfig config = cluster->link("m0").config();
  const plan::WindowLayout layout({.compute_nodes = 1,
                                   .memory_nodes = 1,
                                   .lanes = config.lanes,
                                   .rows_max = config.rows_max,
                                   .kv_rows_max = config.chunk_tokens_max,
                                   .layers = config.layers});
  const plan::WindowHeader stale{.epoch = config.epoch - 1, .step = 1};
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(&stale),
                                          sizeof(stale));
  const auto transport = transport::MakeTransport("fake://reached").value();
  const auto region = transport->OpenRegion(cluster->link("m0").region(), config.epoch);
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_TRUE(transport->RegisterSource(bytes, transport::MemoryKind::kHost).ok());
  const auto request = cluster->Start(specs[0]);
  request->WaitForTokens(5);

  uint64_t value = layout.SignalValue(1'000'000, 0);
  absl::Status put;
  while ((put.ok() || absl::IsResourceExhausted(put)) &&
         cluster->engine().GetStatus().epoch == config.epoch) {
    for (int parity = 0; parity < 2; ++parity) {
      value += plan::kSubBatchesMax;
      const transport::SignalUpdate signal{.word = layout.query_word(0, 0), .value = value};
      put = transport->Put(**region, layout.QueryWindow(0, 0, value), bytes, &signal);
      transport->Progress();
    }
  }

  ASSERT_TRUE(cluster->WaitForEpoch(config.epoch + 1).ok());
  request->Wait();
  ASSERT_TRUE(cluster->WaitForState("serving").ok());
  EXPECT_GT(cluster->handler("m0").Counters().refused_messages, 0u);
  ExpectSame(cluster->GenerateMany(specs), expected);
  EXPECT_THAT(WindowsOf(*cluster, "m0"), StartsWith(kReached));
}

// The header comes while the device attends its rows: nothing of them is answered.
TEST_F(CudaWindowsPlaceTest, AHeaderThatComesDuringAnAttentionIsCheckedToo) {
  std::atomic<int> stale_at{20};
  LocalClusterOptions options = OptionsOf({});
  options.other_device.make = [make = kernels::cuda::CudaKvDevices(0),
                               &stale_at](const kernels::KvDeviceOptions& wanted)
      -> absl::StatusOr<std::unique_ptr<kernels::KvDevice>> {
    absl::StatusOr<std::unique_ptr<kernels::KvDevice>> made = make(wanted);
    if (!made.ok()) {
      return made;
    }
    return std::make_unique<StaleHeaderDevice>(*std::move(made), stale_at);
  };
  const std::vector<GenerateSpec> specs = {Greedy(RandomPrompt(17, 17), 30)};
  const std::vector<GenerateResult> expected = Expected(specs);
  const std::unique_ptr<LocalCluster> cluster = MakeCluster(options);
  ASSERT_NE(cluster, nullptr);
  const uint64_t epoch = cluster->engine().GetStatus().epoch;

  ExpectSame(cluster->GenerateMany(specs), expected);

  EXPECT_LE(stale_at.load(), 0);
  EXPECT_GT(cluster->engine().GetStatus().epoch, epoch);
  EXPECT_EQ(cluster->handler("m0").Counters().refused_messages, 1u);
}

}  // namespace
}  // namespace lamina::test_support
