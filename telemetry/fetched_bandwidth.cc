// SPDX-License-Identifier: Apache-2.0
#include "telemetry/fetched_bandwidth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace lamina::telemetry {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// Bounds that miss those before by less than this factor do so for the pieces that are cut.
constexpr double kNear = 1.1;
// In so long an upper bound doubles that nothing confirms: rows that no longer wait for a link that
// was slow say nothing of how fast it has become.
constexpr double kDoublesInSeconds = 60;
// Bounds that are no further apart are those of a link that is known.
constexpr double kKnown = 1.25;
// Where rows stand still for a smaller share of the time they hardly wait: a step's first piece
// comes only once its plan is there. Where they do for a larger one the link is what takes longest.
constexpr double kHardlyWaits = 0.1;
constexpr double kWaits = 0.2;
// No more counts of a longer time between two looks: it is a rest, in which no lane had a step.
constexpr Nanos kBetweenLooksMost = Millis(100);

}  // namespace

void FetchedBandwidth::Begin(size_t lanes) {
  lanes_.assign(lanes, {});
  looked_ = 0;
  at_work_ = 0;
  either_ = 0;
  passed_ = 0;
  waited_ = 0;
  bytes_ = 0;
  pieces_ = 0;
  has_changed_ = false;
  Show(0, kUnbounded);
  unbounded_seconds_.store(0, std::memory_order_relaxed);
}

void FetchedBandwidth::Look(Nanos now, absl::Span<const uint64_t> come) {
  bool at_work = false;
  bool at_rest = !MayCome();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    at_work |= come[i] < lanes_[i].expected.sure;
    at_rest &= come[i] == lanes_[i].come;  // Else the lane's next step has begun there.
    lanes_[i].come = come[i];
  }
  if (looked_ > 0) {
    passed_ += std::min(now - looked_, kBetweenLooksMost);
  }
  if (looked_ > 0 && at_work) {
    at_work_ += now - looked_;
  } else if (looked_ > 0 && !at_rest) {
    either_ += now - looked_;
  }
  looked_ = now;
}

void FetchedBandwidth::Expect(size_t lane, const Pieces& pieces) { lanes_[lane].expected = pieces; }

void FetchedBandwidth::Count(size_t bytes) {
  bytes_ += bytes;
  ++pieces_;
  const Nanos longest = at_work_ + either_;
  if (pieces_ < kPiecesLeast * lanes_.size() || longest < kTimeLeast) {
    return;
  }
  if (bytes_ >= pieces_ * kPieceBytesLeast) {
    const auto came = static_cast<double>(bytes_);
    const double least = came / ToSeconds(longest);
    const double most = at_work_ > 0 ? came / ToSeconds(at_work_) : kUnbounded;
    Bound(least, most, longest);
    CountUnbounded(least, most);
  }
  at_work_ = 0;
  either_ = 0;
  passed_ = 0;
  waited_ = 0;
  bytes_ = 0;
  pieces_ = 0;
}

bool FetchedBandwidth::MayCome() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.come < lane.expected.possible; });
}

// What both say is true of a link that has not changed. One that has changed a little is as near
// to what it was as it can be. Where it has changed more only the new bounds are true, and these
// only until there are others: it may have changed while they were taken.
void FetchedBandwidth::Bound(double least, double most, Nanos taken_in) {
  const double before_least = least_.load(std::memory_order_relaxed);
  const double shown = most_.load(std::memory_order_relaxed);
  double before_most = shown > 0 ? shown : kUnbounded;
  if (most > kNear * before_most) {
    before_most *= std::exp2(ToSeconds(taken_in) / kDoublesInSeconds);
  }
  if (std::exchange(has_changed_, false)) {
    Show(least, most);
  } else if (std::max(least, before_least) <= std::min(most, before_most)) {
    Show(std::max(least, before_least), std::min(most, before_most));
  } else if (least > before_most && least < kNear * before_most) {
    Show(least, least);
  } else if (most < before_least && kNear * most > before_least) {
    Show(most, most);
  } else {
    has_changed_ = true;
    Show(least, most);
  }
}

// Between the two shares the time stays as it is: there rows and link wait for each other about
// equally long, as they do at the best split.
void FetchedBandwidth::CountUnbounded(double least, double most) {
  const auto passed = static_cast<double>(passed_);
  const auto waited = static_cast<double>(waited_);
  if (most <= kKnown * least || waited > kWaits * passed) {
    unbounded_seconds_.store(0, std::memory_order_relaxed);
  } else if (waited < kHardlyWaits * passed) {
    unbounded_seconds_.store(unbounded_seconds() + ToSeconds(passed_), std::memory_order_relaxed);
  }
}

void FetchedBandwidth::Show(double least, double most) {
  least_.store(least, std::memory_order_relaxed);
  most_.store(most < kUnbounded ? most : 0, std::memory_order_relaxed);
}

}  // namespace lamina::telemetry
