// SPDX-License-Identifier: Apache-2.0
//
// Conformance: bytes arrive whole, and signals promise what they promise.
#include <algorithm>
#include <array>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/conformance/transport_test.h"

namespace lamina::transport {
namespace {

testing::AssertionResult Equal(absl::Span<const std::byte> a, absl::Span<const std::byte> b) {
  if (a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin())) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << kNeverRetried;
}

TEST_P(TransportTest, RegionStartsZeroedAlignedAndUnraised) {
  const auto transport = Make();

  const auto region = MakeRegion(*transport, 5000, 3);

  EXPECT_EQ(region->bytes().size(), 5000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region->bytes().data()) % 64, 0u);
  const auto seen = Arrived(*region);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](std::byte b) { return b == std::byte{0}; }));
  ASSERT_EQ(region->signal_words(), 3u);
  for (uint32_t word = 0; word < 3; ++word) {
    EXPECT_EQ(region->LoadSignal(word), 0u);
  }
}

TEST_P(TransportTest, RemoteRegionKnowsItsSize) {
  const Link link = MakeLink(5000, 3);

  EXPECT_EQ(link.remote->size_bytes(), 5000u);
  EXPECT_EQ(link.remote->signal_words(), 3u);
}

TEST_P(TransportTest, RegionsWithoutBytesOrWithoutWordsWork) {
  const Link words_only = MakeLink(0, 1);
  const SignalUpdate signal = Signal(0, 1);
  ASSERT_TRUE(words_only.Put(0, {}, &signal).ok());
  EXPECT_TRUE(words_only.Await(0, 1));

  const Link bytes_only = MakeLink(64, 0);
  EXPECT_TRUE(bytes_only.Put(0, MakeSource(*bytes_only.sender, 64, 1), nullptr).ok());
}

TEST_P(TransportTest, EmptyPutWithSignalOnlyRaisesIt) {
  const Link link = MakeLink(64, 2);
  const SignalUpdate signal = Signal(1, 9);

  ASSERT_TRUE(link.Put(64, {}, &signal).ok());

  ASSERT_TRUE(link.Await(1, 9));
  EXPECT_EQ(link.region->LoadSignal(1), 9u);
  EXPECT_EQ(link.region->LoadSignal(0), 0u);
}

TEST_P(TransportTest, EmptyPutWithoutSignalDoesNothing) {
  const Link link = MakeLink(64, 1);

  EXPECT_TRUE(link.Put(0, {}, nullptr).ok());
  EXPECT_TRUE(link.Put(64, {}, nullptr).ok());
}

TEST_P(TransportTest, SignalsTakeTheLargestValue) {
  const Link link = MakeLink(0, 1);
  const SignalUpdate signal = Signal(0, UINT64_MAX);

  ASSERT_TRUE(link.Put(0, {}, &signal).ok());

  EXPECT_TRUE(link.Await(0, UINT64_MAX));
}

TEST_P(TransportTest, CarriesOneByteTo64MiB) {
  constexpr size_t kLargest = size_t{64} << 20;
  const Link link = MakeLink(kLargest, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, kLargest, 3);
  uint64_t value = 0;
  for (const size_t size : {size_t{1}, size_t{7}, size_t{64}, size_t{4095}, size_t{4097},
                            size_t{1} << 16, (size_t{1} << 20) + 3, kLargest}) {
    SCOPED_TRACE(size);
    const SignalUpdate signal = Signal(0, ++value);

    ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, source.first(size), &signal).ok());

    ASSERT_TRUE(link.Await(0, value));
    ASSERT_TRUE(Equal(Arrived(*link.region, 0, size), Seen(source.first(size))));
  }
}

TEST_P(TransportTest, UnalignedPutsTouchNothingElse) {
  constexpr size_t kBytes = 1000;
  const Link link = MakeLink(kBytes, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, kBytes, 4);
  Prng prng(5);
  std::vector<std::byte> expected(kBytes);
  for (uint64_t round = 1; round <= 500; ++round) {
    const size_t size = prng.Below(300);
    const size_t from = prng.Below(kBytes - size);
    const size_t to = prng.Below(kBytes - size);
    std::copy_n(Seen(source).begin() + from, size, expected.begin() + to);
    const SignalUpdate signal = Signal(0, round);

    ASSERT_TRUE(link.Put(to, source.subspan(from, size), &signal).ok());

    ASSERT_TRUE(link.Await(0, round));
    ASSERT_TRUE(Equal(Arrived(*link.region), expected)) << "round " << round;
  }
}

TEST_P(TransportTest, SourceInsideAnOwnRegionNeedsNoRegistration) {
  const Link link = MakeLink(64, 1);
  const auto own = MakeRegion(*link.sender, 64, 1);
  std::fill(Seen(own->bytes()).begin(), Seen(own->bytes()).end(), std::byte{5});
  const SignalUpdate signal = Signal(0, 1);

  ASSERT_TRUE(link.Put(0, own->bytes(), &signal).ok());

  ASSERT_TRUE(link.Await(0, 1));
  EXPECT_TRUE(Equal(Arrived(*link.region), Seen(own->bytes())));
}

// Puts each source, registered before, to the front of one region, and sees it arrive.
class FrontOfRegion {
 public:
  explicit FrontOfRegion(const Link& link) : link_(link) {}

  void Put(absl::Span<std::byte> source) {
    const SignalUpdate signal = Signal(0, ++round_);
    ASSERT_TRUE(link_.Put(0, source, &signal).ok());
    ASSERT_TRUE(link_.Await(0, round_));
    ASSERT_TRUE(Equal(Arrived(*link_.region, 0, source.size()), Seen(source)));
  }

 private:
  const Link& link_;
  uint64_t round_ = 0;
};

constexpr size_t kOffsets = 64;

TEST_P(TransportTest, SourcesMayLieAtAnyOffset) {
  constexpr size_t kBytes = 64;
  const Link link = MakeLink(2 * kBytes, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, kOffsets + 2 * kBytes, 11);
  FrontOfRegion front(link);
  for (size_t offset = 0; offset < kOffsets; ++offset) {
    SCOPED_TRACE(offset);
    front.Put(source.subspan(offset, kBytes + offset % 7));
    front.Put(source.subspan(offset, 1));
  }
}

// What is registered begins and ends anywhere, and lies in what is registered already.
TEST_P(TransportTest, RegistrationsMayLieAtAnyOffsetAndInEachOther) {
  if (kind() == MemoryKind::kDevice) {
    GTEST_SKIP() << "memory of a device is registered in whole allocations";
  }
  constexpr size_t kBytes = 64;
  const Link link = MakeLink(2 * kBytes, 1);
  std::vector<std::byte> memory(4 * kOffsets + 2 * kBytes);
  const auto all = absl::MakeSpan(memory);
  FrontOfRegion front(link);
  for (size_t offset = 0; offset < kOffsets; ++offset) {
    SCOPED_TRACE(offset);
    const auto source = all.subspan(kOffsets + offset, kBytes + offset % 7);
    source[0] = static_cast<std::byte>(offset + 1);
    ASSERT_TRUE(link.sender->RegisterSource(source, MemoryKind::kHost).ok());
    front.Put(source);
    front.Put(source.last(1));
  }
  ASSERT_TRUE(link.sender->RegisterSource(all, MemoryKind::kHost).ok());
  front.Put(all.first(2 * kBytes));
  front.Put(all.last(2 * kBytes));
  const auto inner = all.subspan(8, kBytes);
  ASSERT_TRUE(link.sender->RegisterSource(inner, MemoryKind::kHost).ok());
  front.Put(inner);
  front.Put(all.first(2 * kBytes));
}

TEST_P(TransportTest, SourceMayBeOverwrittenOncePendingIsZero) {
  const Link link = MakeLink(64, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, 64, 6);
  const absl::Span<std::byte> seen = Seen(source);
  for (uint64_t round = 1; round <= 200; ++round) {
    std::fill(seen.begin(), seen.end(), static_cast<std::byte>(round));
    const SignalUpdate signal = Signal(0, round);
    ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, source, &signal).ok());
    for (const Nanos deadline = Soon(); link.sender->Pending(*link.remote) > 0;) {
      ASSERT_LT(RealClock().Now(), deadline);
      link.sender->Progress();
      link.receiver->Progress();
    }

    std::fill(seen.begin(), seen.end(), std::byte{0xee});

    ASSERT_TRUE(link.Await(0, round));
    ASSERT_EQ(Arrived(*link.region)[63], static_cast<std::byte>(round)) << kNeverRetried;
    ASSERT_EQ(Arrived(*link.region)[0], static_cast<std::byte>(round)) << kNeverRetried;
  }
}

// What one view has under way is none of another's, and a signal by either covers both.
TEST_P(TransportTest, ViewsOfOneRegionCountTheirOwnPuts) {
  constexpr uint64_t kPuts = 16;
  constexpr size_t kSlot = 4096;
  const Link link = MakeLink(kPuts * kSlot, 2);
  const auto other = Open(*link.sender, *link.region);
  const absl::Span<std::byte> source = MakeSource(*link.sender, kPuts * kSlot, 12);
  for (uint64_t i = 0; i < kPuts; ++i) {
    const SignalUpdate own = Signal(1, i + 1);
    ASSERT_TRUE(
        PutAll(*link.sender, *other, i * kSlot, source.subspan(i * kSlot, kSlot), &own).ok());
    EXPECT_EQ(link.sender->Pending(*link.remote), 0u);
  }
  const SignalUpdate covering = Signal(0, 1);
  ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, {}, &covering).ok());

  ASSERT_TRUE(link.Await(0, 1));
  EXPECT_TRUE(Equal(Arrived(*link.region), Seen(source))) << kNeverRetried;
  ASSERT_TRUE(link.Await(1, kPuts));
  for (const Nanos deadline = Soon(); link.sender->Pending(*other) > 0;) {
    ASSERT_LT(RealClock().Now(), deadline);
    link.sender->Progress();
    link.receiver->Progress();
  }
}

TEST_P(TransportTest, DestroyedRemoteRegionReadsNoSourceAnyMore) {
  Link link = MakeLink(64, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, 64, 7);
  const absl::Span<std::byte> seen = Seen(source);
  const std::vector<std::byte> sent(seen.begin(), seen.end());
  const SignalUpdate signal = Signal(0, 1);
  ASSERT_TRUE(link.Put(0, source, &signal).ok());

  link.remote.reset();
  std::fill(seen.begin(), seen.end(), std::byte{0});
  for (int i = 0; i < 100; ++i) {
    link.sender->Progress();
    link.receiver->Progress();
  }

  if (link.region->LoadSignal(0) == 1) {
    EXPECT_TRUE(Equal(Arrived(*link.region), sent));
  }
}

// In all tests below two threads run: the receiver looks while the sender writes.

TEST_P(TransportTest, DataIsVisibleBeforeItsSignal) {
  const uint64_t messages = Repeats(3000);
  constexpr size_t kBytes = 4096;
  const Link link = MakeLink(kBytes, 1);
  const auto acks = MakeRegion(*link.sender, 0, 1);
  const auto remote_acks = Open(*link.receiver, *acks);
  const absl::Span<std::byte> source = MakeSource(*link.sender, kBytes, 8);
  const absl::Span<std::byte> seen = Seen(source);
  std::jthread sender([&] {
    for (uint64_t value = 1; value <= messages; ++value) {
      std::fill(seen.begin(), seen.end(), static_cast<std::byte>(value * 37));
      const SignalUpdate signal = Signal(0, value);
      ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, source, &signal).ok());
      const std::array ack = {SignalCondition{.word = 0, .at_least = value}};
      ASSERT_TRUE(link.sender->Wait(*acks, ack, {.deadline = Soon()}).ok());
    }
  });

  for (uint64_t value = 1; value <= messages; ++value) {
    const std::array come = {SignalCondition{.word = 0, .at_least = value}};
    ASSERT_TRUE(link.receiver->Wait(*link.region, come, {.deadline = Soon()}).ok());
    const auto expected = static_cast<std::byte>(value * 37);
    const auto bytes = Arrived(*link.region);
    ASSERT_EQ(std::count(bytes.begin(), bytes.end(), expected), static_cast<long>(kBytes))
        << kNeverRetried;
    const SignalUpdate ack = Signal(0, value);
    ASSERT_TRUE(PutAll(*link.receiver, *remote_acks, 0, {}, &ack).ok());
  }
  // Some backends need the sender of the last message to drive it out.
  for (const Nanos deadline = Soon();
       acks->LoadSignal(0) < messages && RealClock().Now() < deadline;) {
    link.receiver->Progress();
  }
  sender.join();
}

// Data in a device's memory is landed by the region, and no other device uses it by itself.
TEST_P(TransportTest, RegionsOfADeviceAloneSayHowTheyAreReached) {
  const Link link = MakeLink(64, 1);

  const bool on_device = kind() == MemoryKind::kDevice;
  EXPECT_EQ(link.region->device() != nullptr, on_device);
  EXPECT_EQ(link.region->memory().path == MemoryPath::kHost, !on_device);
  EXPECT_TRUE(!on_device || link.region->direct().empty());
}

// Slots of 64 bytes are filled in any order; nothing is reused.
TEST_P(TransportTest, SignalCoversAllEarlierPutsToThatPeer) {
  constexpr uint64_t kPuts = 2000;
  constexpr size_t kSlot = 64;
  const Link link = MakeLink(kPuts * kSlot, 1);
  const auto second = MakeRegion(*link.receiver, kPuts * kSlot, 2);
  const auto remote_second = Open(*link.sender, *second);
  const absl::Span<std::byte> source = MakeSource(*link.sender, kPuts * kSlot, 9);
  std::jthread sender([&] {
    Prng prng(10);
    uint64_t of_second = 0;
    for (uint64_t i = 0; i < kPuts; ++i) {
      const SignalUpdate own = Signal(1, ++of_second);
      const bool to_second = prng.Chance(0.5);
      RemoteRegion& target = to_second ? *remote_second : *link.remote;
      const bool with_own = to_second && prng.Chance(0.5);
      ASSERT_TRUE(PutAll(*link.sender, target, i * kSlot, source.subspan(i * kSlot, kSlot),
                         with_own ? &own : nullptr)
                      .ok());
      if (i % 10 == 9) {
        const SignalUpdate covering = Signal(0, i + 1);
        ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, {}, &covering).ok());
      }
    }
    while (link.sender->Pending(*link.remote) + link.sender->Pending(*remote_second) > 0) {
      link.sender->Progress();
    }
  });

  for (uint64_t covered = 10; covered <= kPuts; covered += 10) {
    const std::array come = {SignalCondition{.word = 0, .at_least = covered}};
    ASSERT_TRUE(link.receiver->Wait(*link.region, come, {.deadline = Soon()}).ok());
    for (uint64_t i = covered - 10; i < covered; ++i) {
      const auto expected = Seen(source.subspan(i * kSlot, kSlot));
      const bool here = Equal(Arrived(*link.region, i * kSlot, kSlot), expected);
      const bool there = Equal(Arrived(*second, i * kSlot, kSlot), expected);
      ASSERT_TRUE(here || there) << kNeverRetried << ": put " << i << ", covered " << covered;
    }
  }
  sender.join();
}

TEST_P(TransportTest, WordThatShowsAValueStandsForAllUpToIt) {
  constexpr uint64_t kPuts = 3000;
  const Link link = MakeLink(kPuts * 8, 1);
  std::vector<uint64_t> values(kPuts);
  std::iota(values.begin(), values.end(), 1);
  const auto source =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), kPuts * 8);
  ASSERT_TRUE(link.sender->RegisterSource(source, MemoryKind::kHost).ok());
  std::jthread sender([&] {
    for (uint64_t i = 0; i < kPuts; ++i) {
      const SignalUpdate signal = Signal(0, i + 1);
      ASSERT_TRUE(
          PutAll(*link.sender, *link.remote, i * 8, source.subspan(i * 8, 8), &signal).ok());
    }
    while (link.sender->Pending(*link.remote) > 0) {
      link.sender->Progress();
    }
  });

  uint64_t seen = 0;
  for (const Nanos deadline = Soon(); seen < kPuts;) {
    ASSERT_LT(RealClock().Now(), deadline);
    link.receiver->Progress();
    const uint64_t now = link.region->LoadSignal(0);
    ASSERT_GE(now, seen) << "a signal went back";
    const absl::Span<std::byte> come = Arrived(*link.region, seen * 8, (now - seen) * 8);
    const auto* arrived = reinterpret_cast<const uint64_t*>(come.data());
    for (uint64_t i = seen; i < now; ++i) {
      ASSERT_EQ(arrived[i - seen], i + 1) << kNeverRetried;
    }
    seen = now;
  }
  sender.join();
}

TEST_P(TransportTest, ManyPeersWriteOneRegionEachItsOwnPart) {
  const uint32_t peers = ManyPeers();
  constexpr size_t kPart = 129;
  constexpr uint64_t kRounds = 20;
  const auto receiver = Make();
  const auto region = MakeRegion(*receiver, peers * kPart, peers);
  std::vector<std::unique_ptr<Transport>> senders;
  std::vector<std::unique_ptr<RemoteRegion>> remotes;
  std::vector<absl::Span<std::byte>> sources;
  for (uint32_t peer = 0; peer < peers; ++peer) {
    senders.push_back(Make());
    remotes.push_back(Open(*senders.back(), *region));
    sources.push_back(MakeSource(*senders.back(), kPart, peer));
  }
  std::jthread all_senders([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      for (uint32_t peer = 0; peer < peers; ++peer) {
        const SignalUpdate signal = Signal(peer, round);
        ASSERT_TRUE(
            PutAll(*senders[peer], *remotes[peer], peer * kPart, sources[peer], &signal).ok());
      }
    }
    for (uint32_t peer = 0; peer < peers; ++peer) {
      while (senders[peer]->Pending(*remotes[peer]) > 0) {
        senders[peer]->Progress();
      }
    }
  });

  for (uint32_t peer = 0; peer < peers; ++peer) {
    const std::array come = {SignalCondition{.word = peer, .at_least = kRounds}};
    ASSERT_TRUE(receiver->Wait(*region, come, {.deadline = Soon()}).ok());
    EXPECT_TRUE(Equal(Arrived(*region, peer * kPart, kPart), Seen(sources[peer])));
  }
  all_senders.join();
}

TEST_P(TransportTest, FullQueueRefusesAndNothingIsLost) {
  const Link link = MakeLink(8, 1);
  const uint64_t puts =
      std::min<uint64_t>(2 * uint64_t{link.sender->capabilities().in_flight_max}, 5000);
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < puts; ++i) {
    const SignalUpdate signal = Signal(0, accepted + 1);
    const absl::Status status = link.Put(0, {}, &signal);
    accepted += status.ok() ? 1 : 0;
    ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }
  ASSERT_TRUE(link.Await(0, accepted));
  EXPECT_EQ(link.region->LoadSignal(0), accepted) << "a refused put raised its signal";

  const SignalUpdate signal = Signal(0, accepted + 1);
  ASSERT_TRUE(PutAll(*link.sender, *link.remote, 0, {}, &signal).ok());

  EXPECT_TRUE(link.Await(0, accepted + 1));
}

}  // namespace
}  // namespace lamina::transport
