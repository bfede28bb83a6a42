// SPDX-License-Identifier: Apache-2.0
//
// A compute device's exchange of rows with windows of shm://. The peers are threads of this process
// that answer with the processor; each has windows of its own, by request as in a cluster.

#include "kernels/window_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "kernels/cuda/compute_device.h"
#include "kernels/cuda/wait.h"
#include "transport/shm/shm_transport.h"

namespace lamina::kernels::cuda {
namespace {

constexpr size_t kRowBytes = 96;
constexpr size_t kRowsMax = 7;
constexpr size_t kWindowBytes = 4096;
constexpr Nanos kLong = Seconds(60);  // Only a failure waits for it.
constexpr Nanos kShort = Millis(2);

HostWindows WindowsOf(const transport::DirectMemory& memory) {
  return {.bytes = memory.bytes,
          .words = memory.words,
          .word_stride = memory.word_stride,
          .pages = memory.pages};
}

// Every peer has windows [lanes][parities] for the device's rows, the device windows
// [peers][lanes][parities] for theirs.
class WindowExchangeTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint32_t kLanes = 2;

  void Make(Nanos timeout) {
    auto device = MakeCudaComputeDevice(
        {.dense = {.compute_type = DType::kBF16, .workspace_bytes = size_t{8} << 20}});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    ASSERT_TRUE(device_->Begin().ok());
    replies_ = MakeRegion("replies", peers() * kLanes);
    to_replies_ = transport_->OpenRegion(replies_->Descriptor(), 0).value();
    std::vector<HostWindows> windows;
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      queries_.push_back(MakeRegion("queries", kLanes));
      to_queries_.push_back(transport_->OpenRegion(queries_.back()->Descriptor(), 0).value());
      windows.push_back(WindowsOf(to_queries_.back()->direct()));
    }
    auto exchange = device_->MakeExchange({.own = WindowsOf(replies_->direct()),
                                           .peers = peers(),
                                           .lanes = kLanes,
                                           .timeout = timeout});
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    exchange_ = *std::move(exchange);
    ASSERT_TRUE(exchange_->SetPeers(windows).ok());
    out_ = device_->Allocate(kLanes * peers() * kRowsMax * kRowBytes).value();
    in_ = device_->Allocate(out_.bytes).value();
    host_ = device_->AllocateHost(out_.bytes).value();
  }

  void TearDown() override {
    if (exchange_ != nullptr) {
      exchange_->Abort();
      EXPECT_TRUE(device_->Synchronize().ok());
    }
  }
  // Everything anew.
  void SetUpAgain() {
    TearDown();
    exchange_.reset();
    to_queries_.clear();
    queries_.clear();
    out_ = in_ = host_ = {};
  }

  uint32_t peers() const { return GetParam(); }
  static size_t RowsOf(uint32_t peer) { return 1 + peer * 2 % kRowsMax; }
  static size_t QueryWindow(uint32_t lane, uint64_t unit) {
    return (lane * 2 + unit % 2) * kWindowBytes;
  }
  static size_t ReplyWindow(uint32_t peer, uint32_t lane, uint64_t unit) {
    return ((peer * kLanes + lane) * 2 + unit % 2) * kWindowBytes;
  }
  static uint32_t ReplyWord(uint32_t peer, uint32_t lane) { return peer * kLanes + lane; }
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

  // Rows of a unit to all peers, and from all.
  absl::Status SendAll(uint32_t lane, uint64_t unit, const Buffer& from) {
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      const absl::Status sent = exchange_->Send(lane, unit,
                                                {.peer = peer,
                                                 .window = QueryWindow(lane, unit),
                                                 .stamp = StampOf(peer, lane, unit),
                                                 .rows = RowsAt(from, lane, peer),
                                                 .bytes = RowsOf(peer) * kRowBytes,
                                                 .word = lane,
                                                 .value = unit * 16});
      if (!sent.ok()) {
        return sent;
      }
    }
    return absl::OkStatus();
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
                    .value = unit * 16});
    }
    return exchange_->Take(lane, unit, in);
  }

  // The processor's part: every byte that came, plus one. `stamp` stands before it.
  void Answer(uint32_t peer, uint32_t lane, uint64_t unit, const WindowStamp& stamp) {
    const std::byte* const query = queries_[peer]->bytes().data() + QueryWindow(lane, unit);
    std::vector<std::byte> window(kWindowHeaderBytes + RowsOf(peer) * kRowBytes);
    std::memcpy(window.data(), &stamp, sizeof(stamp));
    for (size_t i = kWindowHeaderBytes; i < window.size(); ++i) {
      window[i] = static_cast<std::byte>(static_cast<uint8_t>(query[i]) + 1);
    }
    const transport::SignalUpdate signal{.word = ReplyWord(peer, lane), .value = unit * 16};
    const absl::Status put =
        transport_->Put(*to_replies_, ReplyWindow(peer, lane, unit), window, &signal);
    EXPECT_TRUE(put.ok()) << put;
  }
  // Waits for the unit's rows, and looks at their header.
  void Await(uint32_t peer, uint32_t lane, uint64_t unit) {
    while (queries_[peer]->LoadSignal(lane) < unit * 16) {
      std::this_thread::yield();
    }
    WindowStamp got;
    std::memcpy(&got, queries_[peer]->bytes().data() + QueryWindow(lane, unit), sizeof(got));
    const WindowStamp expected = StampOf(peer, lane, unit);
    EXPECT_EQ(std::memcmp(&got, &expected, sizeof(got)), 0);
  }

  // Waits until the lane's take has ended.
  void Finish(uint32_t lane) {
    const Nanos deadline = RealClock().Now() + kLong;
    for (;;) {
      const absl::StatusOr<bool> taken = exchange_->HasTaken(lane);
      ASSERT_TRUE(taken.ok()) << taken.status();
      if (*taken) {
        return;
      }
      ASSERT_LT(RealClock().Now(), deadline);
      std::this_thread::yield();
    }
  }

  // A unit to which the peers answer as `answer` does, in a thread.
  template <typename AnswerAll>
  FailedTake FailingUnit(const AnswerAll& answer) {
    EXPECT_TRUE(SendAll(0, 1, out_).ok());
    std::jthread others(answer);
    EXPECT_TRUE(TakeAll(0, 1, in_).ok());
    Finish(0);
    const auto failed = exchange_->FailureOf(0);
    EXPECT_TRUE(failed.has_value());
    EXPECT_FALSE(exchange_->FailureOf(1).has_value());
    return failed.value_or(FailedTake{});
  }
  void AnswerAllBut(uint32_t silent, uint64_t unit) {
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      if (peer != silent) {
        Answer(peer, 0, unit, StampOf(peer, 0, unit));
      }
    }
  }

  std::vector<uint8_t> Fetch(const Buffer& from, uint32_t lane, uint32_t peer) {
    const size_t bytes = RowsOf(peer) * kRowBytes;
    device_->Copy(host_.data, RowsAt(from, lane, peer), bytes);
    EXPECT_TRUE(device_->Synchronize().ok());
    std::vector<uint8_t> values(bytes);
    std::memcpy(values.data(), host_.data, bytes);
    return values;
  }

  const std::unique_ptr<transport::Transport> transport_ = transport::MakeShmTransport();
  std::unique_ptr<transport::Region> replies_;
  std::unique_ptr<transport::RemoteRegion> to_replies_;
  std::vector<std::unique_ptr<transport::Region>> queries_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> to_queries_;
  std::unique_ptr<ComputeDevice> device_;
  Buffer out_;
  Buffer in_;
  Buffer host_;
  std::unique_ptr<WindowExchange> exchange_;  // Before the windows go.
};

// What is taken of a unit is sent with the next, so every round adds one; lanes in turns.
TEST_P(WindowExchangeTest, RowsGoOutAndComeBackRoundAfterRound) {
  Make(kLong);
  constexpr uint64_t kUnits = 50;
  std::vector<std::jthread> others;
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    others.emplace_back([this, peer] {
      for (uint64_t unit = 1; unit <= kUnits; ++unit) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          Await(peer, lane, unit);
          Answer(peer, lane, unit, StampOf(peer, lane, unit));
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
    Finish(lane);
    EXPECT_FALSE(exchange_->FailureOf(lane).has_value());
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      EXPECT_THAT(Fetch(in_, lane, peer), testing::Each(kUnits)) << "lane " << lane << " " << peer;
    }
  }
}

TEST_P(WindowExchangeTest, SaysHowLongItStoodStillAndHowLongItWorked) {
  Make(kLong);
  std::jthread others([this] {
    for (const uint64_t unit : {1, 2}) {
      for (uint32_t peer = 0; peer < peers(); ++peer) {
        Await(peer, 1, unit);
        Answer(peer, 1, unit, StampOf(peer, 1, unit));
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

  Nanos told = exchange_->SentAfter(1);
  EXPECT_GE(told, 0);
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    EXPECT_GE(exchange_->WaitedFor(1, peer), 0);
    told += exchange_->WaitedFor(1, peer);
  }
  EXPECT_LE(told, elapsed);
}

TEST_P(WindowExchangeTest, APeerThatDoesNotAnswerIsATimeout) {
  Make(kShort);
  const uint32_t silent = peers() - 1;

  AnswerAllBut(silent, 1);

  const FailedTake failed = FailingUnit([] {});

  EXPECT_EQ(failed.outcome, WaitOutcome::kTimeout);
  EXPECT_EQ(failed.peer, silent);
  EXPECT_EQ(failed.unit, 1u);
}

TEST_P(WindowExchangeTest, AnAbortEndsTakesNowAndFromNowOn) {
  Make(kLong);

  const FailedTake failed = FailingUnit([this] { exchange_->Abort(); });
  EXPECT_EQ(failed.outcome, WaitOutcome::kAborted);

  ASSERT_TRUE(SendAll(1, 1, out_).ok());
  ASSERT_TRUE(TakeAll(1, 1, in_).ok());
  Finish(1);
  ASSERT_TRUE(exchange_->FailureOf(1).has_value());
  EXPECT_EQ(exchange_->FailureOf(1)->outcome, WaitOutcome::kAborted);
}

TEST_P(WindowExchangeTest, AnOlderStampIsStaleAndAnotherAMismatch) {
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

TEST_P(WindowExchangeTest, AfterAFailureNothingOfTheLaneLeavesAndOthersGoOn) {
  Make(kShort);
  FailingUnit([] {});
  EXPECT_THAT(Fetch(in_, 0, 0), testing::Each(0));  // Nothing was taken.

  ASSERT_TRUE(SendAll(0, 2, out_).ok());
  ASSERT_TRUE(SendAll(1, 2, out_).ok());
  std::jthread others([this] {
    for (uint32_t peer = 0; peer < peers(); ++peer) {
      Await(peer, 1, 2);
      Answer(peer, 1, 2, StampOf(peer, 1, 2));
    }
  });
  others.join();
  ASSERT_TRUE(TakeAll(0, 2, in_).ok());
  ASSERT_TRUE(TakeAll(1, 2, in_).ok());
  Finish(0);
  Finish(1);

  EXPECT_EQ(exchange_->FailureOf(0)->unit, 1u);
  EXPECT_FALSE(exchange_->FailureOf(1).has_value());
  for (uint32_t peer = 0; peer < peers(); ++peer) {
    EXPECT_EQ(queries_[peer]->LoadSignal(0), 16u);
    EXPECT_THAT(Fetch(in_, 1, peer), testing::Each(1));
  }
}

TEST_P(WindowExchangeTest, RefusesPeersThatItDoesNotReach) {
  Make(kLong);
  const std::vector<HostWindows> none(peers());
  const auto again = device_->MakeExchange(
      {.own = WindowsOf(replies_->direct()), .peers = peers(), .lanes = kLanes, .timeout = kLong});
  const auto nobody = device_->MakeExchange({.own = {}, .peers = 0});

  EXPECT_TRUE(absl::IsInvalidArgument(exchange_->SetPeers(none)));
  EXPECT_TRUE(absl::IsInvalidArgument(exchange_->SetPeers({})));
  EXPECT_FALSE(again.ok());  // Its windows are registered.
  EXPECT_THAT(again.status().message(), testing::HasSubstr("cudaErrorHostMemoryAlreadyRegistered"));
  EXPECT_TRUE(absl::IsInvalidArgument(nobody.status())) << nobody.status();
}

INSTANTIATE_TEST_SUITE_P(Peers, WindowExchangeTest, ::testing::Values(1u, 3u));

}  // namespace
}  // namespace lamina::kernels::cuda
