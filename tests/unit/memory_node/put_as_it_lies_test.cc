// SPDX-License-Identifier: Apache-2.0
//
// What of K and V is put from where it lies in a memory node's arena, and what from a copy, where
// the compute node's windows are not shared memory: every byte, and from where it came.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/device_memory.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "kernels/kv_device.h"
#include "memory_node/attention_worker.h"
#include "memory_node/piece_stream.h"
#include "plan/attention_paths.h"
#include "plan/fetch_pieces.h"
#include "plan/step_plan.h"
#include "plan/window_header.h"
#include "tests/unit/memory_node/unit_cluster.h"
#include "transport/fake/fake_network.h"
#include "transport/transport.h"

namespace lamina::memory_node {
namespace {

using Bytes = absl::Span<const std::byte>;
using Step = UnitCluster::Step;

constexpr uint32_t kHeadDim = 64;
constexpr uint32_t kLayers = 2;
constexpr size_t kSlotBytes = kHeadDim * sizeof(BFloat16);  // K's, or V's.
constexpr size_t kTileBytes = plan::kFetchTile * kSlotBytes;
constexpr uint64_t kWindows = uint64_t{4} << 20;  // A layer of all runs is one piece.
constexpr BFloat16 kCanary = {.bits = 0xabcd};

bool IsIn(Bytes outer, Bytes inner) {
  return inner.data() >= outer.data() && inner.data() + inner.size() <= outer.data() + outer.size();
}

// What transports were asked for, those of all nodes together.
struct Asked {
  std::mutex mutex;
  std::vector<Bytes> registered;
  std::vector<Bytes> put;
  const std::byte* refused = nullptr;  // A source that begins here is not taken.
};

class NotingTransport final : public transport::Transport {
 public:
  NotingTransport(std::unique_ptr<transport::Transport> inner, Asked& asked)
      : inner_(std::move(inner)), asked_(asked) {}

  absl::string_view scheme() const override { return inner_->scheme(); }
  const transport::Capabilities& capabilities() const override { return inner_->capabilities(); }
  absl::StatusOr<std::unique_ptr<transport::Region>> CreateRegion(
      const transport::RegionOptions& options) override {
    return inner_->CreateRegion(options);
  }
  absl::StatusOr<std::unique_ptr<transport::RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                                      uint64_t epoch) override {
    return inner_->OpenRegion(descriptor, epoch);
  }
  absl::Status RegisterSource(Bytes bytes, transport::MemoryKind kind) override {
    const std::lock_guard lock(asked_.mutex);
    if (bytes.data() == asked_.refused) {
      return absl::ResourceExhaustedError("it cannot be pinned");
    }
    asked_.registered.push_back(bytes);
    return inner_->RegisterSource(bytes, kind);
  }
  absl::Status Put(transport::RemoteRegion& target, size_t offset, Bytes source,
                   const transport::SignalUpdate* signal) override {
    const absl::Status put = inner_->Put(target, offset, source, signal);
    if (put.ok()) {
      const std::lock_guard lock(asked_.mutex);
      asked_.put.push_back(source);
    }
    return put;
  }
  uint32_t Pending(const transport::RemoteRegion& target) const override {
    return inner_->Pending(target);
  }
  uint32_t Progress() override { return inner_->Progress(); }
  absl::StatusOr<size_t> Wait(const transport::Region& region,
                              absl::Span<const transport::SignalCondition> conditions,
                              const transport::WaitOptions& options) override {
    return inner_->Wait(region, conditions, options);
  }

 private:
  const std::unique_ptr<transport::Transport> inner_;
  Asked& asked_;
};

// One memory node, and sequences whose extents begin with tiles.
class PutAsItLiesTest : public testing::TestWithParam<uint32_t> {
 protected:
  PutAsItLiesTest()
      : network_(transport::FakeNetworkOptions{.seed = 3, .delay_steps_max = GetParam()}),
        cluster_({.layers = kLayers,
                  .layer = {.query_heads = 2, .kv_heads = 1, .head_dim = kHeadDim, .scale = 0.125f},
                  .fetch_bytes = 2 * kWindows,
                  .whole_tiles = true,
                  .make_transport = [this](DeviceMemory* device) {
                    return std::make_unique<NotingTransport>(network_.MakeTransport(device),
                                                             asked_);
                  }}) {}

  // Sequence 0 has one extent, 1 and 2 have two; that of 1 begins within a tile of its tokens.
  void Start() {
    cluster_.FillWindows(0, 0, kCanary);
    cluster_.Start();
    TakeStep({.step = 1, .prompts = {{0, 1000}}});
    TakeStep({.step = 2, .prompts = {{1, 37}, {2, 160}, {3, 40}}});
    TakeStep({.step = 3, .prompts = {{1, 300}, {2, 149}}});
  }

  // A step of rows, whose pieces are as they should be, and nothing behind them is written.
  void TakeStep(const StepSpec& spec) {
    const Step step = cluster_.MakeStep(spec);
    for (const plan::SlotAllocation& allocation : step.plan.allocations) {
      extents_.push_back(allocation.extent);
    }
    cluster_.PushPlan(step);
    for (uint32_t layer = 0; layer < kLayers && !spec.rows.empty(); ++layer) {
      ASSERT_NO_FATAL_FAILURE(ExpectPiece(step, layer));
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_NO_FATAL_FAILURE(cluster_.RunUnit(step, layer));
    }
  }

  void ExpectPiece(const Step& step, uint32_t layer) {
    const uint64_t piece = ++pieces_;
    size_t slots = 0;
    for (const uint32_t before : step.positions) {
      slots += plan::FetchRun::WholeTiles(before + 1);
    }
    std::vector<BFloat16> wanted(2 * slots * kHeadDim);
    cluster_.AwaitPiece(0, 0, piece, wanted.size() * sizeof(BFloat16));
    BFloat16* k = wanted.data();
    for (size_t row = 0; row < step.positions.size(); ++row) {
      cluster_.CopyKv(step.sequences[row], layer, 0, step.positions[row], k, k + slots * kHeadDim);
      k += plan::FetchRun::WholeTiles(step.positions[row] + 1) * kHeadDim;
    }
    const BFloat16* const come = cluster_.Fetched(0, 0, piece);
    EXPECT_EQ(std::memcmp(come, wanted.data(), wanted.size() * sizeof(BFloat16)), 0)
        << "layer " << layer << " piece " << piece;
    const BFloat16* const end = come + cluster_.FetchedRoom(0, 0, piece) / sizeof(BFloat16);
    EXPECT_EQ(
        std::count_if(come + wanted.size(), end, [](BFloat16 x) { return x.bits != kCanary.bits; }),
        0)
        << "behind piece " << piece;
    cluster_.FillFetched(0, 0, piece, kCanary);
    cluster_.RaiseCredit(0, 0, piece);
  }

  size_t WindowBytes() const { return plan::FetchWindows(cluster_.layout()).window_bytes(); }
  Bytes Arena() { return cluster_.worker().epoch().device.reads()->memory(); }

  // Bytes of puts so far that came from the arena; each is whole tiles of slots that a sequence has
  // been given.
  size_t BytesThatLay() {
    const std::lock_guard lock(asked_.mutex);
    size_t bytes = 0;
    for (const Bytes put : asked_.put) {
      if (put.empty() || !IsIn(Arena(), put)) {
        continue;
      }
      bytes += put.size();
      // Planes of K and of V of each layer, of one head.
      const auto at = static_cast<size_t>(put.data() - Arena().data());
      const size_t slot = at / kSlotBytes % UnitCluster::kSlots;
      const size_t end = slot + put.size() / kSlotBytes;
      EXPECT_EQ(at % kTileBytes, 0u);
      EXPECT_EQ(put.size() % kTileBytes, 0u);
      EXPECT_GE(put.size(), PieceStream::kLyingBytesMin);
      EXPECT_TRUE(std::any_of(extents_.begin(), extents_.end(),
                              [&](const Extent& extent) {
                                return slot >= extent.first_slot &&
                                       end <= size_t{extent.first_slot} + extent.tokens;
                              }))
          << "slots " << slot << " to " << end;
    }
    return bytes;
  }

  // Bytes of tiles that were put from the copy of the windows.
  size_t BytesGathered() {
    const std::lock_guard lock(asked_.mutex);
    const auto staged =
        std::find_if(asked_.registered.begin(), asked_.registered.end(),
                     [&](Bytes source) { return source.size() == 2 * WindowBytes(); });
    EXPECT_NE(staged, asked_.registered.end());
    size_t bytes = 0;
    for (const Bytes put : asked_.put) {
      const bool is_header = put.size() == sizeof(plan::WindowHeader);
      bytes +=
          staged != asked_.registered.end() && IsIn(*staged, put) && !is_header ? put.size() : 0;
    }
    return bytes;
  }

  // K and V of so many tiles, in each layer.
  static constexpr size_t Tiles(size_t tiles) { return tiles * 2 * kTileBytes * kLayers; }

  Asked asked_;
  transport::FakeNetwork network_;
  UnitCluster cluster_;
  std::vector<Extent> extents_;  // All that were given to sequences.
  uint64_t pieces_ = 0;
};

// All tiles of sequence 0 but the last lie so, and those of both extents of sequence 2. Those of
// sequence 1 are too few, or begin within tiles; those of sequence 3 are too few.
TEST_P(PutAsItLiesTest, WholeTilesAreAndTheRestIsGathered) {
  Start();
  EXPECT_EQ(BytesThatLay(), 0u);
  TakeStep({.step = 4, .rows = {0, 1, 2, 3}});  // 63, 22, 20 and 3 tiles.
  EXPECT_EQ(BytesThatLay(), Tiles(62 + 10 + 9));
  EXPECT_EQ(BytesGathered(), Tiles(1 + 22 + 1 + 3));

  // The last whole tile of sequence 0 is in the next turn now, and too little by itself.
  TakeStep({.step = 5, .rows = {3, 0}});  // 3 and 63 tiles.

  EXPECT_EQ(BytesThatLay(), Tiles(62 + 10 + 9 + 61));
  EXPECT_EQ(BytesGathered(), Tiles(1 + 22 + 1 + 3 + 3 + 2));
  EXPECT_EQ(std::count_if(asked_.registered.begin(), asked_.registered.end(),
                          [&](Bytes source) { return source.data() == Arena().data(); }),
            1);
  cluster_.Stop();
}

// Where so much memory cannot be pinned, say.
TEST_P(PutAsItLiesTest, AnArenaThatIsNoSourceIsCopied) {
  asked_.refused = Arena().data();
  Start();
  TakeStep({.step = 4, .rows = {0, 1, 2, 3}});

  EXPECT_EQ(BytesThatLay(), 0u);
  EXPECT_EQ(BytesGathered(), Tiles(63 + 22 + 20 + 3));
  cluster_.Stop();
}

// What a node registers, the arena aside, is what it says that it will pin for it.
TEST(SourceBytesTest, AreThoseThatAreRegistered) {
  using plan::AttentionPath;
  for (const plan::AttentionPaths also :
       {plan::AttentionPaths(), plan::AttentionPaths({AttentionPath::kFetch}),
        plan::AttentionPaths({AttentionPath::kFetch, AttentionPath::kStreaming})}) {
    std::list<Asked> asked;  // By node, the memory node first.
    transport::FakeNetwork network(transport::FakeNetworkOptions{.seed = 3});
    UnitClusterOptions options = {.lanes = 2,
                                  .fetch_bytes = kWindows,
                                  .sparse = true,
                                  .also = also,
                                  .make_transport = [&](DeviceMemory* device) {
                                    return std::make_unique<NotingTransport>(
                                        network.MakeTransport(device), asked.emplace_back());
                                  }};
    if (also.Has(AttentionPath::kStreaming)) {
      options.streaming = {.sink = 16, .window = 64, .layers = {{0, 2}, {1}}};
    }
    UnitCluster cluster(options);
    cluster.Start();  // It has answered, and has registered all before.
    const Bytes arena = cluster.worker().epoch().device.reads()->memory();
    uint64_t bytes = 0;
    {
      const std::lock_guard lock(asked.front().mutex);
      for (const Bytes source : asked.front().registered) {
        bytes += source.data() == arena.data() ? 0 : source.size();
      }
    }
    EXPECT_EQ(bytes, AttentionWorker::SourceBytes(cluster.config())) << "paths " << also.bits();
    cluster.Stop();
  }
}

// At once, and where puts read their source late.
INSTANTIATE_TEST_SUITE_P(Delays, PutAsItLiesTest, testing::Values(0u, 8u));

}  // namespace
}  // namespace lamina::memory_node
