// SPDX-License-Identifier: Apache-2.0
//
// Outboxes of fake://, whose puts come late and disordered. The device is a thread, or the test's
// own, that writes and raises plainly.
#include "transport/outbox/outboxes.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/fake/fake_network.h"

namespace lamina::transport {
namespace {

constexpr size_t kPieceBytes = 256;
constexpr uint32_t kWords = 3;

// Goes on by one at each reading.
class CountingClock final : public Clock {
 public:
  Nanos Now() const override { return readings_.fetch_add(1) + 1; }
  Nanos readings() const { return readings_.load(); }

 private:
  mutable std::atomic<Nanos> readings_{0};
};

class OutboxesTest : public testing::Test {
 protected:
  std::unique_ptr<RegionOutbox> Open() {
    auto opened = outboxes_.Open(region_->Descriptor(), 7);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  // Each word has two pieces of the bytes, which its values use in turn.
  static OutboxSend SendOf(uint32_t word, uint64_t value) {
    return {.offset = (word * 2 + value % 2) * kPieceBytes,
            .bytes = kPieceBytes,
            .word = word,
            .value = value};
  }
  static void Write(const DirectMemory& memory, const OutboxSend& send) {
    std::fill_n(memory.bytes.data() + send.offset, send.bytes, static_cast<std::byte>(send.value));
  }
  static void Raise(const DirectMemory& memory, const OutboxSend& send) {
    auto* const word = reinterpret_cast<uint64_t*>(memory.words + send.word * memory.word_stride);
    __atomic_store_n(word, send.value, __ATOMIC_RELEASE);
  }
  static void WriteAndRaise(const DirectMemory& memory, const OutboxSend& send) {
    Write(memory, send);
    Raise(memory, send);
  }

  bool Await(uint32_t word, uint64_t value) const {
    for (const Nanos end = RealClock().Now() + Seconds(30); RealClock().Now() < end;) {
      if (region_->LoadSignal(word) >= value) {
        return true;
      }
      receiver_->Progress();
      std::this_thread::yield();
    }
    return false;
  }
  void ExpectCame(const OutboxSend& send) {
    ASSERT_TRUE(Await(send.word, send.value)) << send.word << " := " << send.value;
    EXPECT_THAT(region_->bytes().subspan(send.offset, send.bytes),
                testing::Each(static_cast<std::byte>(send.value)));
  }
  // More steps than anything takes.
  void ExpectNothingBeyond(uint32_t word, uint64_t value) {
    for (int step = 0; step < 200; ++step) {
      receiver_->Progress();
    }
    EXPECT_EQ(region_->LoadSignal(word), value);
  }

  FakeNetwork network_{{.seed = 3, .delay_steps_max = 6, .shows_memory = true}};
  const std::unique_ptr<Transport> receiver_ = network_.MakeTransport();
  std::unique_ptr<Region> region_ = receiver_
                                        ->CreateRegion({.name = "windows",
                                                        .bytes = 2 * kWords * kPieceBytes,
                                                        .signal_words = kWords,
                                                        .epoch = 7})
                                        .value();
  CountingClock clock_;
  Outboxes outboxes_{network_.MakeTransport(), clock_};
};

std::optional<OutboxTimes> AwaitTimes(RegionOutbox& outbox) {
  std::optional<OutboxTimes> times;
  for (const Nanos end = RealClock().Now() + Seconds(30);
       !times.has_value() && RealClock().Now() < end;) {
    times = outbox.TakeTimes();
    std::this_thread::yield();
  }
  return times;
}

TEST_F(OutboxesTest, TellsBetweenWhichMomentsASendWasRaisedPostedAndComplete) {
  const auto outbox = Open();
  outbox->NoteTimes(true);
  for (const uint64_t value : {1, 2, 3}) {
    const Nanos announced = clock_.Now();
    ASSERT_TRUE(outbox->Announce(SendOf(1, value)).ok());
    const Nanos raised = clock_.Now();
    WriteAndRaise(outbox->memory(), SendOf(1, value));
    const Nanos after = clock_.Now();
    ExpectCame(SendOf(1, value));

    const std::optional<OutboxTimes> times = AwaitTimes(*outbox);

    ASSERT_TRUE(times.has_value());
    EXPECT_EQ(times->word, 1u);
    EXPECT_EQ(times->value, value);
    EXPECT_EQ(times->bytes, kPieceBytes);
    EXPECT_GT(times->unraised, announced);
    EXPECT_LT(times->unraised, after);
    EXPECT_GT(times->posted, raised);
    EXPECT_GT(times->complete, times->posted);
    EXPECT_LT(times->complete, clock_.Now());
  }
}

TEST_F(OutboxesTest, AWordThatIsLookedAtWasNotRaisedUntilThen) {
  const auto outbox = Open();
  outbox->NoteTimes(true);
  ASSERT_TRUE(outbox->Announce(SendOf(1, 1)).ok());
  const Nanos announced = clock_.Now();
  while (clock_.readings() < announced + 20) {  // The proxy's, at each look.
    std::this_thread::yield();
  }

  WriteAndRaise(outbox->memory(), SendOf(1, 1));

  const std::optional<OutboxTimes> times = AwaitTimes(*outbox);
  ASSERT_TRUE(times.has_value());
  EXPECT_GT(times->unraised, announced);
}

TEST_F(OutboxesTest, TellsNoTimesOfWhatWasAnnouncedBeforeTheyWereWanted) {
  const auto outbox = Open();
  ASSERT_TRUE(outbox->Announce(SendOf(1, 1)).ok());
  outbox->NoteTimes(true);
  ASSERT_TRUE(outbox->Announce(SendOf(1, 2)).ok());
  WriteAndRaise(outbox->memory(), SendOf(1, 1));
  WriteAndRaise(outbox->memory(), SendOf(1, 2));

  const std::optional<OutboxTimes> times = AwaitTimes(*outbox);

  ASSERT_TRUE(times.has_value());
  EXPECT_EQ(times->value, 2u);
  outbox->NoteTimes(false);
  ASSERT_TRUE(outbox->Announce(SendOf(1, 3)).ok());
  WriteAndRaise(outbox->memory(), SendOf(1, 3));
  ExpectCame(SendOf(1, 3));
  outbox->Forget();  // The proxy has stood still: nothing is on its way.
  EXPECT_FALSE(outbox->TakeTimes().has_value());
}

TEST_F(OutboxesTest, WhatTheDeviceRaisesComesAndNothingElse) {
  const auto outbox = Open();
  const DirectMemory memory = outbox->memory();
  ASSERT_EQ(memory.bytes.size(), region_->bytes().size());
  ASSERT_EQ(memory.outbox, outbox.get());
  ASSERT_TRUE(outbox->Announce(SendOf(0, 5)).ok());
  ASSERT_TRUE(outbox->Announce(SendOf(2, 3)).ok());

  WriteAndRaise(memory, SendOf(2, 3));

  ExpectCame(SendOf(2, 3));
  ExpectNothingBeyond(0, 0);
  WriteAndRaise(memory, SendOf(0, 5));
  ExpectCame(SendOf(0, 5));
}

TEST_F(OutboxesTest, ManyRoundsOfLanesSideBySide) {
  constexpr uint64_t kRounds = 200;
  const auto outbox = Open();
  const DirectMemory memory = outbox->memory();
  std::vector<std::atomic<uint64_t>> announced(kWords);
  std::vector<std::atomic<uint64_t>> seen(kWords);
  std::vector<std::jthread> lanes;
  for (uint32_t word = 0; word < kWords; ++word) {
    lanes.emplace_back([&, word] {
      for (uint64_t round = 1; round <= kRounds; ++round) {
        while (announced[word].load() < round || seen[word].load() + 2 < round) {
          std::this_thread::yield();
        }
        WriteAndRaise(memory, SendOf(word, round));
      }
    });
  }

  for (uint64_t round = 1; round <= kRounds; ++round) {
    for (uint32_t word = 0; word < kWords; ++word) {
      ASSERT_TRUE(outbox->Announce(SendOf(word, round)).ok());
      announced[word].store(round);
    }
    for (uint32_t word = 0; word < kWords; ++word) {
      ExpectCame(SendOf(word, round));
      seen[word].store(round);
    }
  }
}

TEST_F(OutboxesTest, SeveralOutboxesHaveOneProxy) {
  const auto other =
      receiver_
          ->CreateRegion(
              {.name = "others", .bytes = kPieceBytes * 2, .signal_words = 1, .epoch = 7})
          .value();
  const auto outbox = Open();
  auto second = outboxes_.Open(other->Descriptor(), 7).value();
  for (const uint64_t value : {1, 2, 3}) {
    ASSERT_TRUE(outbox->Announce(SendOf(1, value)).ok());
    ASSERT_TRUE(second->Announce(SendOf(0, value)).ok());
    WriteAndRaise(second->memory(), SendOf(0, value));
    WriteAndRaise(outbox->memory(), SendOf(1, value));
    ExpectCame(SendOf(1, value));
    while (other->LoadSignal(0) < value) {
      receiver_->Progress();
    }
  }
  second.reset();
  ASSERT_TRUE(outbox->Announce(SendOf(1, 4)).ok());
  WriteAndRaise(outbox->memory(), SendOf(1, 4));
  ExpectCame(SendOf(1, 4));
}

TEST_F(OutboxesTest, WhatWasRaisedLeavesBeforeTheRestIsForgotten) {
  const auto outbox = Open();
  ASSERT_TRUE(outbox->Announce(SendOf(1, 1)).ok());
  ASSERT_TRUE(outbox->Announce(SendOf(1, 2)).ok());
  ASSERT_TRUE(outbox->Announce(SendOf(1, 3)).ok());
  WriteAndRaise(outbox->memory(), SendOf(1, 1));

  outbox->Forget();

  ExpectCame(SendOf(1, 1));
  ExpectNothingBeyond(1, 1);
  ASSERT_TRUE(outbox->Announce(SendOf(1, 2)).ok()) << "as if it had not been announced";
  WriteAndRaise(outbox->memory(), SendOf(1, 2));
  ExpectCame(SendOf(1, 2));
}

TEST_F(OutboxesTest, RefusesMoreSendsOfAWordThanItHasRoomFor) {
  const auto outbox = Open();
  for (uint64_t value = 1; value <= kOutboxSendsMax; ++value) {
    ASSERT_TRUE(outbox->Announce(SendOf(0, value)).ok());
  }

  EXPECT_TRUE(absl::IsResourceExhausted(outbox->Announce(SendOf(0, kOutboxSendsMax + 1))));
  EXPECT_TRUE(outbox->Announce(SendOf(1, 1)).ok());

  for (uint64_t value = 1; value <= 2; ++value) {
    WriteAndRaise(outbox->memory(), SendOf(0, value));
    ExpectCame(SendOf(0, value));
  }
  EXPECT_TRUE(outbox->Announce(SendOf(0, kOutboxSendsMax + 1)).ok());
}

TEST_F(OutboxesTest, RefusesWhatLiesOutsideAndValuesThatDoNotGrow) {
  const auto outbox = Open();
  const size_t bytes = region_->bytes().size();
  const std::vector<OutboxSend> wrong = {{.bytes = bytes + 1, .word = 0, .value = 1},
                                         {.offset = bytes, .bytes = 1, .word = 0, .value = 1},
                                         {.offset = SIZE_MAX, .bytes = 2, .word = 0, .value = 1},
                                         {.bytes = 1, .word = kWords, .value = 1},
                                         {.bytes = 1, .word = 0, .value = 0}};
  for (const OutboxSend& send : wrong) {
    EXPECT_TRUE(absl::IsInvalidArgument(outbox->Announce(send)));
  }
  ASSERT_TRUE(outbox->Announce(SendOf(0, 4)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(outbox->Announce(SendOf(0, 4))));
}

TEST_F(OutboxesTest, APeerThatIsGoneIsToldAtALaterSend) {
  const auto outbox = Open();
  ASSERT_TRUE(outbox->Announce(SendOf(0, 1)).ok());
  region_.reset();

  WriteAndRaise(outbox->memory(), SendOf(0, 1));

  absl::Status announced;
  const Nanos end = RealClock().Now() + Seconds(30);
  for (uint64_t value = 1; !absl::IsUnavailable(announced) && RealClock().Now() < end;) {
    announced = outbox->Announce(SendOf(1, value + 1));
    value += announced.ok() ? 1 : 0;
    std::this_thread::yield();
  }
  EXPECT_TRUE(absl::IsUnavailable(announced)) << announced;
}

TEST_F(OutboxesTest, NoneIsOpenedForAnotherEpochForTooManyWordsOrWhereMemoryIsNotShown) {
  EXPECT_TRUE(absl::IsAborted(outboxes_.Open(region_->Descriptor(), 8).status()));

  const auto wide =
      receiver_->CreateRegion({.name = "wide", .signal_words = kOutboxWordsMax + 1}).value();
  EXPECT_TRUE(absl::IsInvalidArgument(outboxes_.Open(wide->Descriptor(), 0).status()));

  FakeNetwork hides({.seed = 3});
  const auto receiver = hides.MakeTransport();
  const auto region = receiver->CreateRegion({.name = "r", .bytes = 64, .signal_words = 1}).value();
  Outboxes outboxes(hides.MakeTransport());
  const absl::Status refused = outboxes.Open(region->Descriptor(), 0).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
}

}  // namespace
}  // namespace lamina::transport
