// SPDX-License-Identifier: Apache-2.0
//
// Units that a device serves by itself, with rows that come and go by its channel, against those
// that the processor drives, bit for bit.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "common/philox.h"
#include "tests/unit/kernels/cuda/kv_step_attention_fixture.h"

namespace lamina::kernels::cuda {
namespace {

void BusyPause(Nanos duration) {
  for (const Nanos end = RealClock().Now() + duration; RealClock().Now() < end;) {
  }
}

// All lanes at once, each with its own peer, whose data comes when it likes.
TEST_F(KvStepAttentionTest, UnitsOfAllLanesHaveTheBitsOfTheProcessorsWay) {
  constexpr uint64_t kSteps = 2;
  Open();
  const std::vector<std::vector<uint32_t>> prompts = {
      {5}, {255, 1, 600}, {256, 257, 17, 90, 100, 101, 2, 31, 700}};
  std::vector<std::vector<Sequence>> sequences(kLanes);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (const uint32_t tokens : prompts[lane]) {
      Prompt(sequences[lane].emplace_back(), tokens);
    }
  }
  for (uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<std::vector<StepRow>> rows;
    std::vector<std::vector<Exchange>> exchanges(kLanes);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      rows.push_back(RowsOf(sequences[lane]));
      ASSERT_TRUE(steps().Fits(rows[lane]));
      for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
        exchanges[lane].push_back(ExchangeOf(lane, step, layer, rows[lane]));
      }
    }
    // Before anything has come.
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      ASSERT_TRUE(steps().BeginStep(lane, rows[lane]).ok());
      for (const Exchange& exchange : exchanges[lane]) {
        Enqueue(exchange);
      }
    }
    std::thread peer([&] {
      Prng random(step);
      for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
        for (uint32_t i = 0; i < kLanes; ++i) {
          const uint32_t lane = (i + static_cast<uint32_t>(step)) % kLanes;
          BusyPause(static_cast<Nanos>(random.Below(300'000)));
          Send(exchanges[lane][layer]);
        }
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          ExpectReply(exchanges[lane][layer]);
        }
      }
    });
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      for (const Exchange& exchange : exchanges[lane]) {
        const Nanos nanos = AwaitSent(exchange.stamp);
        EXPECT_GE(nanos, 0);
        EXPECT_LT(nanos, kLong);
      }
      EXPECT_FALSE(channel_->FailureOf(lane).has_value());
      EXPECT_TRUE(channel_->Check(lane).ok());
    }
    peer.join();
  }
  channel_->Close();
  EXPECT_TRUE(device_->usable());
}

// What the device has stored by itself is there for the processor's way, and the reverse.
TEST_F(KvStepAttentionTest, StepsOfBothWaysTakeTurns) {
  Open();
  std::vector<Sequence> sequences(2);
  Prompt(sequences[0], 300);
  Prompt(sequences[1], 7);
  for (uint64_t step = 1; step <= 4; ++step) {
    const std::vector<StepRow> rows = RowsOf(sequences);
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      const Exchange exchange = ExchangeOf(0, step, layer, rows);
      if (step % 2 == 0) {
        if (layer == 0) {
          ASSERT_TRUE(steps().BeginStep(0, rows).ok());
        }
        Enqueue(exchange);
        Send(exchange);
        ExpectReply(exchange);
        AwaitSent(exchange.stamp);
        continue;
      }
      std::vector<BFloat16> found = exchange.expected;
      const AttentionDescriptor& d = layers_[layer];
      for (size_t i = 0; i < rows.size(); ++i) {
        const BFloat16* const row = exchange.rows.data() + i * d.qkv_width();
        const Extent slot = {.first_slot = rows[i].slot, .tokens = 1};
        const KvRows stored = {.k = row + d.q_width(),
                               .v = row + d.q_width() + d.kv_width(),
                               .stride = d.qkv_width(),
                               .slots = {&slot, 1}};
        const AttentionItem item = {.extents = rows[i].extents,
                                    .first_position = rows[i].position,
                                    .q = row,
                                    .q_stride = d.qkv_width(),
                                    .out = found.data() + i * d.q_width(),
                                    .out_stride = d.q_width()};
        EXPECT_TRUE(device_->Store(layer, AllHeads(d), {&stored, 1}).ok());
        EXPECT_TRUE(device_->Attend(layer, AllHeads(d), {&item, 1}).ok());
      }
      EXPECT_EQ(
          std::memcmp(found.data(), exchange.expected.data(), found.size() * sizeof(BFloat16)), 0);
    }
  }
}

// What a failed unit has stored and attended is worthless, and nobody hears of it.
TEST_F(KvStepAttentionTest, UnitsBehindARefusedWindowAreSilentAndTheDeviceGoesOn) {
  std::vector<Sequence> sequences(1);
  Prompt(sequences[0], 20);
  const std::vector<StepRow> rows = RowsOf(sequences);
  const auto enqueue_step = [&](uint64_t step) {
    std::vector<Exchange> exchanges;
    EXPECT_TRUE(steps().BeginStep(1, rows).ok());
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      exchanges.push_back(ExchangeOf(1, step, layer, rows));
      Enqueue(exchanges.back());
    }
    return exchanges;
  };
  Open();
  const std::vector<Exchange> refused = enqueue_step(1);
  Send(refused[0]);
  ExpectReply(refused[0]);
  Exchange wrong = refused[1];
  wrong.stamp.kv_rows = 2;
  Send(wrong);
  const Nanos end = RealClock().Now() + kLong;
  while (!channel_->HasTaken(1).value() && RealClock().Now() < end) {
    channel_->Beat();
  }
  ASSERT_TRUE(channel_->FailureOf(1).has_value());
  EXPECT_EQ(channel_->FailureOf(1)->outcome, WaitOutcome::kMismatch);
  channel_->Close();
  EXPECT_EQ(replies_->LoadSignal(1), ValueOf(1, 0, layers_.size())) << "nothing more was put";
  EXPECT_TRUE(device_->usable());

  Open();
  for (const Exchange& exchange : enqueue_step(2)) {
    Send(exchange);
    ExpectReply(exchange);
    AwaitSent(exchange.stamp);
  }
  EXPECT_FALSE(channel_->FailureOf(1).has_value());
}

// Also those of the slot that kernels are tried with.
TEST_F(KvStepAttentionTest, OtherLanesLeaveKAndVAsTheyAre) {
  std::vector<Sequence> sequences(1);
  Prompt(sequences[0], 300);
  ASSERT_EQ(sequences[0].extents[0].first_slot, 0u);

  const absl::Status made = device_->MakeStepLanes({.lanes = kLanes + 1, .rows_max = 1});

  ASSERT_TRUE(made.ok()) << made;
  Open();
  const std::vector<StepRow> rows = RowsOf(sequences);
  ASSERT_TRUE(steps().BeginStep(0, rows).ok());
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    const Exchange exchange = ExchangeOf(0, 1, layer, rows);
    Enqueue(exchange);
    Send(exchange);
    ExpectReply(exchange);
  }
  EXPECT_FALSE(steps().Fits(std::vector<StepRow>(2, rows[0])));
}

TEST_F(KvStepAttentionTest, LanesWithoutRoomAreRefusedAndAllElseGoesOn) {
  std::vector<Sequence> sequences(1);
  Prompt(sequences[0], 20);

  const absl::Status refused = device_->MakeStepLanes({.lanes = 1u << 24, .rows_max = kRowsMax});

  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(device_->step_attention(), nullptr);
  EXPECT_EQ(device_->MakeChannel(ChannelOf(1)).value(), nullptr);
  EXPECT_TRUE(device_->usable());
  EXPECT_TRUE(device_->MakeStepLanes({}).ok());
  ASSERT_TRUE(device_->MakeStepLanes({.lanes = kLanes, .rows_max = kRowsMax}).ok());
  Open();
  const std::vector<StepRow> rows = RowsOf(sequences);
  ASSERT_TRUE(steps().BeginStep(0, rows).ok());
  const Exchange exchange = ExchangeOf(0, 1, /*layer=*/0, rows);
  Enqueue(exchange);
  Send(exchange);
  ExpectReply(exchange);
}

TEST_F(KvStepAttentionTest, StepsBeyondTheTablesDoNotFit) {
  std::vector<Sequence> sequences(1);
  Prompt(sequences[0], 20);
  const std::vector<StepRow> rows = RowsOf(sequences);
  const std::vector<StepRow> as_many(kRowsMax, rows[0]);
  const std::vector<StepRow> more(kRowsMax + 1, rows[0]);
  std::vector<Extent> scattered(kSlots + 2 * kRowsMax + 1, Extent{.first_slot = 0, .tokens = 1});
  const StepRow torn = {.extents = scattered, .position = 10};
  const StepRow deep = {.extents = rows[0].extents, .position = 1u << 20};

  EXPECT_TRUE(steps().Fits({}));
  EXPECT_TRUE(steps().Fits(as_many));
  EXPECT_FALSE(steps().Fits(more));
  EXPECT_FALSE(steps().Fits({&torn, 1}));
  EXPECT_FALSE(steps().Fits({&deep, 1}));
}

}  // namespace
}  // namespace lamina::kernels::cuda
