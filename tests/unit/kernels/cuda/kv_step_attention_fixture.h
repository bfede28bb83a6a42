// SPDX-License-Identifier: Apache-2.0
//
// A device that attends whole steps, with a channel between windows of shm:// as a memory node has
// them: the query region is its own, the reply region its peer's, and the test is the peer.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cuda/kv_device.h"
#include "kernels/kv_device.h"
#include "tests/unit/kernels/cuda/async_streams.h"
#include "transport/shm/shm_transport.h"

namespace lamina::kernels::cuda {

inline AttentionDescriptor StepLayer(uint32_t head_dim, uint32_t kv_heads, uint32_t group,
                                     uint32_t window = 0, float soft_cap = 0) {
  return {.query_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .window = window,
          .soft_cap = soft_cap};
}

class KvStepAttentionTest : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = 8192;
  static constexpr uint32_t kContext = 1024;
  static constexpr uint32_t kLanes = 3;
  static constexpr uint32_t kRowsMax = 9;
  static constexpr uint32_t kMagic = 77;
  static constexpr uint64_t kEpoch = 5;
  // Generous: they end a test that hangs.
  static constexpr Nanos kLong = Seconds(60);

  struct Sequence {
    std::vector<Extent> extents;
    uint32_t tokens = 0;
  };
  // What a lane's peer sends in one unit, and what must come back.
  struct Exchange {
    WindowStamp stamp;
    std::vector<BFloat16> rows;      // [rows, q | k | v]
    std::vector<BFloat16> expected;  // [rows, q]
  };

  void SetUp() override {
    async_ = MakeStreamsAsync();
    const KvDeviceOptions options = {.layers = layers_,
                                     .slots = kSlots,
                                     .context_tokens_max = kContext,
                                     .items_max = 16,
                                     .store_tokens_max = 700};
    reference_ = Make(options);
    device_ = Make(options);
    ASSERT_NE(device_, nullptr);
    const absl::Status made = device_->MakeStepLanes({.lanes = kLanes, .rows_max = kRowsMax});
    ASSERT_TRUE(made.ok()) << made;
    ASSERT_NE(device_->step_attention(), nullptr);
    EXPECT_EQ(reference_->step_attention(), nullptr);
    window_bytes_ = kWindowHeaderBytes + kRowsMax * WidestRow() * sizeof(BFloat16);
    window_bytes_ = (window_bytes_ + 255) / 256 * 256;
    const transport::RegionOptions region = {
        .bytes = 2 * kLanes * window_bytes_, .signal_words = kLanes, .written_by_devices = true};
    queries_ = transport_->CreateRegion(region).value();
    replies_ = transport_->CreateRegion(region).value();
    to_queries_ = transport_->OpenRegion(queries_->Descriptor(), 0).value();
    to_replies_ = transport_->OpenRegion(replies_->Descriptor(), 0).value();
  }

  // The channel may use them until it is gone.
  void TearDown() override { channel_.reset(); }

  KvStepAttention& steps() { return *device_->step_attention(); }

  ChannelOptions ChannelOf(uint32_t lanes) {
    return {.own = HostWindowsOf(queries_->direct()),
            .peers = 1,
            .lanes = lanes,
            .timeout = kLong,
            .counts_beats = true,
            .sends_kept = static_cast<uint32_t>(layers_.size())};
  }
  void Open() {
    auto channel = device_->MakeChannel(ChannelOf(kLanes));
    ASSERT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
    const HostWindows replies = HostWindowsOf(to_replies_->direct());
    ASSERT_TRUE(channel_->SetPeers({&replies, 1}).ok());
  }

  std::unique_ptr<KvDevice> Make(const KvDeviceOptions& options) {
    auto device = CudaKvDevices(0)(options);
    EXPECT_TRUE(device.ok()) << device.status();
    if (!device.ok()) {
      return nullptr;
    }
    EXPECT_TRUE((*device)->Begin().ok());
    return *std::move(device);
  }

  size_t WidestRow() const {
    size_t widest = 0;
    for (const AttentionDescriptor& layer : layers_) {
      widest = std::max<size_t>(widest, layer.qkv_width());
    }
    return widest;
  }

  std::vector<BFloat16> Normal(size_t count) {
    std::normal_distribution<float> normal(0.0f, 1.2f);
    std::vector<BFloat16> values(count);
    for (BFloat16& x : values) {
      x = ToBFloat16(normal(random_));
    }
    return values;
  }

  // Gives a sequence more tokens, in slots apart from those before.
  Extent Grow(Sequence& sequence, uint32_t tokens) {
    const Extent extent{.first_slot = next_slot_, .tokens = tokens};
    next_slot_ += tokens + 3;
    sequence.extents.push_back(extent);
    sequence.tokens += tokens;
    return extent;
  }

  // A prompt, stored by the processor in both devices.
  void Prompt(Sequence& sequence, uint32_t tokens) {
    const Extent extent = Grow(sequence, tokens);
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      const size_t width = layers_[layer].kv_width();
      const std::vector<BFloat16> values = Normal(tokens * 2 * width);
      const KvRows rows = {.k = values.data(),
                           .v = values.data() + width,
                           .stride = 2 * width,
                           .slots = {&extent, 1}};
      for (KvDevice* device : {reference_.get(), device_.get()}) {
        const absl::Status stored = device->Store(layer, AllHeads(layers_[layer]), {&rows, 1});
        ASSERT_TRUE(stored.ok()) << stored;
      }
    }
  }

  // A step of one more token of each sequence.
  std::vector<StepRow> RowsOf(std::vector<Sequence>& sequences) {
    std::vector<StepRow> rows;
    for (Sequence& sequence : sequences) {
      const Extent slot = Grow(sequence, 1);
      rows.push_back(
          {.extents = sequence.extents, .position = sequence.tokens - 1, .slot = slot.first_slot});
    }
    return rows;
  }

  // What a unit brings, with the outputs of the device that the processor drives.
  Exchange ExchangeOf(uint32_t lane, uint64_t step, uint32_t layer,
                      const std::vector<StepRow>& rows) {
    const AttentionDescriptor& d = layers_[layer];
    Exchange exchange = {.stamp = {.magic = kMagic,
                                   .lane = lane,
                                   .epoch = kEpoch,
                                   .step = step,
                                   .layer = layer,
                                   .rows = static_cast<uint32_t>(rows.size())},
                         .rows = Normal(rows.size() * d.qkv_width()),
                         .expected = std::vector<BFloat16>(rows.size() * d.q_width())};
    std::vector<Extent> slots;
    slots.reserve(rows.size());
    std::vector<KvRows> stored;
    std::vector<AttentionItem> items;
    for (size_t i = 0; i < rows.size(); ++i) {
      const BFloat16* const row = exchange.rows.data() + i * d.qkv_width();
      slots.push_back({.first_slot = rows[i].slot, .tokens = 1});
      stored.push_back({.k = row + d.q_width(),
                        .v = row + d.q_width() + d.kv_width(),
                        .stride = d.qkv_width(),
                        .slots = {&slots.back(), 1}});
      items.push_back({.extents = rows[i].extents,
                       .first_position = rows[i].position,
                       .q = row,
                       .q_stride = d.qkv_width(),
                       .out = exchange.expected.data() + i * d.q_width(),
                       .out_stride = d.q_width()});
    }
    EXPECT_TRUE(reference_->Store(layer, AllHeads(d), stored).ok());
    EXPECT_TRUE(reference_->Attend(layer, AllHeads(d), items).ok());
    return exchange;
  }

  static uint64_t ValueOf(uint64_t step, uint32_t layer, size_t layers) {
    return (step - 1) * layers + layer + 1;
  }

  size_t Window(uint32_t lane, uint64_t value) const {
    return (lane * 2 + value % 2) * window_bytes_;
  }

  // The unit that brings the exchange: rows in, attention, outputs out.
  void Enqueue(const Exchange& exchange) {
    const WindowStamp& stamp = exchange.stamp;
    const uint64_t value = ValueOf(stamp.step, stamp.layer, layers_.size());
    WindowStamp answer = stamp;
    answer.sender = 3;
    const RowsIn in = {.window = Window(stamp.lane, value),
                       .stamp = stamp,
                       .rows = steps().rows(stamp.lane),
                       .bytes = exchange.rows.size() * sizeof(BFloat16),
                       .word = stamp.lane,
                       .value = value};
    ASSERT_TRUE(channel_->Take(stamp.lane, value, {&in, 1}).ok());
    ASSERT_TRUE(steps().Attend(stamp.lane, stamp.layer).ok());
    const RowsOut out = {.window = Window(stamp.lane, value),
                         .stamp = answer,
                         .rows = steps().outputs(stamp.lane),
                         .bytes = exchange.expected.size() * sizeof(BFloat16),
                         .word = stamp.lane,
                         .value = value};
    ASSERT_TRUE(channel_->Send(stamp.lane, value, out).ok());
  }

  // The peer's side, by the transport's own puts.
  void Send(const Exchange& exchange) {
    const WindowStamp& stamp = exchange.stamp;
    const uint64_t value = ValueOf(stamp.step, stamp.layer, layers_.size());
    std::vector<std::byte> bytes(kWindowHeaderBytes + exchange.rows.size() * sizeof(BFloat16));
    std::memcpy(bytes.data(), &stamp, sizeof(stamp));
    std::memcpy(bytes.data() + kWindowHeaderBytes, exchange.rows.data(),
                exchange.rows.size() * sizeof(BFloat16));
    const transport::SignalUpdate signal = {.word = stamp.lane, .value = value};
    const absl::Status put =
        transport_->Put(*to_queries_, Window(stamp.lane, value), bytes, &signal);
    EXPECT_TRUE(put.ok()) << put;
  }

  void ExpectReply(const Exchange& exchange) {
    const WindowStamp& stamp = exchange.stamp;
    const uint64_t value = ValueOf(stamp.step, stamp.layer, layers_.size());
    const transport::SignalCondition come = {.word = stamp.lane, .at_least = value};
    const auto waited =
        transport_->Wait(*replies_, {&come, 1}, {.deadline = RealClock().Now() + kLong});
    ASSERT_TRUE(waited.ok()) << waited.status();
    const std::byte* const window = replies_->bytes().data() + Window(stamp.lane, value);
    WindowStamp got;
    std::memcpy(&got, window, sizeof(got));
    EXPECT_EQ(got.magic, kMagic);
    EXPECT_EQ(got.step, stamp.step);
    EXPECT_EQ(got.layer, stamp.layer);
    EXPECT_EQ(got.sender, 3u);
    EXPECT_EQ(std::memcmp(window + kWindowHeaderBytes, exchange.expected.data(),
                          exchange.expected.size() * sizeof(BFloat16)),
              0)
        << "lane " << stamp.lane << " step " << stamp.step << " layer " << stamp.layer;
  }

  // Waits until the unit has been sent, and says how long after its rows came.
  Nanos AwaitSent(const WindowStamp& stamp) {
    const uint64_t unit = ValueOf(stamp.step, stamp.layer, layers_.size());
    const Nanos end = RealClock().Now() + kLong;
    std::optional<Nanos> nanos = channel_->SentAfter(stamp.lane, unit);
    while (!nanos.has_value() && RealClock().Now() < end) {
      channel_->Beat();
      nanos = channel_->SentAfter(stamp.lane, unit);
    }
    EXPECT_TRUE(nanos.has_value()) << "lane " << stamp.lane << " unit " << unit;
    return nanos.value_or(-1);
  }

  const std::vector<AttentionDescriptor> layers_ = {StepLayer(64, 2, 3), StepLayer(16, 1, 1),
                                                    StepLayer(48, 3, 2, /*window=*/100, 20.0f),
                                                    StepLayer(64, 2, 3)};
  std::shared_ptr<void> async_;
  const std::unique_ptr<transport::Transport> transport_ = transport::MakeShmTransport();
  size_t window_bytes_ = 0;
  std::unique_ptr<transport::Region> queries_;
  std::unique_ptr<transport::Region> replies_;
  std::unique_ptr<transport::RemoteRegion> to_queries_;
  std::unique_ptr<transport::RemoteRegion> to_replies_;
  std::unique_ptr<KvDevice> reference_;
  std::unique_ptr<KvDevice> device_;
  std::unique_ptr<WindowChannel> channel_;
  uint32_t next_slot_ = 0;
  std::mt19937 random_{11};
};

}  // namespace lamina::kernels::cuda
