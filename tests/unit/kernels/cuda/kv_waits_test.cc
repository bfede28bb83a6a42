// SPDX-License-Identifier: Apache-2.0
//
// Units that a device serves by itself against those that the processor drives, bit for bit; data
// that comes late, is wrong, or never comes.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "common/philox.h"
#include "tests/unit/kernels/cuda/kv_waits_fixture.h"

namespace lamina::kernels::cuda {
namespace {

void BusyPause(Nanos duration) {
  for (const Nanos end = RealClock().Now() + duration; RealClock().Now() < end;) {
  }
}

// All lanes at once, each with its own peer, whose data comes when it likes.
TEST_F(KvWaitsTest, UnitsOfAllLanesHaveTheBitsOfTheProcessorsWay) {
  constexpr uint64_t kSteps = 2;
  ASSERT_TRUE(Open().ok());
  const std::vector<std::vector<uint32_t>> prompts = {
      {5}, {255, 1, 600}, {256, 257, 17, 90, 100, 101, 2, 31, 700}};
  std::vector<std::vector<Sequence>> sequences(kLanes);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (const uint32_t tokens : prompts[lane]) {
      Prompt(sequences[lane].emplace_back(), tokens);
    }
  }
  for (uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<std::vector<WaitingRow>> rows;
    std::vector<std::vector<Exchange>> exchanges(kLanes);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      rows.push_back(RowsOf(sequences[lane]));
      ASSERT_TRUE(waits().Fits(rows[lane]));
      for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
        exchanges[lane].push_back(ExchangeOf(lane, step, layer, rows[lane]));
      }
    }
    // Before anything has come.
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      ASSERT_TRUE(waits().BeginStep(lane, rows[lane]).ok());
      for (const Exchange& exchange : exchanges[lane]) {
        ASSERT_TRUE(waits().Launch(lane, UnitOf(lane, exchange.stamp)).ok());
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
      for (uint32_t unit = 0; unit < layers_.size(); ++unit) {
        const UnitState state = Outcome(lane, unit);
        EXPECT_EQ(state.outcome, WaitOutcome::kOk);
        EXPECT_GE(state.nanos, 0);
        EXPECT_LT(state.nanos, kLong);
      }
      EXPECT_TRUE(waits().Check(lane).ok());
    }
    peer.join();
  }
  waits().Close();
  EXPECT_TRUE(device_->usable());
}

// What the device has stored by itself is there for the processor's way, and the reverse.
TEST_F(KvWaitsTest, StepsOfBothWaysTakeTurns) {
  ASSERT_TRUE(Open().ok());
  std::vector<Sequence> sequences(2);
  Prompt(sequences[0], 300);
  Prompt(sequences[1], 7);
  for (uint64_t step = 1; step <= 4; ++step) {
    const std::vector<WaitingRow> rows = RowsOf(sequences);
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      const Exchange exchange = ExchangeOf(0, step, layer, rows);
      if (step % 2 == 0) {
        if (layer == 0) {
          ASSERT_TRUE(waits().BeginStep(0, rows).ok());
        }
        ASSERT_TRUE(waits().Launch(0, UnitOf(0, exchange.stamp)).ok());
        Send(exchange);
        ExpectReply(exchange);
        EXPECT_EQ(Outcome(0, layer).outcome, WaitOutcome::kOk);
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

class KvWaitsFailureTest : public KvWaitsTest {
 protected:
  void SetUp() override {
    KvWaitsTest::SetUp();
    sequences_.resize(1);
    Prompt(sequences_[0], 20);
    rows_ = RowsOf(sequences_);
    for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
      exchanges_.push_back(ExchangeOf(1, 1, layer, rows_));
    }
  }

  void LaunchAll() {
    ASSERT_TRUE(waits().BeginStep(1, rows_).ok());
    for (const Exchange& exchange : exchanges_) {
      ASSERT_TRUE(waits().Launch(1, UnitOf(1, exchange.stamp)).ok());
    }
  }

  // The second unit comes with this header; those behind it are silent too.
  WaitOutcome OutcomeOf(const WindowStamp& wrong) {
    LaunchAll();
    Send(exchanges_[0]);
    ExpectReply(exchanges_[0]);
    const uint64_t value = ValueOf(1, 1, layers_.size());
    std::memcpy(queries_->bytes().data() + Window(1, value), &wrong, sizeof(wrong));
    __atomic_store_n(Word(to_queries_->direct(), 1), value, __ATOMIC_RELEASE);
    EXPECT_EQ(Outcome(1, 0).outcome, WaitOutcome::kOk);
    const WaitOutcome outcome = Outcome(1, 1).outcome;
    EXPECT_EQ(Outcome(1, 3).outcome, outcome);
    EXPECT_TRUE(waits().Check(1).ok());
    waits().Close();
    EXPECT_EQ(replies_->LoadSignal(1), ValueOf(1, 0, layers_.size())) << "nothing more was put";
    return outcome;
  }

  std::vector<Sequence> sequences_;
  std::vector<WaitingRow> rows_;
  std::vector<Exchange> exchanges_;
};

TEST_F(KvWaitsFailureTest, AnOlderHeaderIsStaleAndNothingIsPut) {
  ASSERT_TRUE(Open().ok());
  WindowStamp older = exchanges_[1].stamp;
  older.epoch = kEpoch - 1;

  EXPECT_EQ(OutcomeOf(older), WaitOutcome::kStale);
  EXPECT_TRUE(device_->usable());
}

TEST_F(KvWaitsFailureTest, OtherRowsThanPlannedAreAMismatchAndNothingIsPut) {
  ASSERT_TRUE(Open().ok());
  WindowStamp more = exchanges_[1].stamp;
  more.rows = 2;

  EXPECT_EQ(OutcomeOf(more), WaitOutcome::kMismatch);
}

TEST_F(KvWaitsFailureTest, AbortEndsAllWaitsAndTheNextEpochServes) {
  ASSERT_TRUE(Open().ok());
  LaunchAll();
  std::thread stops([this] {
    BusyPause(Millis(2));
    waits().Abort();
  });

  EXPECT_EQ(Outcome(1, 0).outcome, WaitOutcome::kAborted);
  EXPECT_EQ(Outcome(1, 3).outcome, WaitOutcome::kAborted);
  stops.join();
  waits().Close();
  EXPECT_EQ(replies_->LoadSignal(1), 0u);

  ASSERT_TRUE(Open().ok());
  LaunchAll();
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    Send(exchanges_[layer]);
    ExpectReply(exchanges_[layer]);
    EXPECT_EQ(Outcome(1, layer).outcome, WaitOutcome::kOk);
  }
}

TEST_F(KvWaitsFailureTest, ClosingWhileTheDeviceWaitsReturns) {
  ASSERT_TRUE(Open().ok());
  LaunchAll();

  waits().Close();

  EXPECT_EQ(waits().Look(1, 0).outcome, WaitOutcome::kAborted);
  EXPECT_EQ(replies_->LoadSignal(1), 0u);
}

TEST_F(KvWaitsFailureTest, ADeviceThatHearsNothingOfItsWorkerGivesUp) {
  ASSERT_TRUE(Open(/*silence_max=*/Millis(2)).ok());
  LaunchAll();

  UnitState state = waits().Look(1, 0);
  while (state.outcome == WaitOutcome::kPending) {
    std::this_thread::yield();
    state = waits().Look(1, 0);
  }

  EXPECT_EQ(state.outcome, WaitOutcome::kTimeout);
}

TEST_F(KvWaitsFailureTest, StepsBeyondTheTablesDoNotFit) {
  const std::vector<WaitingRow> as_many(kRowsMax, rows_[0]);
  const std::vector<WaitingRow> more(kRowsMax + 1, rows_[0]);
  std::vector<Extent> scattered(kSlots + 2 * kRowsMax + 1, Extent{.first_slot = 0, .tokens = 1});
  const WaitingRow torn = {.extents = scattered, .position = 10};
  const WaitingRow deep = {.extents = rows_[0].extents, .position = 1u << 20};

  EXPECT_TRUE(waits().Fits({}));
  EXPECT_TRUE(waits().Fits(as_many));
  EXPECT_FALSE(waits().Fits(more));
  EXPECT_FALSE(waits().Fits({&torn, 1}));
  EXPECT_FALSE(waits().Fits({&deep, 1}));
}

}  // namespace
}  // namespace lamina::kernels::cuda
