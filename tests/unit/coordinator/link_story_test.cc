// SPDX-License-Identifier: Apache-2.0
//
// A link in virtual time, from what was measured of it to how tokens are split by what is believed
// of it: pieces come over it, FetchedBandwidth bounds it, and each layer's tokens are split anew.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/types/span.h"
#include "common/clock.h"
#include "coordinator/attached_nodes.h"
#include "coordinator/core/fetch_planning.h"
#include "coordinator/core/link_belief.h"
#include "plan/attention_paths.h"
#include "plan/step_plan.h"
#include "telemetry/fetched_bandwidth.h"

namespace lamina::coordinator {
namespace {

// All rows together have so many tokens, each with so many bytes in a layer, and half as many in
// its activation.
constexpr uint64_t kTokens = 65'536;
constexpr double kKvBytes = 1024;
constexpr double kMakeSeconds = 1.28e-6;
constexpr double kAttendSeconds = 1e-8;
constexpr size_t kPiece = size_t{1} << 20;
constexpr uint64_t kAhead = 8;  // Pieces that have room.

class LinkStory {
 public:
  LinkStory(double probed, double bytes_per_second)
      : rate_(bytes_per_second),
        planning_(core::MakeFetchRecompute({.kv = kKvBytes,
                                            .activation = kKvBytes / 2,
                                            .room = kKvBytes * static_cast<double>(kTokens)})) {
    node_.links = {{.peer = "m0", .path = "ucx tcp/eth0", .bytes_per_second = probed}};
    node_.counters.links = {{.peer = "m0"}};
    bandwidth_.Begin(1);
    Expect();
    Send();
  }

  void set_rate(double bytes_per_second) { rate_ = bytes_per_second; }

  double Believed() const { return core::FetchBandwidthOfAll(KnownLinksOf(node_)); }

  // Runs layers for so long, calling `after` behind each.
  void Run(
      Nanos time, const std::function<void()>& after = [] {}) {
    for (const Nanos end = now_ + time; now_ < end;) {
      RunLayer();
      telemetry::LinkCount& link = node_.counters.links[0];
      link.fetched_bytes_per_second_least = bandwidth_.least();
      link.fetched_bytes_per_second_most = bandwidth_.most();
      link.fetched_unbounded_seconds = bandwidth_.unbounded_seconds();
      after();
    }
  }

  // What a layer takes whose tokens are split by this bandwidth.
  Nanos LayerTime() {
    const Nanos began = now_;
    RunLayer();
    return now_ - began;
  }

 private:
  // In whole pieces: activations and, spread between them, K and V.
  void RunLayer() {
    const core::FetchShare share = planning_->Plan(
        {.path = plan::AttentionPath::kRecompute, .tokens = kTokens, .lanes = 1, .rows = 8},
        {.bytes_per_second = Believed(),
         .recompute_seconds = kMakeSeconds,
         .attend_seconds = kAttendSeconds});
    const double recomputed = static_cast<double>(share.recomputed) / plan::kRecomputeUnit;
    const double all = kKvBytes * static_cast<double>(kTokens) / static_cast<double>(kPiece);
    const auto made = static_cast<int>(std::lround(recomputed * all / 2));
    const auto fetched = static_cast<int>(std::lround((1 - recomputed) * all));
    const double tokens = static_cast<double>(kPiece) / kKvBytes;
    int turn = 0;
    for (int i = 0; i < made + fetched; ++i) {
      turn += made;
      const bool makes = turn >= made + fetched;
      turn -= makes ? made + fetched : 0;
      Use(makes ? 2 * tokens * (kMakeSeconds + kAttendSeconds) : tokens * kAttendSeconds);
    }
  }

  // The next piece, for so long.
  void Use(double seconds) {
    if (come_ == taken_) {
      bandwidth_.CountWait(arrives_ - now_);
      PassUntil(arrives_);
    }
    Look();
    bandwidth_.Count(kPiece);
    PassUntil(now_ + static_cast<Nanos>(seconds * 1e9));
    ++taken_;
    Expect();
    Send();
  }

  void Look() { bandwidth_.Look(now_, absl::MakeConstSpan(&come_, 1)); }

  // The compute node knows of two pieces that they have room.
  void Expect() {
    Look();
    bandwidth_.Expect(0, {.sure = taken_ + 2, .possible = taken_ + kAhead});
  }

  void Send() {
    if (!sending_ && come_ < taken_ + kAhead) {
      sending_ = true;
      arrives_ = now_ + static_cast<Nanos>(static_cast<double>(kPiece) / rate_ * 1e9);
    }
  }

  void PassUntil(Nanos time) {
    while (sending_ && arrives_ <= time) {
      now_ = arrives_;
      ++come_;
      sending_ = false;
      Send();
    }
    now_ = time;
  }

  double rate_;
  const std::unique_ptr<core::FetchPlanning> planning_;
  AttachedNode node_;
  telemetry::FetchedBandwidth bandwidth_;
  uint64_t come_ = 0;
  uint64_t taken_ = 0;
  Nanos now_ = Seconds(7);
  Nanos arrives_ = 0;
  bool sending_ = false;
};

constexpr double kLink = 900e6;

// All tokens are made again at first, so that the link is never waited for.
TEST(LinkStoryTest, AProbeThatWasFarTooLowIsNotBelievedForLong) {
  LinkStory story(/*probed=*/kLink / 30, kLink);
  EXPECT_DOUBLE_EQ(story.Believed(), kLink / 30);
  const Nanos before = story.LayerTime();

  story.Run(Seconds(180));

  story.Run(Seconds(180), [&] { EXPECT_NEAR(story.Believed(), kLink, 0.2 * kLink); });
  EXPECT_LT(static_cast<double>(story.LayerTime()), 0.7 * static_cast<double>(before));
}

TEST(LinkStoryTest, AProbeThatWasRightStaysBelieved) {
  LinkStory story(/*probed=*/kLink, kLink);
  const Nanos before = story.LayerTime();

  story.Run(Seconds(300), [&] { EXPECT_NEAR(story.Believed(), kLink, 0.2 * kLink); });

  EXPECT_LT(static_cast<double>(story.LayerTime()), 1.05 * static_cast<double>(before));
}

TEST(LinkStoryTest, ALinkThatBecomesSlowerAndFastAgainIsFollowed) {
  LinkStory story(/*probed=*/kLink, kLink);
  story.Run(Seconds(60));
  story.set_rate(kLink / 4);
  story.Run(Seconds(10));
  EXPECT_NEAR(story.Believed(), kLink / 4, 0.05 * kLink);
  story.set_rate(kLink);
  story.Run(Seconds(180));
  EXPECT_NEAR(story.Believed(), kLink, 0.2 * kLink);
}

}  // namespace
}  // namespace lamina::coordinator
