// SPDX-License-Identifier: Apache-2.0
//
// Conformance: Wait wakes for what it waits for, for its deadline and for its abort word.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "tests/conformance/transport_test.h"

namespace lamina::transport {
namespace {

constexpr std::array kOne = {SignalCondition{.word = 0, .at_least = 1}};

void BusyPause(Nanos duration) {
  for (const Nanos end = RealClock().Now() + duration; RealClock().Now() < end;) {
  }
}

TEST_P(TransportTest, WaitEndsAtItsDeadline) {
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 0, 1);
  // Past, within the spinning, and within the sleeping.
  for (const Nanos ahead : {Nanos{-1}, Micros(1), Micros(20), Millis(5)}) {
    const Nanos deadline = RealClock().Now() + ahead;

    const auto result = transport->Wait(*region, kOne, {.deadline = deadline});

    EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
    EXPECT_GE(RealClock().Now(), deadline);
  }
}

TEST_P(TransportTest, ConditionThatHoldsIsReturnedAfterTheDeadlineAndTheAbort) {
  const Link link = MakeLink(0, 1);
  const SignalUpdate signal = Signal(0, 1);
  ASSERT_TRUE(link.Put(0, {}, &signal).ok());
  ASSERT_TRUE(link.Await(0, 1));
  const AbortWord abort{1};

  const auto result = link.receiver->Wait(*link.region, kOne, {.deadline = 0, .abort = &abort});

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*result, 0u);
}

TEST_P(TransportTest, WaitReturnsTheFirstConditionThatHolds) {
  const Link link = MakeLink(0, 64);
  std::vector<SignalCondition> conditions;
  for (uint32_t word = 0; word < 64; ++word) {
    conditions.push_back({.word = word, .at_least = 2});
  }
  const std::array signals = {Signal(9, 1), Signal(40, 2), Signal(50, 3)};
  for (const SignalUpdate& signal : signals) {
    ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, {}, &signal).ok());
    ASSERT_TRUE(link.Await(signal.word, signal.value));
  }

  const auto result = link.receiver->Wait(*link.region, conditions, {.deadline = Soon()});

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*result, 40u);
}

TEST_P(TransportTest, ValueZeroHoldsAtOnce) {
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 0, 1);
  const std::array conditions = {SignalCondition{.word = 0, .at_least = 0}};

  EXPECT_TRUE(transport->Wait(*region, conditions, {.deadline = 0}).ok());
}

TEST_P(TransportTest, NoConditionsPauseUntilTheDeadline) {
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 0, 1);

  const auto result = transport->Wait(*region, {}, {.deadline = RealClock().Now() + Millis(1)});

  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
}

TEST_P(TransportTest, AbortWordRaisedBeforeEndsTheWait) {
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 0, 1);
  const AbortWord abort{1};

  const auto result = transport->Wait(*region, kOne, {.deadline = Soon(), .abort = &abort});

  EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
  EXPECT_EQ(abort.load(), 1u);
}

TEST_P(TransportTest, AbortWordRaisedMeanwhileEndsTheWait) {
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 0, 1);
  for (const Nanos pause : {Nanos{0}, Micros(10), Micros(200), Millis(3)}) {
    AbortWord abort{0};
    std::jthread other([&] {
      BusyPause(pause);
      abort.store(7, std::memory_order_release);
    });

    const auto result = transport->Wait(*region, kOne, {.deadline = Soon(), .abort = &abort});

    EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
    other.join();
  }
}

// Another processor that shares the memory: here a thread with plain stores.
TEST_P(TransportTest, DirectMemoryIsSeenAtTheOtherEndAndWokenForInTime) {
  constexpr size_t kBytes = 5000;
  constexpr uint64_t kRounds = 40;
  Link link = MakeLink(0, 1);
  auto region = link.receiver->CreateRegion({.name = "direct",
                                             .bytes = kBytes,
                                             .signal_words = 3,
                                             .kind = kind(),
                                             .epoch = 7,
                                             .written_by_devices = true});
  ASSERT_TRUE(region.ok()) << region.status();
  link.region = *std::move(region);
  link.remote = Open(*link.sender, *link.region);
  const DirectMemory there = link.remote->direct();
  const DirectMemory here = link.region->direct();
  if (there.empty() || here.empty()) {
    return;  // This backend alone moves its data, or that of one end.
  }
  ASSERT_EQ(there.bytes.size(), kBytes);
  ASSERT_EQ(here.bytes.data(), link.region->bytes().data());
  // What the other end raises is here too, where the memory is shared.
  const DirectMemory& answers = there.outbox == nullptr ? there : here;
  std::jthread device([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      BusyPause(round % 8 == 0 ? Millis(3) : Micros(1));  // Waiters nap now and then.
      if (there.outbox != nullptr) {
        const absl::Status announced =
            there.outbox->Announce({.bytes = kBytes, .word = 2, .value = round});
        EXPECT_TRUE(announced.ok()) << announced;
      }
      std::fill(there.bytes.begin(), there.bytes.end(), static_cast<std::byte>(round));
      auto* const word = reinterpret_cast<uint64_t*>(there.words + 2 * there.word_stride);
      __atomic_store_n(word, round, __ATOMIC_RELEASE);
      const auto* const answer = reinterpret_cast<const uint64_t*>(answers.words);
      while (__atomic_load_n(answer, __ATOMIC_ACQUIRE) < round) {
        std::this_thread::yield();
      }
    }
  });

  for (uint64_t round = 1; round <= kRounds; ++round) {
    const std::array come = {SignalCondition{.word = 2, .at_least = round}};
    const auto result = link.receiver->Wait(*link.region, come, {.deadline = Soon()});
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(link.region->bytes().front(), static_cast<std::byte>(round));
    EXPECT_EQ(link.region->bytes().back(), static_cast<std::byte>(round));
    auto* const answer = reinterpret_cast<uint64_t*>(here.words);
    __atomic_store_n(answer, round, __ATOMIC_RELEASE);
  }
}

TEST_P(TransportTest, WordsRaisedDirectlyGoOnToBeRaisedByPuts) {
  const Link link = MakeLink(64, 2);
  const DirectMemory direct = link.remote->direct();
  if (direct.empty() || direct.outbox != nullptr) {
    return;  // It could not be set up, as above, or is not the peer's.
  }
  const absl::Span<std::byte> source = MakeSource(*link.sender, 64, 1);
  const std::array signals = {Signal(1, 3), Signal(1, 9), Signal(1, 10)};
  ASSERT_TRUE(link.Put(0, source, &signals[0]).ok());

  auto* const word = reinterpret_cast<uint64_t*>(direct.words + direct.word_stride);
  __atomic_store_n(word, uint64_t{9}, __ATOMIC_RELEASE);

  EXPECT_EQ(link.region->LoadSignal(1), 9u);
  EXPECT_TRUE(absl::IsInvalidArgument(link.Put(0, source, &signals[1])));
  EXPECT_EQ(link.region->LoadSignal(1), 9u);
  EXPECT_TRUE(link.Put(0, source, &signals[2]).ok());
  EXPECT_EQ(link.region->LoadSignal(1), 10u);
}

// Words are raised in random order by one peer; the waiter must find every one.
TEST_P(TransportTest, WaitWatchesManyWords) {
  constexpr uint32_t kWords = 64;
  constexpr int kRaises = 2000;
  const Link link = MakeLink(0, kWords);
  std::atomic<bool> all_found = false;
  std::jthread sender([&] {
    Prng prng(12);
    std::array<uint64_t, kWords> values = {};
    for (int i = 0; i < kRaises; ++i) {
      const auto word = static_cast<uint32_t>(prng.Below(kWords));
      const SignalUpdate signal = Signal(word, ++values[word]);
      ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, {}, &signal).ok());
      BusyPause(static_cast<Nanos>(prng.Below(100)) * (prng.Chance(0.02) ? 1000 : 10));
    }
    // Some backends need the sender to drive the last ones out.
    while (!all_found) {
      link.sender->Progress();
    }
  });

  std::vector<SignalCondition> conditions;
  for (uint32_t word = 0; word < kWords; ++word) {
    conditions.push_back({.word = word, .at_least = 1});
  }
  uint64_t found = 0;
  while (found < kRaises) {
    const auto result = link.receiver->Wait(*link.region, conditions, {.deadline = Soon()});
    if (!result.ok()) {
      ADD_FAILURE() << result.status() << " after " << found;
      break;
    }
    const uint64_t value = link.region->LoadSignal(static_cast<uint32_t>(*result));
    found += value - conditions[*result].at_least + 1;
    conditions[*result].at_least = value + 1;
  }
  all_found = true;
  sender.join();
}

// Pauses of random length put the waiter to sleep at every point of its way there.
TEST_P(TransportTest, PingPongWithRandomPausesNeverStops) {
  // Where the target takes part in each Put, a round is a few switches of threads.
  const Link there = MakeLink(0, 1);
  const uint64_t rounds = Repeats(there.sender->capabilities().one_sided ? 100'000 : 3'000);
  const auto back = MakeRegion(*there.sender, 0, 1);
  const auto remote_back = Open(*there.receiver, *back);
  const auto pause = [](Prng& prng) {
    BusyPause(static_cast<Nanos>(prng.Below(1000)) * (prng.Chance(0.01) ? 100 : 0));
  };
  std::atomic<bool> failed = false;
  std::jthread pong([&] {
    Prng prng(13);
    for (uint64_t round = 1; round <= rounds && !failed; ++round) {
      const std::array come = {SignalCondition{.word = 0, .at_least = round}};
      const auto result = there.receiver->Wait(*there.region, come, {.deadline = Soon()});
      pause(prng);
      const SignalUpdate signal = Signal(0, round);
      failed = !result.ok() || !PutAll(*there.receiver, *remote_back, 0, {}, &signal).ok();
    }
    while (!failed && back->LoadSignal(0) < rounds) {
      there.receiver->Progress();
    }
  });

  Prng prng(14);
  for (uint64_t round = 1; round <= rounds && !failed; ++round) {
    pause(prng);
    const SignalUpdate signal = Signal(0, round);
    const std::array come = {SignalCondition{.word = 0, .at_least = round}};
    failed = !PutAll(*there.sender, *there.remote, 0, {}, &signal).ok() ||
             !there.sender->Wait(*back, come, {.deadline = Soon()}).ok();
  }
  pong.join();
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace lamina::transport
