// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/link_model.h"

#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/decorators/decorated_transport.h"
#include "transport/fake/fake_network.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

class ManualClock final : public Clock {
 public:
  Nanos Now() const override { return now; }
  Nanos now = 0;
};

// One sender and one receiver in a fake network, behind `model`.
struct Decorated {
  explicit Decorated(std::unique_ptr<LinkModel> model)
      : sender(Decorate(network.MakeTransport(), std::move(model), clock)),
        receiver(network.MakeTransport()),
        region(*receiver->CreateRegion({.name = "r", .bytes = 1 << 20, .signal_words = 1})),
        remote(*sender->OpenRegion(region->Descriptor(), 0)),
        source(1 << 16, std::byte{7}) {
    EXPECT_TRUE(sender->RegisterSource(source, MemoryKind::kHost).ok());
  }

  absl::Status Put(uint64_t value, size_t bytes) {
    const SignalUpdate signal{.word = 0, .value = value};
    return sender->Put(*remote, 0, absl::MakeConstSpan(source).first(bytes), &signal);
  }

  ManualClock clock;
  FakeNetwork network{FakeNetworkOptions{}};
  std::unique_ptr<Transport> sender;
  std::unique_ptr<Transport> receiver;
  std::unique_ptr<Region> region;
  std::unique_ptr<RemoteRegion> remote;
  std::vector<std::byte> source;
};

// A transport that refuses every Put of bytes once it is told to.
class RefusingTransport final : public Transport {
 public:
  RefusingTransport(std::unique_ptr<Transport> inner, const bool& refuses)
      : inner_(std::move(inner)), refuses_(refuses) {}

  absl::string_view scheme() const override { return inner_->scheme(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) override {
    return inner_->CreateRegion(options);
  }
  absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                           uint64_t epoch) override {
    return inner_->OpenRegion(descriptor, epoch);
  }
  absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) override {
    return inner_->RegisterSource(bytes, kind);
  }
  absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) override {
    return refuses_ && !source.empty() ? absl::InternalError("this link refuses")
                                       : inner_->Put(target, offset, source, signal);
  }
  uint32_t Pending(const RemoteRegion& target) const override { return inner_->Pending(target); }
  uint32_t Progress() override { return inner_->Progress(); }
  absl::StatusOr<size_t> Wait(const Region& region, absl::Span<const SignalCondition> conditions,
                              const WaitOptions& options) override {
    return inner_->Wait(region, conditions, options);
  }

 private:
  const std::unique_ptr<Transport> inner_;
  const bool& refuses_;
};

// What the link below refuses later, nobody is told by the Put: whoever waits for the answer is.
TEST(DecoratedTransportTest, WhatTheLinkBelowRefusesLaterEndsTheWait) {
  for (const bool by_progress : {false, true}) {
    SCOPED_TRACE(by_progress);
    ManualClock clock;
    FakeNetwork network{FakeNetworkOptions{}};
    bool refuses = false;
    const auto sender =
        Decorate(std::make_unique<RefusingTransport>(network.MakeTransport(), refuses),
                 std::make_unique<Throttle>(ThrottleOptions{.latency = Micros(20)}), clock);
    const auto receiver = network.MakeTransport();
    const auto region = *receiver->CreateRegion({.name = "r", .bytes = 64, .signal_words = 1});
    const auto own = *sender->CreateRegion({.name = "own", .bytes = 64, .signal_words = 1});
    const auto remote = *sender->OpenRegion(region->Descriptor(), 0);
    const SignalUpdate signal{.word = 0, .value = 1};
    ASSERT_TRUE(sender->Put(*remote, 0, own->bytes(), &signal).ok());
    refuses = true;
    clock.now = Micros(20);

    if (by_progress) {
      sender->Progress();
    }
    const std::array answer = {SignalCondition{.word = 0, .at_least = 1}};
    const auto waited = sender->Wait(*own, answer, {.deadline = RealClock().Now() + Seconds(60)});

    EXPECT_EQ(waited.status(), absl::InternalError("this link refuses"));
    EXPECT_EQ(sender->Put(*remote, 0, own->bytes(), nullptr), waited.status());
    EXPECT_EQ(sender->Pending(*remote), 0u);
  }
}

TEST(ThrottleTest, KeepsItsRateWithinFivePerCentOverATenthOfASecond) {
  Throttle throttle({.bytes_per_second = MiB(100), .latency = Micros(20), .jitter = Micros(5)});
  Nanos due = 0;
  for (uint64_t sent = 0; sent < MiB(10); sent += 4096) {
    const Nanos next = throttle.Judge(4096, 0).due;
    EXPECT_GE(next, due) << "a put overtook another";
    due = next;
  }
  EXPECT_NEAR(static_cast<double>(due), 0.1 * 1e9, 0.05 * 0.1 * 1e9);
}

TEST(ThrottleTest, PutArrivesWhenItIsDueAndNotBefore) {
  Decorated link(std::make_unique<Throttle>(
      ThrottleOptions{.bytes_per_second = 1'000'000, .latency = Micros(100)}));
  ASSERT_TRUE(link.Put(1, 1000).ok());  // 1 ms on the link, then 0.1 ms.
  EXPECT_EQ(link.sender->Pending(*link.remote), 1u);

  link.clock.now = Micros(1099);
  link.sender->Progress();
  EXPECT_EQ(link.region->LoadSignal(0), 0u);

  link.clock.now = Micros(1100);
  link.sender->Progress();
  EXPECT_EQ(link.region->LoadSignal(0), 1u);
  EXPECT_EQ(link.region->bytes()[999], std::byte{7});
  EXPECT_EQ(link.sender->Pending(*link.remote), 0u);
}

TEST(FaultTest, CutLinkCarriesNothingAnyMore) {
  Decorated link(std::make_unique<Fault>(FaultOptions{.cut = 3}));
  for (uint64_t value = 1; value <= 5; ++value) {
    ASSERT_TRUE(link.Put(value, 10).ok());
    link.sender->Progress();
  }
  EXPECT_EQ(link.region->LoadSignal(0), 2u);
}

TEST(FaultTest, DroppedPutsLeaveNoSignal) {
  Decorated link(std::make_unique<Fault>(FaultOptions{.drop = 1}));
  ASSERT_TRUE(link.Put(1, 10).ok());
  link.sender->Progress();
  EXPECT_EQ(link.region->LoadSignal(0), 0u);
  EXPECT_EQ(link.region->bytes()[0], std::byte{0});
}

TEST(FaultTest, CorruptPutArrivesWithOneBitOfItsHeadFlippedAndTheSourceIsUntouched) {
  Decorated link(std::make_unique<Fault>(FaultOptions{.corrupt = 1}));
  const std::vector<std::byte> before = link.source;
  ASSERT_TRUE(link.Put(1, 100).ok());
  link.sender->Progress();
  ASSERT_EQ(link.region->LoadSignal(0), 1u);
  EXPECT_EQ(link.source, before);
  size_t wrong = 0;
  for (size_t i = 0; i < 100; ++i) {
    if (link.region->bytes()[i] != std::byte{7}) {
      EXPECT_LT(i, 16u);
      EXPECT_EQ(link.region->bytes()[i] ^ std::byte{7}, std::byte{1});
      ++wrong;
    }
  }
  EXPECT_EQ(wrong, 1u);
}

// As many puts under way as fit, to one peer: they leave in order, whatever delays were drawn.
TEST(FaultTest, PutsToOnePeerStayInOrderWhateverDelaysWereDrawn) {
  constexpr uint64_t kPuts = 100;
  Decorated link(std::make_unique<Fault>(FaultOptions{.delay = Micros(10), .seed = 4}));
  for (uint64_t value = 1; value <= kPuts; ++value) {
    const SignalUpdate signal{.word = 0, .value = value};
    ASSERT_TRUE(link.sender->Put(*link.remote, 0, {}, &signal).ok());
  }
  uint64_t seen = 0;
  for (int step = 0; step <= 10; ++step) {
    link.sender->Progress();
    ASSERT_GE(link.region->LoadSignal(0), seen);
    seen = link.region->LoadSignal(0);
    link.clock.now += Micros(1);
  }
  EXPECT_EQ(seen, kPuts);
}

TEST(FaultTest, SignalWaitsForPutsToItsPeerThatWereDelayed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Decorated link(std::make_unique<Fault>(FaultOptions{.delay = Micros(10), .seed = seed}));
    const auto second = *link.receiver->CreateRegion({.name = "b", .bytes = 64, .signal_words = 1});
    const auto to_second = *link.sender->OpenRegion(second->Descriptor(), 0);
    ASSERT_TRUE(
        link.sender->Put(*link.remote, 0, absl::MakeConstSpan(link.source).first(8), nullptr).ok());
    const SignalUpdate signal{.word = 0, .value = 1};
    ASSERT_TRUE(link.sender->Put(*to_second, 0, {}, &signal).ok());
    for (int step = 0; step <= 10; ++step) {
      link.sender->Progress();
      const bool raised = second->LoadSignal(0) == 1;
      ASSERT_TRUE(!raised || link.region->bytes()[7] == std::byte{7}) << "seed " << seed;
      link.clock.now += Micros(1);
    }
    ASSERT_EQ(second->LoadSignal(0), 1u);
  }
}

TEST(FaultTest, SameSeedGivesTheSameFates) {
  Fault one({.delay = Micros(10), .drop = 0.3, .seed = 5});
  Fault other({.delay = Micros(10), .drop = 0.3, .seed = 5});
  for (int i = 0; i < 100; ++i) {
    const PutFate a = one.Judge(1, 0);
    const PutFate b = other.Judge(1, 0);
    EXPECT_EQ(a.due, b.due);
    EXPECT_EQ(a.dropped, b.dropped);
  }
}

// Links with one bus have its bandwidth together.
TEST(LinkModelTest, ABusIsSharedByItsLinks) {
  const std::string options = absl::StrCat("bandwidth=1MB,latency=1ms,bus=links-", getpid());
  const auto one = *MakeLinkModel("throttle", options);
  const auto other = *MakeLinkModel("throttle", options);
  EXPECT_EQ(one->Judge(1000, Seconds(1)).due, Seconds(1) + Millis(2));
  EXPECT_EQ(other->Judge(1000, Seconds(1)).due, Seconds(1) + Millis(3));
  EXPECT_EQ(one->Judge(1000, Seconds(1)).due, Seconds(1) + Millis(4));
}

// A plan has them layer by layer: K and V from one memory node, activations from another, and
// weights of the next layer. A short transfer does not pass a long one of another sender.
TEST(LinkModelTest, WhatSeveralHandOverComesInThatOrder) {
  constexpr uint64_t kKv = 3000;
  constexpr uint64_t kActivations = 500;
  constexpr uint64_t kWeights = 2000;
  constexpr Nanos kStart = Seconds(1);
  constexpr Nanos kLayer = Micros(kKv + kActivations + kWeights);  // A byte takes one.
  constexpr int kLayers = 3;
  const std::string name = absl::StrCat("plan-", getpid());
  const std::string options = absl::StrCat("bandwidth=1MB,bus=", name);
  Decorated kv(*MakeLinkModel("throttle", options));
  Decorated activations(*MakeLinkModel("throttle", options));
  const auto weights = *SharedBus::Open(name, 1'000'000);
  // Signals of both receivers at a time.
  const auto come_by = [&](Nanos now) {
    for (Decorated* const link : {&kv, &activations}) {
      link->clock.now = now;
      link->sender->Progress();
    }
    return std::pair(kv.region->LoadSignal(0), activations.region->LoadSignal(0));
  };
  come_by(kStart);

  for (int layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(kv.Put(static_cast<uint64_t>(layer) + 1, kKv).ok());
    ASSERT_TRUE(activations.Put(static_cast<uint64_t>(layer) + 1, kActivations).ok());
    EXPECT_EQ(weights->Take(kWeights, kStart), kStart + (layer + 1) * kLayer);
  }

  for (int layer = 0; layer < kLayers; ++layer) {
    const auto come = static_cast<uint64_t>(layer);
    const Nanos kv_through = kStart + layer * kLayer + Micros(kKv);
    const Nanos all_through = kv_through + Micros(kActivations);
    EXPECT_EQ(come_by(kv_through - 1), std::pair(come, come));
    EXPECT_EQ(come_by(kv_through), std::pair(come + 1, come));
    EXPECT_EQ(come_by(all_through - 1), std::pair(come + 1, come));
    EXPECT_EQ(come_by(all_through), std::pair(come + 1, come + 1));
  }
}

TEST(LinkModelTest, BadOptionsSayWhatThereIs) {
  const auto error = [](absl::string_view name, absl::string_view options) {
    return std::string(MakeLinkModel(name, options).status().message());
  };
  EXPECT_THAT(error("slow", ""), HasSubstr("throttle, fault"));
  EXPECT_THAT(error("throttle", "speed=1"), HasSubstr("bandwidth, bus, jitter, latency, seed"));
  EXPECT_THAT(error("throttle", "latency=soon"), HasSubstr("latency cannot be \"soon\""));
  EXPECT_THAT(error("throttle", "bandwidth=0,latency=-1us"),
              HasSubstr("bandwidth cannot be \"0\"; it is bytes per second, at least 1.0 KiB"));
  EXPECT_THAT(error("throttle", "bandwidth=1,seed=1"), HasSubstr("bandwidth"));
  EXPECT_THAT(error("throttle", "latency=-1us"), HasSubstr("a time from 0 to 60s"));
  EXPECT_THAT(error("throttle", "seed=1,seed=2"), HasSubstr("seed is given twice"));
  for (const char* option : {"drop=2", "drop=-0.1", "drop=nan", "drop=inf", "drop="}) {
    EXPECT_THAT(error("fault", option), HasSubstr("drop cannot be")) << option;
  }
  for (const char* option : {"latency=61s", "latency=nan", "latency=1e300s", "latency="}) {
    EXPECT_THAT(error("throttle", option), HasSubstr("latency cannot be")) << option;
  }
  for (const char* option : {"cut=-1", "cut=18446744073709551616", "cut=1.5"}) {
    EXPECT_THAT(error("fault", option), HasSubstr("cut cannot be")) << option;
  }
  EXPECT_THAT(error("throttle", "bus=a"), HasSubstr("a bus needs a bandwidth"));
  EXPECT_THAT(error("throttle", "bandwidth=1MB,bus=a/b"), HasSubstr("bus cannot be \"a/b\""));
  EXPECT_TRUE(MakeLinkModel("throttle", "").ok());
  EXPECT_TRUE(MakeLinkModel("fault", "delay=1ms,drop=0.5,corrupt=0.1,cut=9,seed=4").ok());
}

}  // namespace
}  // namespace lamina::transport
