// SPDX-License-Identifier: Apache-2.0
//
// Conformance between processes: a peer is killed at the worst moments, and comes back.
//
// Method: the peer is a child (tests/support/child_process.h), made before the test makes a
// Transport. The backends are those of transport_process_test.cc and, with CUDA, of
// cuda_process_test.cc.
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/philox.h"
#include "tests/conformance/transport_process_test.h"

namespace lamina::transport {
namespace {

using test_support::Child;
using test_support::Pipe;

constexpr std::array kFirst = {SignalCondition{.word = 0, .at_least = 1}};

// What most children do first: open the region that the parent describes.
struct SenderInChild {
  SenderInChild(std::unique_ptr<Transport> made, const Pipe& pipe) : transport(std::move(made)) {
    EXPECT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());
    auto opened = transport->OpenRegion(pipe.Receive(), 3);
    EXPECT_TRUE(opened.ok()) << opened.status();
    remote = std::move(opened).value();
  }
  std::vector<std::byte> source = Pattern(1 << 16, 1);
  std::unique_ptr<Transport> transport;
  std::unique_ptr<RemoteRegion> remote;
};

// Until the sources are read; some backends move nothing otherwise.
void Drain(const SenderInChild& sender) {
  for (const Nanos deadline = Soon();
       sender.transport->Pending(*sender.remote) > 0 && RealClock().Now() < deadline;) {
    sender.transport->Progress();
  }
}

TEST_P(TransportProcessTest, MessagesCrossProcessesBothWays) {
  const uint64_t rounds = Repeats(2000);
  constexpr size_t kBytes = 10'000;
  Child child("peer", start(), [rounds](const Pipe& pipe) {
    SenderInChild sender(Make(), pipe);
    const auto own = MakeRegion(*sender.transport, kBytes, 1);
    pipe.Send(own->Descriptor());
    for (uint64_t round = 1; round <= rounds; ++round) {
      const std::array come = {SignalCondition{.word = 0, .at_least = round}};
      ASSERT_TRUE(sender.transport->Wait(*own, come, {.deadline = Soon()}).ok());
      const SignalUpdate signal = Signal(0, round);
      // Sent back from where it arrived.
      ASSERT_TRUE(own->Land(0, kBytes).ok());
      ASSERT_TRUE(PutAll(*sender.transport, *sender.remote, 0, own->bytes(), &signal).ok());
    }
    Drain(sender);
    pipe.Receive();
  });
  const auto transport = Make();
  const auto region = MakeRegion(*transport, kBytes, 1);
  child.pipe_to().Send(region->Descriptor());
  const auto remote = Open(*transport, child.pipe_to().Receive());
  std::vector<std::byte> source(kBytes);
  ASSERT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());

  for (uint64_t round = 1; round <= rounds; ++round) {
    std::fill(source.begin(), source.end(), static_cast<std::byte>(round * 41));
    const SignalUpdate signal = Signal(0, round);
    ASSERT_TRUE(PutAll(*transport, *remote, 0, source, &signal).ok());
    const std::array come = {SignalCondition{.word = 0, .at_least = round}};
    ASSERT_TRUE(transport->Wait(*region, come, {.deadline = Soon()}).ok());
    ASSERT_TRUE(source == Arrived(*region)) << kNeverRetried;
  }

  child.pipe_to().Send("done");
  EXPECT_TRUE(child.ExitedWell());
}

TEST_P(TransportProcessTest, PeerKilledBetweenPutAndSignalEndsInTheDeadlineOrUnavailable) {
  Child child("peer", start(), [](const Pipe& pipe) {
    const SenderInChild sender(Make(), pipe);
    pipe.Send(PutAll(*sender.transport, *sender.remote, 0, sender.source, nullptr).ToString());
    pause();
  });
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 1 << 16, 1);
  child.pipe_to().Send(region->Descriptor());
  ASSERT_EQ(child.pipe_to().Receive(), absl::OkStatus().ToString());

  child.Kill();

  const auto result =
      transport->Wait(*region, kFirst, {.deadline = RealClock().Now() + Millis(20)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status()) || absl::IsUnavailable(result.status()))
      << result.status();
  EXPECT_EQ(region->LoadSignal(0), 0u);
}

TEST_P(TransportProcessTest, AnotherPeerUsesTheRegionAfterTheFirstWasKilled) {
  Child first("first", start(), [](const Pipe& pipe) {
    const SenderInChild sender(Make(), pipe);
    pipe.Send("ready");
    for (uint64_t value = 1;; ++value) {
      const SignalUpdate signal = Signal(0, value);
      if (!PutAll(*sender.transport, *sender.remote, 0, sender.source, &signal).ok()) {
        pause();
      }
    }
  });
  Child second("second", start(), [](const Pipe& pipe) {
    const SenderInChild sender(Make(), pipe);
    const SignalUpdate signal = Signal(1, 1);
    EXPECT_TRUE(PutAll(*sender.transport, *sender.remote, 0, sender.source, &signal).ok());
    Drain(sender);
    pipe.Receive();
  });
  const auto transport = Make();
  const auto region = MakeRegion(*transport, 1 << 16, 2);
  first.pipe_to().Send(region->Descriptor());
  ASSERT_EQ(first.pipe_to().Receive(), "ready");
  ASSERT_TRUE(transport->Wait(*region, kFirst, {.deadline = Soon()}).ok());
  first.Kill();

  second.pipe_to().Send(region->Descriptor());
  const std::array come = {SignalCondition{.word = 1, .at_least = 1}};

  ASSERT_TRUE(transport->Wait(*region, come, {.deadline = Soon()}).ok());
  EXPECT_TRUE(Arrived(*region) == Pattern(1 << 16, 1)) << kNeverRetried;
  second.pipe_to().Send("done");
  EXPECT_TRUE(second.ExitedWell());
}

// It is killed while it puts, waits asleep, or does both, and nothing here may crash or hang.
TEST_P(TransportProcessTest, PeerKilledAtRandomMomentsHarmsNobody) {
  Prng prng(15);
  for (uint64_t round = Repeats(30); round > 0; --round) {
    Child child("peer", start(), [](const Pipe& pipe) {
      const SenderInChild sender(Make(), pipe);
      const auto own = MakeRegion(*sender.transport, 1 << 16, 1);
      pipe.Send(own->Descriptor());
      for (uint64_t value = 1;; ++value) {
        const SignalUpdate signal = Signal(0, value);
        if (!PutAll(*sender.transport, *sender.remote, 0, sender.source, &signal).ok()) {
          pause();
        }
        const std::array come = {SignalCondition{.word = 0, .at_least = value}};
        static_cast<void>(
            sender.transport->Wait(*own, come, {.deadline = RealClock().Now() + Millis(2)}));
      }
    });
    const auto transport = Make();
    const auto region = MakeRegion(*transport, 1 << 16, 1);
    child.pipe_to().Send(region->Descriptor());
    const std::string descriptor = child.pipe_to().Receive();
    const auto remote = Open(*transport, descriptor);
    const std::vector<std::byte> source = Pattern(1 << 16, 2);
    ASSERT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());
    ASSERT_TRUE(transport->Wait(*region, kFirst, {.deadline = Soon()}).ok());

    const uint64_t killed_after = prng.Below(200);
    for (uint64_t value = 1; value <= killed_after + 200; ++value) {
      if (value == killed_after) {
        child.Kill();
      }
      const SignalUpdate signal = Signal(0, value);
      const absl::Status status = transport->Put(*remote, 0, source, &signal);
      ASSERT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsResourceExhausted(status))
          << status;
      transport->Progress();
    }
    child.Kill();
    // What it had sent may still come, and then nothing more.
    for (bool more = true; more;) {
      const std::array come = {SignalCondition{.word = 0, .at_least = region->LoadSignal(0) + 1}};
      more = transport->Wait(*region, come, {.deadline = RealClock().Now() + Millis(2)}).ok();
    }
    EXPECT_TRUE(absl::IsUnavailable(transport->OpenRegion(descriptor, 3).status()));
  }
}

TEST_P(TransportProcessTest, PeerRestartedUnderTheSameNameNeedsANewDescriptor) {
  const Child::Body receive = [](const Pipe& pipe) {
    ASSERT_EQ(pipe.Receive(), "start");
    const auto own_transport = Make();
    const auto own = MakeRegion(*own_transport, 64, 1);
    pipe.Send(own->Descriptor());
    ASSERT_TRUE(own_transport->Wait(*own, kFirst, {.deadline = Soon()}).ok());
    pipe.Send("come");
    pipe.Receive();
  };
  Child first("first", start(), receive);
  Child second("second", start(), receive);
  const auto transport = Make();
  const std::vector<std::byte> source = Pattern(64, 3);
  ASSERT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());
  first.pipe_to().Send("start");
  const std::string old_descriptor = first.pipe_to().Receive();
  const auto old_remote = Open(*transport, old_descriptor);
  first.Kill();

  second.pipe_to().Send("start");
  const std::string descriptor = second.pipe_to().Receive();

  EXPECT_TRUE(absl::IsUnavailable(transport->OpenRegion(old_descriptor, 3).status()));
  EXPECT_NE(descriptor, old_descriptor);
  const auto remote = Open(*transport, descriptor);
  const SignalUpdate signal = Signal(0, 1);
  const absl::Status to_the_dead = transport->Put(*old_remote, 0, source, &signal);
  EXPECT_TRUE(to_the_dead.ok() || absl::IsUnavailable(to_the_dead)) << to_the_dead;
  EXPECT_TRUE(PutAll(*transport, *remote, 0, source, &signal).ok());
  for (const Nanos deadline = Soon();
       transport->Pending(*remote) > 0 && RealClock().Now() < deadline;) {
    transport->Progress();
  }
  EXPECT_EQ(second.pipe_to().Receive(), "come");
  second.pipe_to().Send("done");
  EXPECT_TRUE(second.ExitedWell());
}

TEST_P(TransportProcessTest, PeerThatDestroyedItsRegionIsUnavailable) {
  Child child("peer", start(), [](const Pipe& pipe) {
    const auto own_transport = Make();
    auto own = MakeRegion(*own_transport, 64, 1);
    pipe.Send(own->Descriptor());
    EXPECT_EQ(pipe.Receive(), "opened");
    own.reset();
    pipe.Send("destroyed");
    pipe.Receive();
  });
  const auto transport = Make();
  const auto remote = Open(*transport, child.pipe_to().Receive());
  child.pipe_to().Send("opened");
  ASSERT_EQ(child.pipe_to().Receive(), "destroyed");

  absl::Status status;
  uint64_t value = 0;
  for (const Nanos deadline = Soon(); status.ok() && RealClock().Now() < deadline;) {
    const SignalUpdate signal = Signal(0, ++value);
    status = PutAll(*transport, *remote, 0, {}, &signal);
  }

  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  child.pipe_to().Send("done");
  EXPECT_TRUE(child.ExitedWell());
}

TEST_P(TransportProcessTest, WindowIsReachedAsItSaysAndSourcesLieWhereItDoes) {
  constexpr size_t kBytes = 100'000;
  Child child("peer", start(), [](const Pipe& pipe) {
    SenderInChild sender(Make(), pipe);
    const auto source = MakeRegion(*sender.transport, kBytes, 0);
    Fill(*source, Pattern(kBytes, 5));
    const SignalUpdate signal = Signal(0, 1);
    EXPECT_TRUE(
        PutAll(*sender.transport, *sender.remote, 7, source->bytes().first(kBytes - 7), &signal)
            .ok());
    Drain(sender);
    pipe.Receive();
  });
  const auto transport = Make();
  const auto region = MakeRegion(*transport, kBytes, 1);
  child.pipe_to().Send(region->Descriptor());
  ASSERT_TRUE(transport->Wait(*region, kFirst, {.deadline = Soon()}).ok());

  std::vector<std::byte> expected = Pattern(kBytes, 5);
  std::rotate(expected.rbegin(), expected.rbegin() + 7, expected.rend());
  std::fill_n(expected.begin(), 7, std::byte{0});
  EXPECT_TRUE(Arrived(*region) == expected) << kNeverRetried;
  EXPECT_EQ(region->memory().path, GetParam().memory) << DescribeMemory(region->memory());
  child.pipe_to().Send("done");
  EXPECT_TRUE(child.ExitedWell());
}

// Drivers give the next window the addresses of the last one, or its handle.
TEST_P(TransportProcessTest, WindowsMadeAnewGetWhatIsPutToThem) {
  const uint64_t rounds = Repeats(20);
  Child child("peer", start(), [rounds](const Pipe& pipe) {
    const auto own_transport = Make();
    for (uint64_t round = 1; round <= rounds; ++round) {
      const auto own = MakeRegion(*own_transport, 5000, 1);
      EXPECT_TRUE(Arrived(*own) == std::vector<std::byte>(5000));
      pipe.Send(own->Descriptor());
      ASSERT_TRUE(own_transport->Wait(*own, kFirst, {.deadline = Soon()}).ok());
      EXPECT_TRUE(Arrived(*own) == Pattern(5000, round)) << kNeverRetried;
    }
    pipe.Send("done");
    pipe.Receive();
  });
  const auto transport = Make();
  std::unique_ptr<RemoteRegion> before;
  std::vector<std::byte> source(5000);
  ASSERT_TRUE(transport->RegisterSource(source, MemoryKind::kHost).ok());

  for (uint64_t round = 1; round <= rounds; ++round) {
    auto remote = Open(*transport, child.pipe_to().Receive());
    const std::vector<std::byte> pattern = Pattern(5000, round);
    std::copy(pattern.begin(), pattern.end(), source.begin());
    const SignalUpdate signal = Signal(0, 1);
    ASSERT_TRUE(PutAll(*transport, *remote, 0, source, &signal).ok());
    for (const Nanos deadline = Soon();
         transport->Pending(*remote) > 0 && RealClock().Now() < deadline;) {
      transport->Progress();
    }
    // Every other one stays open until the next one is there.
    before = round % 2 == 0 ? nullptr : std::move(remote);
  }

  EXPECT_EQ(child.pipe_to().Receive(), "done");
  child.pipe_to().Send("done");
  EXPECT_TRUE(child.ExitedWell());
}

}  // namespace
}  // namespace lamina::transport
