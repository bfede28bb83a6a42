// SPDX-License-Identifier: Apache-2.0
#include "telemetry/fetched_bandwidth.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lamina::telemetry {
namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr double kFast = 1e9;

// A sender of pieces of all lanes in turn, over one link into two windows of each, and a thread
// that uses them in turn, looking when one has come and when one has been used up.
class Stream {
 public:
  Stream(size_t lanes, double bytes_per_second, size_t piece = kPiece)
      : piece_(piece), rate_(bytes_per_second), come_(lanes), taken_(lanes) {
    bandwidth_.Begin(lanes);
    Expect(2, /*sure=*/true);
    Send();
  }

  FetchedBandwidth& bandwidth() { return bandwidth_; }
  void set_rate(double bytes_per_second) { rate_ = bytes_per_second; }

  // Uses so many pieces of each lane, each for so long.
  void Use(int pieces, Nanos each) {
    for (int i = 0; i < pieces; ++i) {
      for (size_t lane = 0; lane < taken_.size(); ++lane) {
        const Nanos began = now_;
        while (come_[lane] == taken_[lane]) {
          PassUntil(arrives_);
        }
        bandwidth_.CountWait(now_ - began);
        bandwidth_.Look(now_, come_);
        bandwidth_.Count(piece_);
        PassUntil(now_ + each);
        ++taken_[lane];
        bandwidth_.Look(now_, come_);
        bandwidth_.Expect(lane, {.sure = taken_[lane] + 2, .possible = taken_[lane] + 2});
        Send();
      }
    }
  }

  // The lanes' steps end with what is in the windows, and the next ones begin this much later.
  // Until then nothing comes; it may be that it could.
  void Rest(Nanos pause, bool may_come) {
    taken_ = come_;
    sending_ = false;
    Expect(may_come ? 2 : 0, /*sure=*/!may_come);
    now_ += pause;
    Expect(2, /*sure=*/true);
    Send();
  }

 private:
  void Expect(uint64_t windows, bool sure) {
    bandwidth_.Look(now_, come_);
    for (size_t lane = 0; lane < taken_.size(); ++lane) {
      const uint64_t possible = taken_[lane] + windows;
      bandwidth_.Expect(lane, {.sure = sure ? possible : 0, .possible = possible});
    }
  }

  void Send() {
    for (size_t i = 0; i < come_.size() && !sending_; ++i) {
      lane_ = (lane_ + 1) % come_.size();
      sending_ = come_[lane_] < taken_[lane_] + 2;
      arrives_ = now_ + static_cast<Nanos>(static_cast<double>(piece_) / rate_ * 1e9);
    }
  }

  void PassUntil(Nanos time) {
    while (sending_ && arrives_ <= time) {
      now_ = arrives_;
      ++come_[lane_];
      sending_ = false;
      Send();
    }
    now_ = time;
  }

  const size_t piece_;
  double rate_;
  FetchedBandwidth bandwidth_;
  std::vector<uint64_t> come_;
  std::vector<uint64_t> taken_;
  Nanos now_ = Seconds(7);
  Nanos arrives_ = 0;
  size_t lane_ = 0;
  bool sending_ = false;
};

void ExpectNear(const FetchedBandwidth& bandwidth, double bytes_per_second) {
  EXPECT_NEAR(bandwidth.least(), bytes_per_second, 0.06 * bytes_per_second);
  EXPECT_NEAR(bandwidth.most(), bytes_per_second, 0.06 * bytes_per_second);
  EXPECT_LE(bandwidth.least(), bandwidth.most());
}

TEST(FetchedBandwidthTest, ALinkThatRowsWaitForIsKnownWhateverLanesShareIt) {
  for (const size_t lanes : {1u, 2u, 8u}) {
    SCOPED_TRACE(lanes);
    Stream stream(lanes, kFast);
    stream.Use(20, Micros(50));
    EXPECT_EQ(stream.bandwidth().least(), 0) << "too little has come";
    EXPECT_EQ(stream.bandwidth().most(), 0);
    stream.Use(200, Micros(50));
    ExpectNear(stream.bandwidth(), kFast);
  }
}

TEST(FetchedBandwidthTest, ItFollowsALinkThatBecomesSlowerAndFasterAgain) {
  Stream stream(2, kFast);
  stream.Use(200, Micros(50));
  stream.set_rate(kFast / 4);
  stream.Use(200, Micros(50));
  ExpectNear(stream.bandwidth(), kFast / 4);
  stream.set_rate(kFast / 2);
  stream.Use(200, Micros(50));
  ExpectNear(stream.bandwidth(), kFast / 2);
}

// What comes is then what is used, and not what could come.
TEST(FetchedBandwidthTest, ALinkThatWaitsForRowsIsNoSlowerThanWhatComes) {
  for (const size_t lanes : {1u, 3u}) {
    SCOPED_TRACE(lanes);
    Stream stream(lanes, kFast);
    stream.Use(200, Millis(5));
    const double used = static_cast<double>(kPiece) / 5e-3;
    EXPECT_NEAR(stream.bandwidth().least(), used, 0.06 * used);
    EXPECT_TRUE(stream.bandwidth().most() == 0 || stream.bandwidth().most() > kFast);
  }
}

TEST(FetchedBandwidthTest, WhatIsKnownStaysWhileRowsTakeLonger) {
  Stream stream(1, kFast);
  stream.Use(200, Micros(50));
  stream.Use(200, Micros(1200));
  ExpectNear(stream.bandwidth(), kFast);
}

TEST(FetchedBandwidthTest, ALinkThatBecameFasterThanItWasKnownToBeIsBelievedSo) {
  Stream stream(1, kFast / 8);
  stream.Use(200, Micros(50));
  stream.set_rate(kFast);
  stream.Use(200, Millis(4));  // Twice as fast as it was.
  EXPECT_GT(stream.bandwidth().least(), 1.5 * kFast / 8);
  EXPECT_TRUE(stream.bandwidth().most() == 0 || stream.bandwidth().most() > kFast);
}

// Rows that are as slow as the link was hide that it no longer is.
TEST(FetchedBandwidthTest, ALinkThatWasSlowForAWhileIsNotBelievedSoForever) {
  Stream stream(1, kFast / 4);
  stream.Use(200, Micros(50));
  ExpectNear(stream.bandwidth(), kFast / 4);
  stream.set_rate(kFast);
  const Nanos as_slow = static_cast<Nanos>(4 * kPiece / kFast * 1e9);
  stream.Use(200, as_slow);
  ExpectNear(stream.bandwidth(), kFast / 4);
  stream.Use(50'000, as_slow);
  EXPECT_TRUE(stream.bandwidth().most() == 0 || stream.bandwidth().most() > kFast);
}

TEST(FetchedBandwidthTest, ARestBetweenStepsIsNoTimeOfTheLink) {
  Stream stream(2, kFast);
  for (int step = 0; step < 20; ++step) {
    stream.Use(40, Micros(50));
    stream.Rest(Seconds(100), /*may_come=*/false);
  }
  EXPECT_GT(stream.bandwidth().least(), 0.9 * kFast);
}

// Until its plan is there a memory node sends nothing.
TEST(FetchedBandwidthTest, WhatMayComeAndNeedNotIsNoReasonToBelieveInLess) {
  Stream stream(1, kFast);
  for (int step = 0; step < 10; ++step) {
    stream.Use(40, Micros(50));
    stream.Rest(Millis(40), /*may_come=*/true);
  }
  EXPECT_TRUE(stream.bandwidth().most() == 0 || stream.bandwidth().most() > 0.94 * kFast);
}

TEST(FetchedBandwidthTest, PiecesOfAStepThatBeganUnseenAreNotOfARest) {
  FetchedBandwidth bandwidth;
  bandwidth.Begin(1);
  std::vector<uint64_t> come = {0};
  Nanos now = Seconds(1);
  for (int step = 0; step < 40; ++step) {
    bandwidth.Look(now, come);
    bandwidth.Expect(0, {.sure = come[0], .possible = come[0]});  // Nothing is to come,
    now += Millis(10);
    come[0] += 2;  // and two pieces did.
    bandwidth.Look(now, come);
    bandwidth.Count(kPiece);
    bandwidth.Count(kPiece);
  }
  EXPECT_NEAR(bandwidth.least(), 2 * kPiece / 10e-3, 0.1 * kPiece / 10e-3);
  EXPECT_EQ(bandwidth.most(), 0);
}

// How far ahead the sender is goes by pieces of layers that have not begun: the third one of a
// layer may be on its way, and nobody knows.
TEST(FetchedBandwidthTest, PiecesBehindTheSureOnesAreOfNoRest) {
  FetchedBandwidth bandwidth;
  bandwidth.Begin(1);
  std::vector<uint64_t> come = {0};
  Nanos now = Seconds(1);
  for (int piece = 0; piece < 40; ++piece) {
    for (const Nanos part : {Millis(6), Millis(4)}) {  // Looks in the middle of a piece, too.
      bandwidth.Look(now, come);
      bandwidth.Expect(0, {.sure = come[0], .possible = come[0] + 8});
      now += part;
    }
    ++come[0];
    bandwidth.Look(now, come);
    bandwidth.Count(kPiece);
  }
  EXPECT_NEAR(bandwidth.least(), kPiece / 10e-3, 0.05 * kPiece / 10e-3);
  EXPECT_EQ(bandwidth.most(), 0) << "it was never surely at work";
}

// Rows take 5 ms with what comes in one, and then next to nothing.
TEST(FetchedBandwidthTest, TimeInWhichRowsDoNotWaitIsCountedUntilTheyDo) {
  for (const size_t lanes : {1u, 3u}) {
    SCOPED_TRACE(lanes);
    Stream stream(lanes, kFast);
    stream.Use(2000, Millis(5));
    const double seconds = 5e-3 * 2000 * static_cast<double>(lanes);
    EXPECT_NEAR(stream.bandwidth().unbounded_seconds(), seconds, 0.05 * seconds);
    stream.Use(200, Micros(50));
    EXPECT_EQ(stream.bandwidth().unbounded_seconds(), 0);
    ExpectNear(stream.bandwidth(), kFast);
  }
}

TEST(FetchedBandwidthTest, ARestBetweenStepsIsNoTimeOfRowsThatDoNotWait) {
  Stream stream(1, kFast);
  for (int step = 0; step < 20; ++step) {
    stream.Use(40, Millis(5));
    stream.Rest(Seconds(100), /*may_come=*/false);
  }
  EXPECT_GT(stream.bandwidth().unbounded_seconds(), 3);
  EXPECT_LT(stream.bandwidth().unbounded_seconds(), 20 * (40 * 5e-3 + 0.2));
}

// A piece takes 10 ms, in which the sender may or may not rest.
TEST(FetchedBandwidthTest, RowsThatWaitNowAndThenAreAsTheyWere) {
  FetchedBandwidth bandwidth;
  bandwidth.Begin(1);
  std::vector<uint64_t> come = {0};
  Nanos now = Seconds(1);
  const auto use = [&](Nanos waited) {
    for (size_t piece = 0; piece < 10 * FetchedBandwidth::kPiecesLeast; ++piece) {
      bandwidth.Look(now, come);
      bandwidth.Expect(0, {.sure = come[0], .possible = come[0] + 8});
      now += Millis(10);
      ++come[0];
      bandwidth.CountWait(waited);
      bandwidth.Look(now, come);
      bandwidth.Count(kPiece);
    }
  };
  use(Micros(500));
  const double counted = bandwidth.unbounded_seconds();
  EXPECT_NEAR(counted, 3.2, 0.1);
  use(Micros(1500));
  EXPECT_EQ(bandwidth.unbounded_seconds(), counted);
  use(Micros(500));
  EXPECT_NEAR(bandwidth.unbounded_seconds(), 2 * counted, 0.1);
  use(Micros(2500));
  EXPECT_EQ(bandwidth.unbounded_seconds(), 0);
}

TEST(FetchedBandwidthTest, SmallPiecesSayNothing) {
  Stream stream(1, kFast, /*piece=*/FetchedBandwidth::kPieceBytesLeast - 1);
  stream.Use(2000, Micros(50));
  stream.Use(200, Millis(5));
  EXPECT_EQ(stream.bandwidth().least(), 0);
  EXPECT_EQ(stream.bandwidth().most(), 0);
  EXPECT_EQ(stream.bandwidth().unbounded_seconds(), 0);
}

TEST(FetchedBandwidthTest, AnEpochBeginsWithNothingKnown) {
  Stream stream(1, kFast);
  EXPECT_TRUE(stream.bandwidth().MayCome());
  stream.Use(200, Millis(5));
  EXPECT_GT(stream.bandwidth().unbounded_seconds(), 0);

  stream.bandwidth().Begin(2);

  EXPECT_EQ(stream.bandwidth().least(), 0);
  EXPECT_EQ(stream.bandwidth().most(), 0);
  EXPECT_EQ(stream.bandwidth().unbounded_seconds(), 0);
  EXPECT_FALSE(stream.bandwidth().MayCome());
}

}  // namespace
}  // namespace lamina::telemetry
