// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/window_channel_suite.h"

#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/unit/kernels/window_channel_fixture.h"

namespace lamina::kernels {
namespace {

// --- A unit of each lane at a time, as compute nodes do ---

// What is taken of a unit is sent with the next, so every round adds one; lanes in turns.
TEST_P(WindowChannelTest, RowsGoOutAndComeBackRoundAfterRound) {
  Make(kLong);
  constexpr uint64_t kUnits = 20;
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
  Nanos waited_before = 0;
  for (const uint64_t unit : {1, 2}) {
    ASSERT_TRUE(SendAll(1, unit, out_).ok());
    Finish(1);
    waited_before = unit == 1 ? 0 : channel_->WaitedFor(1, peers() - 1);
    ASSERT_TRUE(TakeAll(1, unit, in_).ok());
  }
  Finish(1);
  const Nanos elapsed = RealClock().Now() - began;

  ASSERT_TRUE(channel_->SentAfter(1, 2).has_value());
  Nanos told = *channel_->SentAfter(1, 2);
  EXPECT_GE(told, 0);
  EXPECT_EQ(channel_->WaitedBefore(1, 2), waited_before);
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
    ExpectLast(peer, 0, ValueOf(1));
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
      ExpectLast(peer, 1, ValueOf(1));  // Nothing more was put.
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
  ExpectLast(0, 1, 0);

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
  ExpectLast(0, 1, 0);
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
                                            ::testing::Values(1u, 3u),
                                            ::testing::ValuesIn(WindowUris())),
                         [](const auto& test) {
                           const std::string& uri = std::get<2>(test.param);
                           return absl::StrCat(std::get<0>(test.param).name, "With",
                                               std::get<1>(test.param), "Over_",
                                               uri.substr(0, uri.find(':')));
                         });

}  // namespace
}  // namespace lamina::kernels
