// SPDX-License-Identifier: Apache-2.0
//
// Turns of several sources, and a toy stream of K and V that is served between queries with nothing
// but WorkSource.

#include "memory_node/source_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory_node/unit_meter.h"
#include "tests/unit/memory_node/unit_cluster.h"
#include "transport/put_all.h"

namespace lamina::memory_node {
namespace {

// Has work whenever it is asked, until the worker is stopped after so many turns of all.
class BusySource final : public WorkSource {
 public:
  BusySource(char name, uint32_t share, std::string& turns, std::function<void()> turn)
      : name_(name), share_(share), turns_(turns), turn_(std::move(turn)) {}

  absl::Status Open() override { return absl::OkStatus(); }
  void Close() override {}
  uint32_t share() const override { return share_; }
  absl::StatusOr<bool> TakeStep(Lane&) override { return false; }
  void AppendAwaited(std::vector<transport::SignalCondition>&) override {}
  Nanos LookAt(Nanos now) const override { return busy ? now : kNever; }
  absl::Status Look() override {
    turns_ += name_;
    turn_();
    return result;
  }
  absl::Status Serve(size_t) override { return absl::InternalError("awaits no signal"); }

  bool busy = true;
  absl::Status result;

 private:
  const char name_;
  const uint32_t share_;
  std::string& turns_;
  const std::function<void()> turn_;
};

class SourceLoopTest : public ::testing::Test {
 protected:
  static constexpr size_t kTurns = 40;

  std::function<void()> Turn() {
    return [this] {
      if (turns_.size() >= kTurns) {
        cluster_.worker().Stop();
      }
    };
  }
  absl::Status Run(const std::vector<WorkSource*>& sources) {
    UnitMeter meter(cluster_.worker().epoch());
    return SourceLoop(cluster_.worker().epoch(), cluster_.worker().feed(), meter, sources).Run();
  }

  UnitCluster cluster_{{}};
  std::string turns_;
};

TEST_F(SourceLoopTest, SourcesOfOneShareAlternate) {
  BusySource a('a', 1, turns_, Turn());
  BusySource b('b', 1, turns_, Turn());

  EXPECT_TRUE(Run({&a, &b}).ok());

  EXPECT_EQ(turns_.substr(0, 8), "abababab");
}

TEST_F(SourceLoopTest, TurnsAreByShare) {
  BusySource a('a', 3, turns_, Turn());
  BusySource b('b', 1, turns_, Turn());

  EXPECT_TRUE(Run({&a, &b}).ok());

  EXPECT_EQ(std::count(turns_.begin(), turns_.end(), 'b'), kTurns / 4) << turns_;
}

TEST_F(SourceLoopTest, NobodySavesUpTurns) {
  BusySource a('a', 1, turns_, [this] { Turn()(); });
  BusySource b('b', 1, turns_, Turn());
  b.busy = false;
  BusySource waker('w', 1, turns_, [&] { b.busy = turns_.size() > 20; });

  EXPECT_TRUE(Run({&a, &b, &waker}).ok());

  EXPECT_THAT(turns_, ::testing::Not(::testing::HasSubstr("bb")));
  EXPECT_THAT(turns_, ::testing::HasSubstr("b"));
}

TEST_F(SourceLoopTest, TheErrorOfASourceEndsIt) {
  BusySource a('a', 1, turns_, Turn());
  BusySource b('b', 1, turns_, Turn());
  b.result = absl::UnavailableError("b is gone");

  EXPECT_EQ(Run({&a, &b}), b.result);

  EXPECT_EQ(turns_, "ab");
}

// Blocks of a node's KV to a peer, as many as it has credits for. Begins with a step's plan.
class ToyStream final : public WorkSource {
 public:
  static constexpr uint32_t kBlocks = 24;
  static constexpr size_t kBlockBytes = 256;

  ToyStream(const NodeEpoch& epoch, uint32_t credits, const transport::Region& target)
      : epoch_(epoch), credits_(credits) {
    for (size_t i = 0; i < kv_.size(); ++i) {
      kv_[i] = static_cast<std::byte>(i * 31 % 251);
    }
    to_ = *epoch.transport.OpenRegion(target.Descriptor(), UnitCluster::kEpoch);
  }

  absl::Status Open() override {
    opened = true;
    return epoch_.transport.RegisterSource(kv_, transport::MemoryKind::kHost);
  }
  void Close() override {
    closed = true;
    to_.reset();
  }
  uint32_t share() const override { return 1; }
  absl::StatusOr<bool> TakeStep(Lane& lane) override {
    begun_ = begun_ || lane.step >= 2;
    return false;
  }
  // The receiver's credits come as a signal of the node's own region.
  void AppendAwaited(std::vector<transport::SignalCondition>& conditions) override {
    if (begun_ && sent < kBlocks) {
      conditions.push_back({.word = credits_, .at_least = sent + 1});
    }
  }
  Nanos LookAt(Nanos) const override { return kNever; }
  absl::Status Look() override { return absl::InternalError("has no time to look"); }
  absl::Status Serve(size_t) override {
    const transport::SignalUpdate signal{.word = 0, .value = sent + 1};
    const absl::Status put = transport::PutAll(
        epoch_.transport, *to_, sent * kBlockBytes,
        absl::MakeConstSpan(kv_).subspan(sent * kBlockBytes, kBlockBytes), &signal,
        {.deadline = RealClock().Now() + UnitCluster::kLong, .abort = &epoch_.abort});
    ++sent;
    return put;
  }

  std::vector<std::byte> kv_ = std::vector<std::byte>(kBlocks * kBlockBytes);
  std::atomic<uint64_t> sent{0};
  bool opened = false;
  bool closed = false;

 private:
  const NodeEpoch& epoch_;
  const uint32_t credits_;  // The word.
  std::unique_ptr<transport::RemoteRegion> to_;
  bool begun_ = false;
};

TEST(ToyStreamTest, IsServedBetweenQueries) {
  std::optional<ToyStream> stream;  // Outlives the worker.
  UnitCluster cluster({.lanes = 2});
  const std::unique_ptr<transport::Transport> receiver = cluster.MakeTransport();
  const std::unique_ptr<transport::Region> target =
      *receiver->CreateRegion({.name = "stream",
                               .bytes = ToyStream::kBlocks * ToyStream::kBlockBytes,
                               .signal_words = 1,
                               .epoch = UnitCluster::kEpoch});
  stream.emplace(cluster.worker().epoch(), cluster.spare_word(), *target);
  cluster.worker().AddSource(*stream);
  cluster.Start();
  cluster.Run({.lane = 0, .step = 1, .prompts = {{0, 30}}});
  cluster.Run({.lane = 1, .step = 1, .prompts = {{1, 20}}});
  EXPECT_EQ(stream->sent, 0u);

  for (uint64_t step = 2; step < 2 + ToyStream::kBlocks / 2; ++step) {
    cluster.RaiseSpareWord(0, (step - 1) * 2);
    cluster.Run({.lane = 0, .step = step, .rows = {0}});
    cluster.Run({.lane = 1, .step = step, .rows = {1}});
  }

  const transport::SignalCondition all{.word = 0, .at_least = ToyStream::kBlocks};
  ASSERT_TRUE(
      receiver->Wait(*target, {&all, 1}, {.deadline = RealClock().Now() + UnitCluster::kLong})
          .ok());
  EXPECT_TRUE(std::equal(stream->kv_.begin(), stream->kv_.end(), target->bytes().begin()));
  cluster.Stop();
  EXPECT_TRUE(stream->opened && stream->closed);
}

}  // namespace
}  // namespace lamina::memory_node
