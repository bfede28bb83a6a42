// SPDX-License-Identifier: Apache-2.0
//
// How much a memory node's stream takes out of its arena before others have a turn.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/kv_form.h"
#include "common/thread_beat.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/int8_kv.h"
#include "kernels/kv_device.h"
#include "memory_node/piece_stream.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

constexpr uint32_t kHeadDim = 64;

// Bytes that the data thread took between two of its beats. Each turn of its loop has one.
struct Turns {
  std::atomic<const ThreadBeat*> beat{nullptr};
  uint64_t beats = 0;
  size_t bytes = 0;
  size_t most = 0;

  void Add(size_t taken) {
    const ThreadBeat* const now = beat;
    if (now == nullptr) {
      return;
    }
    if (now->beats() != beats) {
      beats = now->beats();
      bytes = 0;
    }
    bytes += taken;
    most = std::max(most, bytes);
  }
};

class CountedReads final : public kernels::KvReads {
 public:
  CountedReads(kernels::KvReads& reads, Turns& turns) : reads_(reads), turns_(turns) {}

  absl::Status Load(uint32_t layer, uint32_t head, absl::Span<const Extent> extents, uint32_t first,
                    uint32_t tokens, BFloat16* k, BFloat16* v) override {
    turns_.Add(size_t{tokens} * KvHeadBytes(kHeadDim, KvForm::kBF16));
    return reads_.Load(layer, head, extents, first, tokens, k, v);
  }
  absl::Status LoadClosed(uint32_t layer, uint32_t head, absl::Span<const Extent> extents,
                          uint32_t first, uint32_t tokens, const kernels::Int8View& to) override {
    const size_t scales = Int8ScalesOfSlot(kHeadDim) * sizeof(kernels::Int8Scale);
    turns_.Add(tokens *
               (to.k_scales == nullptr ? KvHeadBytes(kHeadDim, KvForm::kInt8) - scales : scales));
    return reads_.LoadClosed(layer, head, extents, first, tokens, to);
  }

 private:
  kernels::KvReads& reads_;
  Turns& turns_;
};

// The processor's device, whose reads are counted.
class CountedDevice final : public kernels::KvDevice {
 public:
  CountedDevice(std::unique_ptr<kernels::KvDevice> device, Turns& turns)
      : device_(std::move(device)), reads_(*device_->reads(), turns) {}

  const std::string& name() const override { return device_->name(); }
  uint32_t slots() const override { return device_->slots(); }
  uint64_t bytes() const override { return device_->bytes(); }
  uint32_t query_tokens_max() const override { return device_->query_tokens_max(); }
  bool usable() const override { return device_->usable(); }
  absl::Status Begin() override { return device_->Begin(); }
  absl::Status Store(uint32_t layer, HeadRange heads,
                     absl::Span<const kernels::KvRows> rows) override {
    return device_->Store(layer, heads, rows);
  }
  absl::Status Attend(uint32_t layer, HeadRange heads,
                      absl::Span<const kernels::AttentionItem> items) override {
    return device_->Attend(layer, heads, items);
  }
  kernels::KvDeviceRows* device_rows() override { return nullptr; }
  kernels::KvReads* reads() override { return &reads_; }
  kernels::KvInt8* int8() override { return device_->int8(); }
  kernels::KvStepAttention* step_attention() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MakeChannel(
      const kernels::ChannelOptions&) override {
    return nullptr;
  }

 private:
  const std::unique_ptr<kernels::KvDevice> device_;
  CountedReads reads_;
};

// Long sequences, and rows that go on behind an open block, of which each layer has 46 KiB.
TEST(StreamTurnsTest, NoTurnTakesMoreThanItMay) {
  for (const uint32_t tails : {0u, 4u}) {
    Turns turns;
    ThreadPool pool{{}};
    UnitClusterOptions options{
        .layers = 6,
        .layer = {.query_heads = 3, .kv_heads = 3, .head_dim = kHeadDim, .scale = 0.125f},
        .fetch_bytes = uint64_t{4} << 20,
        .int8_tails = tails};
    options.make_device = [&](const kernels::KvDeviceOptions& wanted)
        -> absl::StatusOr<std::unique_ptr<kernels::KvDevice>> {
      auto device = kernels::CpuKvDevices(kernels::CpuAttention(), pool)(wanted);
      if (!device.ok()) {
        return device.status();
      }
      return std::make_unique<CountedDevice>(*std::move(device), turns);
    };
    UnitCluster cluster(options);
    turns.beat = &cluster.counters().beat;
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 62}, {1, 600}}});
    const UnitCluster::Step step = cluster.MakeStep({.step = 2, .rows = {0, 0, 0, 0, 1}});
    cluster.PushPlan(step);
    for (uint32_t layer = 0; layer < options.layers; ++layer) {
      cluster.AwaitFetched(0, 0, layer + 1);  // A layer is a piece.
      cluster.RunUnit(step, layer);
      cluster.RaiseCredit(0, 0, layer + 1);
    }
    cluster.Stop();

    EXPECT_LE(turns.most, PieceStream::kTurnBytes) << tails;
    EXPECT_GE(turns.most, PieceStream::kTurnBytes / 2) << tails;
  }
}

}  // namespace
}  // namespace lamina::memory_node
