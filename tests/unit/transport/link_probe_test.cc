// SPDX-License-Identifier: Apache-2.0
#include "transport/link_probe.h"

#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_bus.h"
#include "common/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

constexpr size_t kBytes = KiB(256);

Nanos Soon() { return RealClock().Now() + Seconds(60); }

std::unique_ptr<Transport> Make(const std::string& uri) { return MakeTransport(uri).value(); }

// A node with a region: word i belongs to node i.
struct End {
  explicit End(const std::string& uri)
      : transport(Make(uri)),
        region(
            transport->CreateRegion({.name = "end", .bytes = kBytes, .signal_words = 4}).value()) {}

  std::unique_ptr<RemoteRegion> Open(const End& peer) const {
    return transport->OpenRegion(peer.region->Descriptor(), 0).value();
  }

  std::unique_ptr<Transport> transport;
  std::unique_ptr<Region> region;
};

// `askers` of words 1, 2, ... measure one after the other what node 0 answers.
std::vector<absl::StatusOr<LinkSpeed>> Measure(const std::string& uri, uint32_t askers,
                                               const Clock& clock = RealClock()) {
  const End answerer(uri);
  std::vector<std::unique_ptr<End>> ends;
  std::vector<std::unique_ptr<RemoteRegion>> to_askers;
  std::vector<LinkAnswerer> answerers;
  for (uint32_t i = 0; i < askers; ++i) {
    ends.push_back(std::make_unique<End>(uri));
    to_askers.push_back(answerer.Open(*ends.back()));
    answerers.push_back({.peer = to_askers.back().get(), .ask_word = i + 1, .answer_word = 0});
  }
  std::jthread answering([&] {
    size_t late = 0;
    EXPECT_TRUE(
        AnswerLinks(*answerer.transport, *answerer.region, answerers, {.deadline = Soon()}, late)
            .ok());
  });
  std::vector<absl::StatusOr<LinkSpeed>> speeds;
  for (uint32_t i = 0; i < askers; ++i) {
    const auto to_answerer = ends[i]->Open(answerer);
    speeds.push_back(MeasureLink(*ends[i]->transport,
                                 {.peer = to_answerer.get(),
                                  .ask_word = i + 1,
                                  .bytes = ends[i]->region->bytes(),
                                  .region = ends[i]->region.get(),
                                  .answer_word = 0},
                                 {.deadline = Soon()}, clock));
  }
  answering.join();
  return speeds;
}

TEST(LinkProbeTest, EveryAskerIsAnswered) {
  for (const auto& speed : Measure("shm://", 3)) {
    ASSERT_TRUE(speed.ok()) << speed.status();
    EXPECT_GT(speed->latency_seconds, 0);
    EXPECT_GT(speed->bytes_per_second, 0);
  }
}

// A microsecond passes from one look to the next, and once a second: the host did something else.
class JumpingClock final : public Clock {
 public:
  explicit JumpingClock(int jump) : jump_(jump) {}
  Nanos Now() const override {
    now_ += looks_++ == jump_ ? Seconds(1) : Micros(1);
    return now_;
  }

 private:
  const int jump_;
  mutable int looks_ = 0;
  mutable Nanos now_ = 0;
};

TEST(LinkProbeTest, ABadMomentIsNotTakenForTheLink) {
  const LinkSpeed undisturbed = Measure("shm://", 1, JumpingClock(-1))[0].value();
  for (int look = 0; look < 75; look += 3) {
    const absl::StatusOr<LinkSpeed> speed = Measure("shm://", 1, JumpingClock(look))[0];

    ASSERT_TRUE(speed.ok()) << speed.status();
    EXPECT_EQ(speed->latency_seconds, undisturbed.latency_seconds) << look;
    EXPECT_EQ(speed->bytes_per_second, undisturbed.bytes_per_second) << look;
  }
}

// A microsecond passes from one look to the next. Bursts of one Put take longer, each as long as is
// listed here, and those behind them the last of these or no longer than a look.
class BusyClock final : public Clock {
 public:
  BusyClock(std::vector<Nanos> bursts, bool goes_on)
      : bursts_(std::move(bursts)), goes_on_(goes_on) {}

  Nanos Now() const override {
    now_ += PassesBefore(looks_++);
    return now_;
  }

 private:
  // The looks of 33 rounds, with one in front; then one in front of all bursts, and three of each,
  // when it begins, when it has been answered, and behind it.
  static constexpr int kFirstAnswer = 1 + 33 + 1 + 1;
  static constexpr int kLooks = 3;

  Nanos PassesBefore(int look) const {
    if (look < kFirstAnswer || (look - kFirstAnswer) % kLooks != 0) {
      return Micros(1);
    }
    const auto burst = static_cast<size_t>((look - kFirstAnswer) / kLooks);
    if (burst < bursts_.size()) {
      return bursts_[burst];
    }
    return goes_on_ ? bursts_.back() : Micros(1);
  }

  const std::vector<Nanos> bursts_;
  const bool goes_on_;
  mutable int looks_ = 0;
  mutable Nanos now_ = 0;
};

TEST(LinkProbeTest, AHostThatIsBusyForAWhileIsWaitedFor) {
  const LinkSpeed undisturbed = Measure("shm://", 1, JumpingClock(-1))[0].value();
  EXPECT_EQ(undisturbed.bursts.size(), 8u) << "a link that is steady is measured no longer";
  const BusyClock clock({Micros(9000), Micros(7500), Micros(6200), Micros(10000), Micros(5200),
                         Micros(8000), Micros(4300)},
                        /*goes_on=*/false);

  const absl::StatusOr<LinkSpeed> speed = Measure("shm://", 1, clock)[0];

  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_EQ(speed->bytes_per_second, undisturbed.bytes_per_second);
  EXPECT_EQ(speed->bursts.size(), 9u) << "the second of two fast ones confirms the first";
}

TEST(LinkProbeTest, ALinkThatIsSlowAndSteadyIsMeasuredNoLonger) {
  const BusyClock clock({Millis(6)}, /*goes_on=*/true);

  const absl::StatusOr<LinkSpeed> speed = Measure("shm://", 1, clock)[0];

  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_EQ(speed->bursts.size(), 4u) << "of 6 ms in 20";
  constexpr double kBytesPerSecond = static_cast<double>(kBytes) / 6e-3;
  EXPECT_NEAR(speed->bytes_per_second, kBytesPerSecond, 0.01 * kBytesPerSecond);
}

TEST(LinkProbeTest, AHostThatStaysBusyIsNotWaitedForForever) {
  const BusyClock clock({Millis(6), Millis(8)}, /*goes_on=*/true);

  const absl::StatusOr<LinkSpeed> speed = Measure("shm://", 1, clock)[0];

  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_EQ(speed->bursts.size(), 13u) << "one of 6 ms and others of 8 in 100";
}

TEST(LinkProbeTest, SlowLinkLooksNoFasterThanItIs) {
  const auto speeds = Measure("throttle(bandwidth=100MiB,latency=2ms)+shm://", 1);

  ASSERT_TRUE(speeds[0].ok()) << speeds[0].status();
  EXPECT_GE(speeds[0]->latency_seconds, 0.002);
  EXPECT_LE(speeds[0]->bytes_per_second, 2.2 * static_cast<double>(MiB(100)));
}

TEST(LinkProbeTest, SlowLinkIsNotLoadedForSeconds) {
  const auto speeds = Measure("throttle(bandwidth=2MiB,latency=5ms)+shm://", 1);

  ASSERT_TRUE(speeds[0].ok()) << speeds[0].status();
  EXPECT_LE(speeds[0]->bytes_put, 3 * kBytes) << "125 ms each";
}

TEST(LinkProbeTest, SaysWhatItHasPut) {
  const std::string name = absl::StrCat("probe-", getpid());
  const auto bus = *SharedBus::Open(name, MiB(100));
  const auto speeds = Measure(absl::StrCat("throttle(bandwidth=100MiB,bus=", name, ")+shm://"), 1);

  ASSERT_TRUE(speeds[0].ok()) << speeds[0].status();
  EXPECT_GT(speeds[0]->bytes_put, 0u);
  EXPECT_NEAR(static_cast<double>(speeds[0]->bytes_put),
              bus->Totals().busy_seconds * static_cast<double>(MiB(100)), 100);
}

TEST(LinkProbeTest, PeerThatDoesNotAnswerEndsAtTheDeadline) {
  const End answerer("shm://");
  const End asker("shm://");
  const auto remote = asker.Open(answerer);

  const auto speed = MeasureLink(*asker.transport,
                                 {.peer = remote.get(),
                                  .ask_word = 1,
                                  .bytes = asker.region->bytes(),
                                  .region = asker.region.get()},
                                 {.deadline = RealClock().Now() + Millis(20)});

  EXPECT_TRUE(absl::IsDeadlineExceeded(speed.status())) << speed.status();
}

TEST(LinkProbeTest, AskerThatNeverComesIsNamed) {
  const End answerer("shm://");
  const End asker("shm://");
  const auto remote = answerer.Open(asker);
  const std::vector<LinkAnswerer> answerers = {
      {.peer = remote.get(), .ask_word = 1, .answer_word = 0}};
  size_t late = 7;

  const absl::Status status = AnswerLinks(*answerer.transport, *answerer.region, answerers,
                                          {.deadline = RealClock().Now() + Millis(20)}, late);

  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(late, 0u);
}

TEST(LinkProbeTest, AbortEndsBothEnds) {
  const End answerer("shm://");
  const End asker("shm://");
  const auto to_answerer = asker.Open(answerer);
  const auto to_asker = answerer.Open(asker);
  const AbortWord abort{1};
  const std::vector<LinkAnswerer> answerers = {
      {.peer = to_asker.get(), .ask_word = 1, .answer_word = 0}};
  size_t late = 0;

  EXPECT_TRUE(absl::IsCancelled(AnswerLinks(*answerer.transport, *answerer.region, answerers,
                                            {.deadline = Soon(), .abort = &abort}, late)));
  EXPECT_TRUE(absl::IsCancelled(MeasureLink(*asker.transport,
                                            {.peer = to_answerer.get(),
                                             .ask_word = 2,
                                             .bytes = asker.region->bytes(),
                                             .region = asker.region.get()},
                                            {.deadline = Soon(), .abort = &abort})
                                    .status()));
}

}  // namespace
}  // namespace lamina::transport
