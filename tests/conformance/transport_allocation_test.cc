// SPDX-License-Identifier: Apache-2.0
//
// Conformance: Put, Progress and Wait do not allocate while they succeed.
//
// Method: this program's operator new counts what each thread asks for. C libraries below a backend
// call malloc(), which is theirs and is not counted. Builds with a sanitizer leave this file out:
// they have an operator new of their own.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <thread>

#include "common/check.h"
#include "tests/conformance/transport_test.h"

namespace {

thread_local uint64_t allocated = 0;  // Calls of operator new by this thread.

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocated;
  void* const memory = std::malloc(bytes);
  LAMINA_CHECK(memory != nullptr);
  return memory;
}

[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocated;
  void* memory = nullptr;
  LAMINA_CHECK(posix_memalign(&memory, static_cast<std::size_t>(alignment), bytes) == 0);
  return memory;
}

[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace lamina::transport {
namespace {

constexpr size_t kBytes = 10'000;
// The first rounds may allocate: libraries make some of what they need when it is first used.
constexpr uint64_t kFirstRounds = 50;

// Puts and sees each Put come, by one thread that drives both ends.
bool PutInTurn(const Link& link, absl::Span<const std::byte> source, uint64_t from, uint64_t to) {
  for (uint64_t value = from; value <= to; ++value) {
    const SignalUpdate signal = Signal(0, value);
    const std::array come = {SignalCondition{.word = 0, .at_least = value}};
    if (!link.Put(0, source, &signal).ok() || !link.Await(0, value) ||
        !link.receiver->Wait(*link.region, come, {.deadline = Soon()}).ok()) {
      return false;
    }
    for (const Nanos deadline = Soon(); link.sender->Pending(*link.remote) > 0;) {
      if (RealClock().Now() >= deadline) {
        return false;
      }
      link.sender->Progress();
      link.receiver->Progress();
    }
  }
  return true;
}

TEST_P(TransportTest, NothingIsAllocatedWhileMessagesFlow) {
  if (GetParam().name.starts_with("fake")) {
    GTEST_SKIP() << "fake:// allocates on the data path (fake_network.h)";
  }
  const uint64_t rounds = Repeats(1000);
  const Link link = MakeLink(kBytes, 1);
  const absl::Span<std::byte> source = MakeSource(*link.sender, kBytes, 12);
  ASSERT_TRUE(PutInTurn(link, source, 1, kFirstRounds));

  const uint64_t before = allocated;
  const bool flowed = PutInTurn(link, source, kFirstRounds + 1, kFirstRounds + rounds);
  const uint64_t counted = allocated - before;

  ASSERT_TRUE(flowed);
  EXPECT_EQ(counted, 0u) << "in " << rounds << " rounds";
}

// One of two ends that raise a word of each other in turn, each in a thread of its own.
struct End {
  Transport& transport;
  const Region& own;
  RemoteRegion& remote;
  absl::Span<const std::byte> source;
  bool begins;

  bool Put(uint64_t value) const {
    const SignalUpdate signal = Signal(0, value);
    return PutAll(transport, remote, 0, source, &signal).ok();
  }
  bool Wait(uint64_t value) const {
    const std::array come = {SignalCondition{.word = 0, .at_least = value}};
    return transport.Wait(own, come, {.deadline = Soon()}).ok();
  }
  bool TakeTurns(uint64_t from, uint64_t to) const {
    for (uint64_t value = from; value <= to; ++value) {
      if (begins ? !Put(value) || !Wait(value) : !Wait(value) || !Put(value)) {
        return false;
      }
    }
    return true;
  }
};

// Takes turns; `counted` becomes what the later ones allocated.
bool TakeTurnsAndCount(const End& end, uint64_t rounds, uint64_t& counted) {
  if (!end.TakeTurns(1, kFirstRounds)) {
    return false;
  }
  const uint64_t before = allocated;
  const bool taken = end.TakeTurns(kFirstRounds + 1, kFirstRounds + rounds);
  counted = allocated - before;
  return taken;
}

TEST_P(TransportTest, NothingIsAllocatedByThreadsThatWaitForEachOther) {
  const std::string& name = GetParam().name;
  if (name.starts_with("fake")) {
    GTEST_SKIP() << "fake:// allocates on the data path (fake_network.h)";
  }
  if (name == "throttle" || name == "fault") {
    GTEST_SKIP() << "while something is late at a decorated link its Wait consists of short ones "
                    "below, which end by their deadlines, each with an error's message";
  }
  const uint64_t rounds = Repeats(1000);
  const Link link = MakeLink(kBytes, 1);
  const auto acks = MakeRegion(*link.sender, 0, 1);
  const auto remote_acks = Open(*link.receiver, *acks);
  const End first = {.transport = *link.sender,
                     .own = *acks,
                     .remote = *link.remote,
                     .source = MakeSource(*link.sender, kBytes, 13),
                     .begins = true};
  const End second = {.transport = *link.receiver,
                      .own = *link.region,
                      .remote = *remote_acks,
                      .source = {},
                      .begins = false};
  uint64_t counted_first = 0;
  bool taken_first = false;
  std::jthread sender([&] { taken_first = TakeTurnsAndCount(first, rounds, counted_first); });

  uint64_t counted_second = 0;
  const bool taken_second = TakeTurnsAndCount(second, rounds, counted_second);
  // Some backends need the sender of the last message to drive it out.
  for (const Nanos deadline = Soon();
       acks->LoadSignal(0) < kFirstRounds + rounds && RealClock().Now() < deadline;) {
    link.receiver->Progress();
  }
  sender.join();

  ASSERT_TRUE(taken_first && taken_second);
  EXPECT_EQ(counted_first, 0u) << "in " << rounds << " rounds";
  EXPECT_EQ(counted_second, 0u) << "in " << rounds << " rounds";
}

}  // namespace
}  // namespace lamina::transport
