// SPDX-License-Identifier: Apache-2.0
//
// Waits and signals of a stream. The other side is a thread of the host that writes pinned memory.

#include <gtest/gtest.h>

#include <cstddef>
#include <thread>
#include <vector>

#include "kernels/cuda/wait.h"
#include "plan/window_layout.h"
#include "tests/unit/kernels/cuda/device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kLong = 60'000'000'000;  // Nanoseconds; only a failure waits for it.
constexpr uint64_t kShort = 2'000'000;

TEST(WindowStampTest, LiesAsTheWindowHeaderDoes) {
  using Header = plan::WindowHeader;
  EXPECT_EQ(offsetof(WindowStamp, magic), offsetof(Header, magic));
  EXPECT_EQ(offsetof(WindowStamp, lane), offsetof(Header, lane));
  EXPECT_EQ(offsetof(WindowStamp, epoch), offsetof(Header, epoch));
  EXPECT_EQ(offsetof(WindowStamp, step), offsetof(Header, step));
  EXPECT_EQ(offsetof(WindowStamp, layer), offsetof(Header, layer));
  EXPECT_EQ(offsetof(WindowStamp, rows), offsetof(Header, rows));
  EXPECT_EQ(offsetof(WindowStamp, kv_rows), offsetof(Header, kv_rows));
  EXPECT_EQ(offsetof(WindowStamp, sender), offsetof(Header, sender));
}

class WaitTest : public DeviceTest {
 protected:
  // What both sides see, in pinned memory.
  struct Words {
    alignas(64) uint64_t signal;
    alignas(64) uint64_t answer;
    alignas(64) uint64_t heartbeat;
    alignas(64) uint32_t abort;
    alignas(64) WaitRecord record;
    alignas(64) WindowStamp window;
    alignas(64) uint64_t payload[32];
    alignas(64) uint64_t echo[32];
  };

  void SetUp() override {
    DeviceTest::SetUp();
    auto words = pinned_->Take<Words>(1);
    ASSERT_TRUE(words.ok());
    words_ = new (*words) Words{};
  }

  WaitRequest Request(uint64_t at_least, uint64_t timeout_nanos) {
    return {.signal = &words_->signal,
            .at_least = at_least,
            .timeout_nanos = timeout_nanos,
            .abort = &words_->abort,
            .record = &words_->record,
            .sequence = ++sequence_};
  }

  // Launches the wait and the answer behind it, and waits until both are through.
  WaitOutcome Run(const WaitRequest& request) {
    EXPECT_TRUE(WaitForWindow(request, stream()).ok());
    EXPECT_TRUE(
        RaiseSignal(
            {.signal = &words_->answer, .value = request.at_least, .record = &words_->record},
            stream())
            .ok());
    const absl::Status status = stream().Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(words_->record.sequence, request.sequence);
    return static_cast<WaitOutcome>(words_->record.outcome);
  }

  static void Store(uint64_t* word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }
  static uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

  Words* words_ = nullptr;
  uint64_t sequence_ = 0;
};

TEST_F(WaitTest, ASignalThatIsThereLetsTheStreamGoOn) {
  words_->signal = 7;

  EXPECT_EQ(Run(Request(5, kLong)), WaitOutcome::kOk);
  EXPECT_EQ(words_->record.signal, 7u);
  EXPECT_EQ(words_->answer, 5u);
}

TEST_F(WaitTest, LateDataArrivesInTime) {
  std::thread sender([this] { Store(&words_->signal, 1); });

  EXPECT_EQ(Run(Request(1, kLong)), WaitOutcome::kOk);
  sender.join();
  EXPECT_EQ(words_->answer, 1u);
}

TEST_F(WaitTest, DataThatNeverComesIsATimeoutWithoutAnAnswer) {
  EXPECT_EQ(Run(Request(1, kShort)), WaitOutcome::kTimeout);
  EXPECT_EQ(words_->answer, 0u);
}

TEST_F(WaitTest, TheAbortWordEndsAWait) {
  std::thread operator_thread([this] { __atomic_store_n(&words_->abort, 1u, __ATOMIC_RELEASE); });

  EXPECT_EQ(Run(Request(1, kLong)), WaitOutcome::kAborted);
  operator_thread.join();
  EXPECT_EQ(words_->answer, 0u);
}

TEST_F(WaitTest, AfterAFailureTheWaitsBehindItEndAtOnce) {
  EXPECT_EQ(Run(Request(1, kShort)), WaitOutcome::kTimeout);
  Store(&words_->signal, 2);

  EXPECT_EQ(Run(Request(2, kLong)), WaitOutcome::kTimeout);
  EXPECT_EQ(words_->answer, 0u);

  words_->record = {};
  EXPECT_EQ(Run(Request(2, kLong)), WaitOutcome::kOk);
  EXPECT_EQ(words_->answer, 2u);
}

TEST_F(WaitTest, HeadersOfAnOlderEpochOrUnitAreStale) {
  const WindowStamp expected = {.magic = 9, .lane = 1, .epoch = 4, .step = 20, .layer = 3};
  words_->signal = 100;
  const auto outcome = [&](const WindowStamp& got) {
    words_->record = {};
    words_->window = got;
    WaitRequest request = Request(100, kLong);
    request.window = &words_->window;
    request.expected = expected;
    return Run(request);
  };
  WindowStamp older_epoch = expected;
  older_epoch.epoch = 3;
  older_epoch.step = 99;
  WindowStamp older_step = expected;
  older_step.step = 19;
  older_step.layer = 9;
  WindowStamp older_layer = expected;
  older_layer.layer = 2;
  WindowStamp newer = expected;
  newer.layer = 4;
  WindowStamp other_rows = expected;
  other_rows.rows = 1;
  WindowStamp garbage = expected;
  garbage.magic = 1;

  EXPECT_EQ(outcome(expected), WaitOutcome::kOk);
  EXPECT_EQ(outcome(older_epoch), WaitOutcome::kStale);
  EXPECT_EQ(outcome(older_step), WaitOutcome::kStale);
  EXPECT_EQ(outcome(older_layer), WaitOutcome::kStale);
  EXPECT_EQ(outcome(newer), WaitOutcome::kMismatch);
  EXPECT_EQ(outcome(other_rows), WaitOutcome::kMismatch);
  EXPECT_EQ(outcome(garbage), WaitOutcome::kMismatch);
}

TEST_F(WaitTest, ThousandsOfRoundsCarryTheirBytes) {
  constexpr uint64_t kRounds = 2000;
  std::thread peer([this] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      for (uint64_t& word : words_->payload) {
        word = round;
      }
      Store(&words_->signal, round);
      while (Load(&words_->answer) < round &&
             __atomic_load_n(&words_->record.failed, __ATOMIC_ACQUIRE) == 0) {
        std::this_thread::yield();
      }
      for (const uint64_t word : words_->echo) {
        EXPECT_EQ(word, round);
      }
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    ASSERT_TRUE(WaitForWindow(Request(round, kLong), stream()).ok());
    ASSERT_TRUE(PutBytes({.to = words_->echo,
                          .from = words_->payload,
                          .bytes = sizeof(words_->echo),
                          .record = &words_->record},
                         stream())
                    .ok());
    ASSERT_TRUE(RaiseSignal({.signal = &words_->answer, .value = round, .record = &words_->record},
                            stream())
                    .ok());
  }
  const absl::Status status = stream().Synchronize();
  peer.join();

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(words_->answer, kRounds);
}

TEST_F(WaitTest, RefusesWhatHasNoBoundOrNoPlace) {
  WaitRequest no_deadline = Request(1, 0);
  WaitRequest no_abort = Request(1, kLong);
  no_abort.abort = nullptr;
  const PutRequest crooked = {.to = words_->echo + 1, .from = words_->payload, .bytes = 16};

  EXPECT_EQ(WaitForWindow(no_deadline, stream()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WaitForWindow(no_abort, stream()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PutBytes(crooked, stream()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RaiseSignal({}, stream()).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::kernels::cuda
