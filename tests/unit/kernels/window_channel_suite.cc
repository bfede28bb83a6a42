// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/window_channel_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "transport/shm/shm_transport.h"

namespace lamina::kernels {
namespace {

constexpr size_t kRowBytes = 96;
constexpr size_t kRowsMax = 7;
constexpr size_t kWindowBytes = 4096;
constexpr uint64_t kAhead = 4;        // Units, of which records are kept.
constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.
constexpr Nanos kShort = Millis(2);

// Between windows of shm://. The peers are threads of this process that use the processor; each has
// windows of its own, [lanes][parities], for the device's rows, and the device has windows
// [peers][lanes][parities] for theirs.
class WindowChannelTest : public ::testing::TestWithParam<std::tuple<ChannelDeviceCase, uint32_t>> {
 protected:
  static constexpr uint32_t kLanes = ChannelDevice::kLanes;

  void Make(Nanos timeout, bool counts_beats = false) {
    device_ = std::get<0>(GetParam()).make();
    replies_ = MakeRegion("replies", peers() * kLanes);
    to_replies_ = transport_->OpenRegion(replies_->Descriptor(), 0).value();
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      queries_.push_back(MakeRegion("queries", kLanes));
      to_queries_.push_back(transport_->OpenRegion(queries_.back()->Descriptor(), 0).value());
    }
    out_ = device_->memory().Allocate(kLanes * peers() * kRowsMax * kRowBytes).value();
    in_ = device_->memory().Allocate(out_.bytes).value();
    host_ = device_->memory().AllocateHost(out_.bytes).value();
    ASSERT_TRUE(device_->memory().Synchronize().ok());
    MakeChannel(timeout, counts_beats);
  }
  void MakeChannel(Nanos timeout, bool counts_beats = false) {
    auto channel = device_->MakeChannel(Options(timeout, counts_beats));
    ASSERT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
    std::vector<HostWindows> windows;
    for (const auto& to_peer : to_queries_) {
      windows.push_back(HostWindowsOf(to_peer->direct()));
    }
    const absl::Status reached = channel_->SetPeers(windows);
    ASSERT_TRUE(reached.ok()) << reached;
  }
  ChannelOptions Options(Nanos timeout, bool counts_beats = false) {
    return {.own = HostWindowsOf(replies_->direct()),
            .peers = peers(),
            .lanes = kLanes,
            .timeout = timeout,
            .counts_beats = counts_beats,
            .sends_kept = kAhead};
  }

  void TearDown() override {
    channel_.reset();  // Before the windows.
    if (device_ != nullptr) {
      EXPECT_TRUE(device_->memory().Synchronize().ok());
    }
  }
  void SetUpAgain() {
    TearDown();
    to_queries_.clear();
    queries_.clear();
    out_ = in_ = host_ = {};
  }

  uint32_t peers() const { return std::get<1>(GetParam()); }
  static size_t RowsOf(uint32_t peer) { return 1 + peer * 2 % kRowsMax; }
  static size_t QueryWindow(uint32_t lane, uint64_t unit) {
    return (lane * 2 + unit % 2) * kWindowBytes;
  }
  static size_t ReplyWindow(uint32_t peer, uint32_t lane, uint64_t unit) {
    return ((peer * kLanes + lane) * 2 + unit % 2) * kWindowBytes;
  }
  static uint32_t ReplyWord(uint32_t peer, uint32_t lane) { return peer * kLanes + lane; }
  static uint64_t ValueOf(uint64_t unit) { return unit * 16; }
  static WindowStamp StampOf(uint32_t sender, uint32_t lane, uint64_t unit) {
    return {.magic = 77,
            .lane = lane,
            .epoch = 3,
            .step = unit,
            .rows = static_cast<uint32_t>(RowsOf(sender)),
            .sender = sender};
  }
  std::byte* RowsAt(const Buffer& buffer, uint32_t lane, uint32_t peer) const {
    return buffer.data + (lane * peers() + peer) * kRowsMax * kRowBytes;
  }

  std::unique_ptr<transport::Region> MakeRegion(const std::string& name, uint32_t words) {
    return transport_
        ->CreateRegion({.name = name, .bytes = words * 2 * kWindowBytes, .signal_words = words})
        .value();
  }

  // --- The device's side ---

  // Rows of a unit to all peers, and from all.
  absl::Status SendAll(uint32_t lane, uint64_t unit, const Buffer& from) {
    absl::Status status;
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      status.Update(channel_->Send(lane, unit,
                                   {.peer = peer,
                                    .window = QueryWindow(lane, unit),
                                    .stamp = StampOf(peer, lane, unit),
                                    .rows = RowsAt(from, lane, peer),
                                    .bytes = RowsOf(peer) * kRowBytes,
                                    .word = lane,
                                    .value = ValueOf(unit)}));
    }
    return status;
  }
  absl::Status TakeAll(uint32_t lane, uint64_t unit, const Buffer& to) {
    std::vector<RowsIn> in;
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      in.push_back({.peer = peer,
                    .window = ReplyWindow(peer, lane, unit),
                    .stamp = StampOf(peer, lane, unit),
                    .rows = RowsAt(to, lane, peer),
                    .bytes = RowsOf(peer) * kRowBytes,
                    .word = ReplyWord(peer, lane),
                    .value = ValueOf(unit)});
    }
    return channel_->Take(lane, unit, in);
  }
  // As a memory node does: what comes in a unit goes out again.
  void EnqueueAhead(uint32_t lane) {
    for (uint64_t unit = 1; unit <= kAhead; ++unit) {
      ASSERT_TRUE(TakeAll(lane, unit, in_).ok());
      ASSERT_TRUE(SendAll(lane, unit, in_).ok());
    }
  }

  // Waits until the lane's takes have ended.
  void Finish(uint32_t lane) {
    const Nanos deadline = RealClock().Now() + kLong;
    for (;;) {
      const absl::StatusOr<bool> taken = channel_->HasTaken(lane);
      ASSERT_TRUE(taken.ok()) << taken.status();
      if (*taken) {
        return;
      }
      ASSERT_LT(RealClock().Now(), deadline);
      std::this_thread::yield();
    }
  }
  // How long after its take the unit was sent; waits until it is.
  Nanos AwaitSent(uint32_t lane, uint64_t unit) {
    const Nanos deadline = RealClock().Now() + kLong;
    std::optional<Nanos> nanos = channel_->SentAfter(lane, unit);
    while (!nanos.has_value() && RealClock().Now() < deadline) {
      std::this_thread::yield();
      nanos = channel_->SentAfter(lane, unit);
    }
    EXPECT_TRUE(nanos.has_value()) << "lane " << lane << " unit " << unit;
    return nanos.value_or(-1);
  }

  // --- The peers' side ---

  // Puts rows of a unit whose bytes `value_of` gives by their offset, behind a stamp.
  template <typename ValueOfByte>
  void Put(uint32_t peer, uint32_t lane, uint64_t unit, const WindowStamp& stamp,
           const ValueOfByte& value_of) {
    std::vector<std::byte> window(kWindowHeaderBytes + RowsOf(peer) * kRowBytes);
    std::memcpy(window.data(), &stamp, sizeof(stamp));
    for (size_t i = kWindowHeaderBytes; i < window.size(); ++i) {
      window[i] = static_cast<std::byte>(value_of(i));
    }
    const transport::SignalUpdate signal{.word = ReplyWord(peer, lane), .value = ValueOf(unit)};
    const absl::Status put =
        transport_->Put(*to_replies_, ReplyWindow(peer, lane, unit), window, &signal);
    EXPECT_TRUE(put.ok()) << put;
  }
  // Every byte that came, plus one.
  void Answer(uint32_t peer, uint32_t lane, uint64_t unit, const WindowStamp& stamp) {
    const std::byte* const query = queries_[peer]->bytes().data() + QueryWindow(lane, unit);
    Put(peer, lane, unit, stamp,
        [query](size_t i) { return std::to_integer<uint8_t>(query[i]) + 1; });
  }
  void Answer(uint32_t peer, uint32_t lane, uint64_t unit) {
    Answer(peer, lane, unit, StampOf(peer, lane, unit));
  }
  static uint8_t ByteOf(uint32_t lane, uint64_t unit, size_t i) {
    return static_cast<uint8_t>(lane * 101 + unit * 31 + i);
  }
  void PutUnit(uint32_t peer, uint32_t lane, uint64_t unit) {
    Put(peer, lane, unit, StampOf(peer, lane, unit),
        [=](size_t i) { return ByteOf(lane, unit, i); });
  }

  // Waits for the unit's rows, and looks at their header.
  void Await(uint32_t peer, uint32_t lane, uint64_t unit) {
    const Nanos deadline = RealClock().Now() + kLong;
    while (queries_[peer]->LoadSignal(lane) < ValueOf(unit)) {
      ASSERT_LT(RealClock().Now(), deadline);
      std::this_thread::yield();
    }
    WindowStamp got;
    std::memcpy(&got, queries_[peer]->bytes().data() + QueryWindow(lane, unit), sizeof(got));
    const WindowStamp expected = StampOf(peer, lane, unit);
    EXPECT_EQ(std::memcmp(&got, &expected, sizeof(got)), 0);
  }
  // And that they are those of PutUnit().
  void ExpectUnit(uint32_t peer, uint32_t lane, uint64_t unit) {
    Await(peer, lane, unit);
    const std::byte* const window = queries_[peer]->bytes().data() + QueryWindow(lane, unit);
    for (size_t i = kWindowHeaderBytes; i < kWindowHeaderBytes + RowsOf(peer) * kRowBytes; ++i) {
      ASSERT_EQ(std::to_integer<uint8_t>(window[i]), ByteOf(lane, unit, i)) << "byte " << i;
    }
  }
  void ExpectUnitsAhead(uint32_t lane) {
    for (uint64_t unit = 1; unit <= kAhead; ++unit) {
      for (uint32_t peer = 0; peer < peers(); ++peer) {
        PutUnit(peer, lane, unit);
      }
      for (uint32_t peer = 0; peer < peers(); ++peer) {
        ExpectUnit(peer, lane, unit);
      }
    }
  }

  // A unit to which the peers answer as `answer` does, in a thread.
  template <typename AnswerAll>
  FailedTake FailingUnit(const AnswerAll& answer) {
    EXPECT_TRUE(SendAll(0, 1, out_).ok());
    std::jthread others(answer);
    EXPECT_TRUE(TakeAll(0, 1, in_).ok());
    Finish(0);
    const auto failed = channel_->FailureOf(0);
    EXPECT_TRUE(failed.has_value());
    EXPECT_FALSE(channel_->FailureOf(1).has_value());
    return failed.value_or(FailedTake{});
  }
  void AnswerAllBut(uint32_t silent, uint64_t unit) {
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      if (peer != silent) {
        Answer(peer, 0, unit);
      }
    }
  }

  // Rows of the device's memory. Closes the channel.
  std::vector<uint8_t> Fetch(const Buffer& from, uint32_t lane, uint32_t peer) {
    channel_->Close();
    const size_t bytes = RowsOf(peer) * kRowBytes;
    device_->memory().Copy(host_.data, RowsAt(from, lane, peer), bytes);
    EXPECT_TRUE(device_->memory().Synchronize().ok());
    std::vector<uint8_t> values(bytes);
    std::memcpy(values.data(), host_.data, bytes);
    return values;
  }

  const std::unique_ptr<transport::Transport> transport_ = transport::MakeShmTransport();
  std::unique_ptr<transport::Region> replies_;
  std::unique_ptr<transport::RemoteRegion> to_replies_;
  std::vector<std::unique_ptr<transport::Region>> queries_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> to_queries_;
  std::unique_ptr<ChannelDevice> device_;
  Buffer out_;
  Buffer in_;
  Buffer host_;
  std::unique_ptr<WindowChannel> channel_;  // Goes before the windows and the device.
};

// --- A unit of each lane at a time, as compute nodes do ---

// What is taken of a unit is sent with the next, so every round adds one; lanes in turns.
TEST_P(WindowChannelTest, RowsGoOutAndComeBackRoundAfterRound) {
  Make(kLong);
  constexpr uint64_t kUnits = 50;
  std::vector<std::jthread> others;
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    others.emplace_back([this, peer] {
      for (uint64_t unit = 1; unit <= kUnits; ++unit) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          Await(peer, lane, unit);
          Answer(peer, lane, unit);
        }
      }
    });
  }
  for (uint64_t unit = 1; unit <= kUnits; ++unit) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if (unit > 1) {
        Finish(lane);
        ASSERT_TRUE(TakeAll(lane, unit - 1, in_).ok());
      }
      ASSERT_TRUE(SendAll(lane, unit, unit > 1 ? in_ : out_).ok());
    }
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    Finish(lane);
    ASSERT_TRUE(TakeAll(lane, kUnits, in_).ok());
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    Finish(lane);
    EXPECT_FALSE(channel_->FailureOf(lane).has_value());
    EXPECT_TRUE(channel_->Check(lane).ok());
  }
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      EXPECT_THAT(Fetch(in_, lane, peer), testing::Each(kUnits)) << "lane " << lane << " " << peer;
    }
  }
}

TEST_P(WindowChannelTest, SaysHowLongItStoodStillAndHowLongItWorked) {
  Make(kLong);
  std::jthread others([this] {
    for (const uint64_t unit : {1, 2}) {
      for (uint32_t peer = 0; peer < peers(); ++peer) {
        Await(peer, 1, unit);
        Answer(peer, 1, unit);
      }
    }
  });
  const Nanos began = RealClock().Now();
  for (const uint64_t unit : {1, 2}) {
    ASSERT_TRUE(SendAll(1, unit, out_).ok());
    Finish(1);
    ASSERT_TRUE(TakeAll(1, unit, in_).ok());
  }
  Finish(1);
  const Nanos elapsed = RealClock().Now() - began;

  ASSERT_TRUE(channel_->SentAfter(1, 2).has_value());
  Nanos told = *channel_->SentAfter(1, 2);
  EXPECT_GE(told, 0);
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    EXPECT_GE(channel_->WaitedFor(1, peer), 0);
    told += channel_->WaitedFor(1, peer);
  }
  EXPECT_LE(told, elapsed);
  EXPECT_FALSE(channel_->SentAfter(1, 3).has_value());
  EXPECT_FALSE(channel_->SentAfter(0, 2).has_value());
}

TEST_P(WindowChannelTest, APeerThatDoesNotAnswerIsATimeout) {
  Make(kShort);
  const uint32_t silent = peers() - 1;

  AnswerAllBut(silent, 1);

  const FailedTake failed = FailingUnit([] {});

  EXPECT_EQ(failed.outcome, WaitOutcome::kTimeout);
  EXPECT_EQ(failed.peer, silent);
  EXPECT_EQ(failed.unit, 1u);
}

TEST_P(WindowChannelTest, AnAbortEndsTakesNowAndFromNowOn) {
  Make(kLong);

  const FailedTake failed = FailingUnit([this] { channel_->Abort(); });
  EXPECT_EQ(failed.outcome, WaitOutcome::kAborted);

  ASSERT_TRUE(SendAll(1, 1, out_).ok());
  ASSERT_TRUE(TakeAll(1, 1, in_).ok());
  Finish(1);
  ASSERT_TRUE(channel_->FailureOf(1).has_value());
  EXPECT_EQ(channel_->FailureOf(1)->outcome, WaitOutcome::kAborted);
}

TEST_P(WindowChannelTest, RowsThatAreThereAreTakenAfterAnAbort) {
  Make(kLong);
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    PutUnit(peer, 0, 1);
  }
  channel_->Abort();

  ASSERT_TRUE(TakeAll(0, 1, in_).ok());
  ASSERT_TRUE(SendAll(0, 1, in_).ok());

  for (uint32_t peer = 0; peer < peers(); ++peer) {
    ExpectUnit(peer, 0, 1);
  }
  EXPECT_FALSE(channel_->FailureOf(0).has_value());
}

TEST_P(WindowChannelTest, AnOlderStampIsStaleAndAnotherAMismatch) {
  const uint32_t wrong = peers() - 1;
  WindowStamp older = StampOf(wrong, 0, 1);
  older.epoch = 2;
  WindowStamp other = StampOf(wrong, 0, 1);
  other.rows += 1;
  for (const auto& [stamp, outcome] :
       {std::pair(older, WaitOutcome::kStale), std::pair(other, WaitOutcome::kMismatch)}) {
    SetUpAgain();
    Make(kLong);

    const FailedTake failed = FailingUnit([this, wrong, stamp = stamp] {
      AnswerAllBut(wrong, 1);
      Answer(wrong, 0, 1, stamp);
    });

    EXPECT_EQ(failed.outcome, outcome);
    EXPECT_EQ(failed.peer, wrong);
  }
}

TEST_P(WindowChannelTest, AfterAFailureNothingOfTheLaneLeavesAndOthersGoOn) {
  Make(kShort);
  FailingUnit([] {});

  ASSERT_TRUE(SendAll(0, 2, out_).ok());
  ASSERT_TRUE(SendAll(1, 2, out_).ok());
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    Await(peer, 1, 2);
    Answer(peer, 1, 2);
  }
  ASSERT_TRUE(TakeAll(0, 2, in_).ok());
  ASSERT_TRUE(TakeAll(1, 2, in_).ok());
  Finish(0);
  Finish(1);

  ASSERT_TRUE(channel_->FailureOf(0).has_value());
  EXPECT_EQ(channel_->FailureOf(0)->unit, 1u);
  EXPECT_FALSE(channel_->FailureOf(1).has_value());
  EXPECT_FALSE(channel_->SentAfter(0, 2).has_value());
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    EXPECT_EQ(queries_[peer]->LoadSignal(0), ValueOf(1));
    EXPECT_THAT(Fetch(in_, 0, peer), testing::Each(0)) << "nothing was taken";
    EXPECT_THAT(Fetch(in_, 1, peer), testing::Each(1));
  }
}

// --- Units ahead of their rows, as memory nodes do ---

TEST_P(WindowChannelTest, UnitsAheadAreTakenAndSentAsTheirRowsCome) {
  Make(kLong);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    EnqueueAhead(lane);
  }
  EXPECT_FALSE(channel_->HasTaken(0).value());
  EXPECT_FALSE(channel_->SentAfter(0, 1).has_value());

  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    ExpectUnitsAhead(lane);
  }

  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    EXPECT_TRUE(channel_->HasTaken(lane).value());
    for (uint64_t unit = 1; unit <= kAhead; ++unit) {
      const Nanos nanos = AwaitSent(lane, unit);
      EXPECT_GE(nanos, 0);
      EXPECT_LT(nanos, kLong);
    }
    EXPECT_FALSE(channel_->FailureOf(lane).has_value());
    EXPECT_TRUE(channel_->Check(lane).ok());
  }
}

TEST_P(WindowChannelTest, UnitsBehindOneThatFailsAreSilent) {
  const uint32_t wrong = peers() - 1;
  WindowStamp older = StampOf(wrong, 1, 2);
  older.epoch = 2;
  WindowStamp other = StampOf(wrong, 1, 2);
  other.rows += 1;
  for (const auto& [stamp, outcome] :
       {std::pair(older, WaitOutcome::kStale), std::pair(other, WaitOutcome::kMismatch)}) {
    SetUpAgain();
    Make(kLong);
    EnqueueAhead(1);
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      PutUnit(peer, 1, 1);
    }
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      ExpectUnit(peer, 1, 1);
      Put(peer, 1, 2, peer == wrong ? stamp : StampOf(peer, 1, 2), [](size_t) { return 1; });
    }

    Finish(1);

    const auto failed = channel_->FailureOf(1);
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->outcome, outcome);
    EXPECT_EQ(failed->peer, wrong);
    EXPECT_EQ(failed->unit, 2u);
    EXPECT_TRUE(channel_->SentAfter(1, 1).has_value()) << "it shows with the failure behind it";
    EXPECT_TRUE(channel_->Check(1).ok());
    channel_->Close();
    for (uint64_t unit = 2; unit <= kAhead; ++unit) {
      EXPECT_FALSE(channel_->SentAfter(1, unit).has_value());
    }
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      EXPECT_EQ(queries_[peer]->LoadSignal(1), ValueOf(1)) << "nothing more was put";
    }
  }
}

TEST_P(WindowChannelTest, AnAbortEndsUnitsAheadAndTheNextChannelServes) {
  Make(kLong);
  EnqueueAhead(1);
  std::jthread stops([this] { channel_->Abort(); });
  Finish(1);
  stops.join();
  ASSERT_TRUE(channel_->FailureOf(1).has_value());
  EXPECT_EQ(channel_->FailureOf(1)->outcome, WaitOutcome::kAborted);
  EXPECT_EQ(channel_->FailureOf(1)->unit, 1u);
  channel_->Close();
  EXPECT_EQ(queries_[0]->LoadSignal(1), 0u);

  MakeChannel(kLong);
  EnqueueAhead(1);
  ExpectUnitsAhead(1);

  for (uint64_t unit = 1; unit <= kAhead; ++unit) {
    AwaitSent(1, unit);
  }
  EXPECT_FALSE(channel_->FailureOf(1).has_value());
}

TEST_P(WindowChannelTest, ClosingWhileTheDeviceWaitsReturns) {
  Make(kLong);
  EnqueueAhead(1);

  channel_->Close();

  EXPECT_TRUE(channel_->HasTaken(1).value());
  ASSERT_TRUE(channel_->FailureOf(1).has_value());
  EXPECT_EQ(channel_->FailureOf(1)->outcome, WaitOutcome::kAborted);
  EXPECT_EQ(queries_[0]->LoadSignal(1), 0u);
  channel_->Close();
  channel_->Abort();
  MakeChannel(kLong);  // Its windows can be registered again.
}

TEST_P(WindowChannelTest, ADeviceThatHearsNoBeatGivesUp) {
  Make(kShort, /*counts_beats=*/true);
  channel_->Beat();
  EnqueueAhead(1);

  Finish(1);

  ASSERT_TRUE(channel_->FailureOf(1).has_value());
  EXPECT_EQ(channel_->FailureOf(1)->outcome, WaitOutcome::kTimeout);
}

// --- What is refused ---

TEST_P(WindowChannelTest, RefusesWindowsThatItDoesNotReach) {
  Make(kLong);
  const std::vector<HostWindows> none(peers());
  ChannelOptions unreachable = Options(kLong);
  unreachable.own = {};

  EXPECT_TRUE(absl::IsInvalidArgument(channel_->SetPeers(none)));
  EXPECT_TRUE(absl::IsInvalidArgument(channel_->SetPeers({})));
  EXPECT_TRUE(absl::IsInvalidArgument(device_->MakeChannel(unreachable).status()));
  const auto again = device_->MakeChannel(Options(kLong));
  EXPECT_FALSE(again.ok());  // Its windows are registered.
  EXPECT_THAT(std::string(again.status().message()),
              testing::HasSubstr("cudaErrorHostMemoryAlreadyRegistered"));
}

TEST_P(WindowChannelTest, RefusesAChannelOfNothing) {
  Make(kLong);
  channel_.reset();
  std::vector<ChannelOptions> nothing(4, Options(kLong));
  nothing[0].peers = 0;
  nothing[1].lanes = 0;
  nothing[2].timeout = 0;
  nothing[3].sends_kept = 0;

  for (const ChannelOptions& options : nothing) {
    const absl::Status refused = device_->MakeChannel(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
  EXPECT_TRUE(device_->MakeChannel(Options(kLong)).ok());
}

INSTANTIATE_TEST_SUITE_P(Devices, WindowChannelTest,
                         ::testing::Combine(::testing::ValuesIn(ChannelDeviceCases()),
                                            ::testing::Values(1u, 3u)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param).name, "With",
                                               std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lamina::kernels
