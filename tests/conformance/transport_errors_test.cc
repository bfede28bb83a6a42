// SPDX-License-Identifier: Apache-2.0
//
// Conformance: every promised error, and that nothing was sent with it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/conformance/transport_test.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Whether anything of the region changed.
bool Untouched(const Link& link) {
  for (int i = 0; i < 20; ++i) {
    link.sender->Progress();
    link.receiver->Progress();
  }
  bool clean = true;
  for (uint32_t word = 0; word < link.region->signal_words(); ++word) {
    clean = clean && link.region->LoadSignal(word) == 0;
  }
  const auto bytes = Arrived(*link.region);
  return clean && std::all_of(bytes.begin(), bytes.end(),
                              [](std::byte byte) { return byte == std::byte{0}; });
}

TEST_P(TransportTest, PutOutsideTheTargetIsInvalid) {
  const Link link = MakeLink(100, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, 200, 1);
  const SignalUpdate signal = Signal(0, 1);
  struct Range {
    size_t offset;
    size_t size;
  };
  for (const Range range : {Range{0, 101}, Range{1, 100}, Range{100, 1}, Range{101, 0},
                            Range{SIZE_MAX, 1}, Range{SIZE_MAX - 10, 100}, Range{SIZE_MAX, 0}}) {
    const absl::Status status = link.Put(range.offset, source.first(range.size), &signal);

    EXPECT_TRUE(absl::IsInvalidArgument(status)) << range.offset << "+" << range.size << status;
  }
  EXPECT_TRUE(Untouched(link));
}

TEST_P(TransportTest, PutLargerThanTheLimitIsInvalid) {
  const Link link = MakeLink(100, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, 64, 1);
  const size_t size = link.sender->capabilities().put_bytes_max + 1;

  // Refused by its size alone: nothing behind the 64 bytes may be read.
  const absl::Status status = link.Put(0, absl::MakeConstSpan(source.data(), size), nullptr);

  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(Untouched(link));
}

// A backend that needs no registration may take it; then it arrives whole.
TEST_P(TransportTest, UnregisteredSourceIsInvalidOrArrivesWhole) {
  const Link link = MakeLink(64, 1);
  const std::vector<std::byte> source = Pattern(64, 9);
  const SignalUpdate signal = Signal(0, 1);

  const absl::Status status = link.Put(0, source, &signal);

  if (status.ok()) {
    ASSERT_TRUE(link.Await(0, 1));
    EXPECT_TRUE(std::equal(source.begin(), source.end(), Arrived(*link.region).begin()));
  } else {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(Untouched(link));
  }
}

TEST_P(TransportTest, SignalWordThatTheTargetLacksIsInvalid) {
  const Link link = MakeLink(64, 2);
  const absl::Span<std::byte> source = MakeSource(*link.sender, 64, 1);
  for (const uint32_t word : {2u, 3u, UINT32_MAX}) {
    const SignalUpdate signal = Signal(word, 1);

    EXPECT_TRUE(absl::IsInvalidArgument(link.Put(0, source, &signal))) << word;
  }
  EXPECT_TRUE(Untouched(link));
}

TEST_P(TransportTest, SignalValueThatDoesNotGrowIsInvalid) {
  const Link link = MakeLink(64, 1);
  const SignalUpdate zero = Signal(0, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(link.Put(0, {}, &zero)));
  const SignalUpdate five = Signal(0, 5);
  ASSERT_TRUE(link.Put(0, {}, &five).ok());
  for (const uint64_t value : {uint64_t{5}, uint64_t{4}, uint64_t{1}}) {
    const SignalUpdate signal = Signal(0, value);

    EXPECT_TRUE(absl::IsInvalidArgument(link.Put(0, {}, &signal))) << value;
  }
  ASSERT_TRUE(link.Await(0, 5));
  EXPECT_EQ(link.region->LoadSignal(0), 5u);
}

TEST_P(TransportTest, RegionOfNothingIsInvalid) {
  const auto transport = Make();

  const auto region = transport->CreateRegion({.name = "void"});

  EXPECT_TRUE(absl::IsInvalidArgument(region.status()));
  EXPECT_THAT(Message(region.status()), HasSubstr("void"));
}

TEST_P(TransportTest, RegionOfTooManyWordsIsInvalid) {
  const auto transport = Make();

  const auto region = transport->CreateRegion({.name = "wordy", .signal_words = (1u << 20) + 1});

  EXPECT_TRUE(absl::IsInvalidArgument(region.status())) << region.status();
}

TEST_P(TransportTest, DeviceMemoryIsInvalidWhereTheBackendLacksIt) {
  const auto transport = Make();
  if (!transport->capabilities().device_memory) {
    const auto region =
        transport->CreateRegion({.name = "gpu", .bytes = 64, .kind = MemoryKind::kDevice});
    EXPECT_TRUE(absl::IsInvalidArgument(region.status()));
  }
  if (!transport->capabilities().device_sources) {
    EXPECT_TRUE(absl::IsInvalidArgument(transport->RegisterSource({}, MemoryKind::kDevice)));
  }
}

TEST_P(TransportTest, MoreMemoryThanTheHostHasIsResourceExhausted) {
  const auto transport = Make();
  for (const size_t bytes : {size_t{1} << 44, size_t{1} << 50, SIZE_MAX}) {
    const auto region = transport->CreateRegion({.name = "huge", .bytes = bytes});

    ASSERT_TRUE(absl::IsResourceExhausted(region.status())) << region.status();
    EXPECT_THAT(Message(region.status()), HasSubstr("huge"));
    EXPECT_THAT(Message(region.status()), HasSubstr("iB"));
  }
}

TEST_P(TransportTest, DescriptorOfAnotherEpochIsAborted) {
  const auto owner = Make();
  const auto peer = Make();
  const auto region = MakeRegion(*owner, 64, 1, /*epoch=*/7);
  for (const uint64_t epoch : {uint64_t{6}, uint64_t{8}, uint64_t{0}}) {
    const auto remote = peer->OpenRegion(region->Descriptor(), epoch);

    EXPECT_TRUE(absl::IsAborted(remote.status())) << remote.status();
    EXPECT_THAT(Message(remote.status()), HasSubstr("epoch 7"));
  }
}

TEST_P(TransportTest, DescriptorOfADestroyedRegionIsUnavailable) {
  const auto owner = Make();
  const auto peer = Make();
  auto region = MakeRegion(*owner, 64, 1);
  const std::string descriptor = region->Descriptor();
  region.reset();

  const auto remote = peer->OpenRegion(descriptor, 7);

  EXPECT_TRUE(absl::IsUnavailable(remote.status())) << remote.status();
}

// The new region may get the very resources of the old one: its file number, its address.
TEST_P(TransportTest, OldDescriptorIsUnavailableAfterTheRegionWasMadeAnew) {
  const auto owner = Make();
  const auto peer = Make();
  auto region = MakeRegion(*owner, 64, 1);
  const std::string old_descriptor = region->Descriptor();
  region.reset();
  region = MakeRegion(*owner, 64, 1);

  EXPECT_TRUE(absl::IsUnavailable(peer->OpenRegion(old_descriptor, 7).status()));
  EXPECT_TRUE(peer->OpenRegion(region->Descriptor(), 7).ok());
}

TEST_P(TransportTest, PutToADestroyedRegionIsUnavailableAndStaysSo) {
  Link link = MakeLink(64, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, 64, 1);
  link.region.reset();
  const auto next = MakeRegion(*link.receiver, 64, 1);

  // A backend may need progress to learn of it.
  absl::Status status;
  uint64_t value = 0;
  for (const Nanos deadline = Soon(); status.ok() && RealClock().Now() < deadline;) {
    const SignalUpdate signal = Signal(0, ++value);
    status = PutAll(*link.sender, *link.remote, 0, source, &signal);
    link.receiver->Progress();
  }

  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::IsUnavailable(link.Put(0, source, nullptr)));
  EXPECT_EQ(next->LoadSignal(0), 0u) << "the put landed in another region";
  EXPECT_EQ(Arrived(*next)[0], std::byte{0});
  EXPECT_EQ(link.sender->Pending(*link.remote), 0u);
}

TEST_P(TransportTest, PutsInFlightToADestroyedRegionVanish) {
  Link link = MakeLink(4096, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, 4096, 1);
  for (uint64_t value = 1; value <= 10; ++value) {
    const SignalUpdate signal = Signal(0, value);
    ASSERT_TRUE(link.Put(0, source, &signal).ok());
  }

  link.region.reset();

  for (const Nanos deadline = Soon(); link.sender->Pending(*link.remote) > 0;) {
    ASSERT_LT(RealClock().Now(), deadline);
    link.sender->Progress();
    link.receiver->Progress();
  }
}

TEST_P(TransportTest, DescriptorsOfOtherBackendsAreInvalid) {
  const auto transport = Make();
  for (const std::string& bytes :
       {std::string(), std::string("x"), std::string("LMNA"), std::string("LMNASHM9"),
        std::string("LMNAXXX1") + std::string(72, '\0'), std::string(80, '\0'),
        std::string(1 << 16, 'A')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(transport->OpenRegion(bytes, 7).status()));
  }
}

TEST_P(TransportTest, TruncatedDescriptorsAreInvalid) {
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 64, 1);
  const std::string descriptor = region->Descriptor();
  for (size_t size = 0; size < descriptor.size(); ++size) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(transport->OpenRegion(descriptor.substr(0, size), 7).status()))
        << size;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(transport->OpenRegion(descriptor + "x", 7).status()));
}

TEST_P(TransportTest, MutatedDescriptorsNeverOpen) {
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 64, 1);
  const std::string descriptor = region->Descriptor();
  Prng prng(11);
  for (int i = 0; i < 20000; ++i) {
    std::string mutated = descriptor;
    for (uint64_t edits = 1 + prng.Below(4); edits > 0; --edits) {
      mutated[prng.Below(mutated.size())] ^= static_cast<char>(1 + prng.Below(255));
    }
    if (mutated != descriptor) {
      ASSERT_FALSE(transport->OpenRegion(mutated, 7).ok()) << "mutation " << i;
    }
  }
}

}  // namespace
}  // namespace lamina::transport
