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

}  // namespace

void FetchedBandwidth::Begin(size_t lanes) {
  lanes_.assign(lanes, {});
  looked_ = 0;
  at_work_ = 0;
  either_ = 0;
  bytes_ = 0;
  pieces_ = 0;
  has_changed_ = false;
  Show(0, kUnbounded);
}

void FetchedBandwidth::Look(Nanos now, absl::Span<const uint64_t> come) {
  bool at_work = false;
  bool at_rest = !MayCome();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    at_work |= come[i] < lanes_[i].expected.sure;
    at_rest &= come[i] == lanes_[i].come;  // Else the lane's next step has begun there.
    lanes_[i].come = come[i];
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
    Bound(came / ToSeconds(longest), at_work_ > 0 ? came / ToSeconds(at_work_) : kUnbounded,
          longest);
  }
  at_work_ = 0;
  either_ = 0;
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

void FetchedBandwidth::Show(double least, double most) {
  least_.store(least, std::memory_order_relaxed);
  most_.store(most < kUnbounded ? most : 0, std::memory_order_relaxed);
}

}  // namespace lamina::telemetry
