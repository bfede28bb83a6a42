// SPDX-License-Identifier: Apache-2.0
//
// How much of a stream of pieces is under way on a link that the replies to other lanes share.

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "memory_node/bytes_under_way.h"
#include "memory_node/piece_stream.h"
#include "telemetry/work_meter.h"
#include "tests/unit/memory_node/unit_cluster.h"
#include "transport/decorators/decorated_transport.h"
#include "transport/decorators/link_model.h"
#include "transport/fake/fake_network.h"
#include "transport/transport.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;

constexpr size_t kTurn = PieceStream::kTurnBytes;
constexpr uint32_t kLayers = 4;

// A clock that the test sets.
class SetClock final : public Clock {
 public:
  Nanos Now() const override { return now_; }
  void Set(Nanos now) { now_ = now; }

 private:
  std::atomic<Nanos> now_{0};
};

// What the test knows of a link, and does to it: while it is held nothing leaves.
struct LinkState {
  std::atomic<bool> held{false};
  std::atomic<uint64_t> bytes{0};  // Puts since it is held have so many.
};

class HeldLink final : public transport::LinkModel {
 public:
  // What is put while the link is held leaves at this time.
  static constexpr Nanos kReleased = 1;

  explicit HeldLink(LinkState& state) : state_(state) {}

  transport::PutFate Judge(uint64_t bytes, Nanos /*now*/) override {
    if (!state_.held) {
      return {};
    }
    state_.bytes += bytes;
    return {.due = kReleased};
  }

 private:
  LinkState& state_;
};

// A memory node with two lanes, the link of which is the test's. Rows of lane 0 fetch, those of
// lane 1 do what `attends_too` says. A layer of the sequence of lane 0 is a piece of two turns and
// a bit.
class PacedStreamsTest : public ::testing::Test {
 protected:
  void Begin(bool attends_too) {
    cluster_.emplace(UnitClusterOptions{
        .lanes = 2,
        .layers = kLayers,
        .layer = {.query_heads = 3, .kv_heads = 3, .head_dim = 64, .scale = 0.125f},
        .fetch_bytes = uint64_t{4} << 20,
        .attends_too = attends_too,
        .make_transport = [this](DeviceMemory* /*device*/) { return MakeTransport(); }});
    cluster().Start();
    cluster().Run({.lane = 0, .step = 1, .prompts = {{0, 700}}});
    cluster().Run({.lane = 1, .step = 1, .prompts = {{1, 70}}});
  }

  UnitCluster& cluster() { return *cluster_; }

  // The step of lane 0, whose pieces leave once the link does not hold them.
  Step BeginStream() {
    link_.held = true;
    Step step = cluster().MakeStep({.lane = 0, .step = 2, .rows = {0}});
    cluster().PushPlan(step);
    return step;
  }

  // Waits until so many bytes have been put on the held link.
  void AwaitBytes(uint64_t bytes) {
    const Nanos deadline = RealClock().Now() + UnitCluster::kLong;
    while (link_.bytes < bytes && RealClock().Now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_GE(link_.bytes.load(), bytes);
  }

  // Waits until the stream has gone as far as it goes.
  void AwaitStandstill() {
    for (int i = 0; i < 4; ++i) {
      cluster().AwaitTurns();
    }
  }

  void Release() {
    link_.held = false;
    clock_.Set(HeldLink::kReleased);
  }

  // Takes the pieces of the step, a layer each, and ends it.
  void EndStream(const Step& step) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_NO_FATAL_FAILURE(cluster().AwaitFetched(0, 0, layer + 1));
      ASSERT_NO_FATAL_FAILURE(cluster().RunUnit(step, layer));
      cluster().RaiseCredit(0, 0, layer + 1);
    }
  }

  LinkState link_;

 private:
  // The memory node's is made first.
  std::unique_ptr<transport::Transport> MakeTransport() {
    std::unique_ptr<transport::Transport> made = network_.MakeTransport();
    if (std::exchange(is_first_, false)) {
      made = transport::Decorate(std::move(made), std::make_unique<HeldLink>(link_), clock_);
    }
    return made;
  }

  transport::FakeNetwork network_{transport::FakeNetworkOptions{}};
  SetClock clock_;
  bool is_first_ = true;
  std::optional<UnitCluster> cluster_;
};

TEST_F(PacedStreamsTest, AReplyIsAtMostTwoTurnsBehindAStream) {
  Begin(/*attends_too=*/true);
  const Step stream = BeginStream();
  AwaitBytes(2 * kTurn);
  AwaitStandstill();
  EXPECT_EQ(link_.bytes.load(), 2 * kTurn);

  const Step step = cluster().MakeStep({.lane = 1, .step = 2, .rows = {1}});
  cluster().PushPlan(step);
  const std::vector<UnitCluster::Window> windows = cluster().MakeWindows(step, 0);
  ASSERT_EQ(windows.size(), 1u);
  cluster().Put(windows[0]);
  AwaitBytes(2 * kTurn + 1);
  AwaitStandstill();
  EXPECT_LT(link_.bytes.load(), 2 * kTurn + 4096) << "the stream went on behind the reply";
  EXPECT_LT(cluster().Replied(0, 0, 1), windows[0].value) << "the link is held";

  Release();
  cluster().ExpectReplies(step, 0, windows);
  EndStream(stream);
  for (uint32_t layer = 1; layer < kLayers; ++layer) {
    cluster().RunUnit(step, layer);
  }
  cluster().Stop();
}

// Where nobody attends here, replies are the credits of rows that were stored, for which the
// compute node waits before it goes on with the next layer.
TEST_F(PacedStreamsTest, ACreditIsAtMostTwoTurnsBehindAStream) {
  Begin(/*attends_too=*/false);
  const Step stream = BeginStream();
  AwaitBytes(2 * kTurn);
  AwaitStandstill();
  EXPECT_EQ(link_.bytes.load(), 2 * kTurn);

  Release();
  EndStream(stream);
  cluster().Stop();
}

// A look takes a time of its own, and what passes between looks is no time of puts.
TEST_F(PacedStreamsTest, AStreamWithoutRoomStandsStill) {
  constexpr Nanos kLook = Micros(20);
  Begin(/*attends_too=*/true);
  const Step stream = BeginStream();
  AwaitBytes(2 * kTurn);
  AwaitStandstill();
  const telemetry::WorkMeter& meter = cluster().counters().meter;
  const double counted_before = meter.Seconds(telemetry::WorkKind::kWaitQuery);
  const Nanos start = RealClock().Now();
  const uint64_t beats_before = cluster().counters().beat.beats();
  while (RealClock().Now() - start < Millis(20)) {
    std::this_thread::yield();
  }
  const uint64_t beats = cluster().counters().beat.beats() - beats_before;
  const Nanos stood_still = RealClock().Now() - start;
  EXPECT_LE(beats, static_cast<uint64_t>(stood_still / kLook) + 4) << "it spins";

  Release();
  cluster().AwaitFetched(0, 0, 1);

  EXPECT_GE(meter.Seconds(telemetry::WorkKind::kWaitQuery) - counted_before,
            ToSeconds(stood_still));
  EndStream(stream);
  cluster().Stop();
}

TEST(BytesUnderWayTest, AreThoseOfTheLastPuts) {
  BytesUnderWay under_way;
  EXPECT_EQ(under_way.Of(2), 0u) << "there were none";

  for (size_t bytes = 1; bytes <= 200; ++bytes) {
    under_way.Add(bytes);
  }

  EXPECT_EQ(under_way.Of(0), 0u);
  EXPECT_EQ(under_way.Of(3), 198u + 199u + 200u);
  EXPECT_EQ(under_way.Of(BytesUnderWay::kPuts), 17472u);  // 73 to 200.
  EXPECT_EQ(under_way.Of(BytesUnderWay::kPuts + 1), std::numeric_limits<size_t>::max());
}

}  // namespace
}  // namespace lamina::memory_node
