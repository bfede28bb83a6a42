// SPDX-License-Identifier: Apache-2.0
#include "compute_node/policy_turns.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/check.h"
#include "compute_node/reads_seen.h"

namespace lamina::compute_node {
namespace {

using Turns = std::vector<const PolicyTurn*>;
using Sizes = std::vector<plan::SliceTimes> plan::PolicyTimes::*;
using Rate = double plan::PolicyTimes::*;

double ReadsOf(const PolicyTurn& turn) { return (turn.reads_before + turn.reads_after) / 2; }

// Turns in which reads did not change: one group, or slow ones and fast ones. All in one if there
// is no such turn.
std::vector<Turns> GroupsOf(absl::Span<const PolicyTurn> turns) {
  Turns all;
  Turns steady;
  std::vector<double> reads;
  for (const PolicyTurn& turn : turns) {
    all.push_back(&turn);
    if (ReadsAlike(turn.reads_before, turn.reads_after)) {
      steady.push_back(&turn);
      reads.push_back(ReadsOf(turn));
    }
  }
  if (steady.empty()) {
    return {all};
  }
  std::vector<Turns> groups;
  // A single turn says enough: it consists of many measurements, between two of the same reads.
  for (const std::vector<size_t>& group : SeenIn(reads, /*group_min=*/1).groups) {
    Turns& own = groups.emplace_back();
    for (const size_t turn : group) {
      own.push_back(steady[turn]);
    }
  }
  return groups;
}

// Other work makes times longer and rates lower: of an even number of turns the shorter time of the
// two in the middle counts, and the higher rate.
std::vector<plan::SliceTimes> MedianSizes(const Turns& turns, Sizes sizes) {
  std::vector<plan::SliceTimes> medians = turns.front()->times.*sizes;
  for (size_t size = 0; size < medians.size(); ++size) {
    std::vector<double> slices;
    std::vector<double> tails;
    for (const PolicyTurn* turn : turns) {
      const std::vector<plan::SliceTimes>& own = turn->times.*sizes;
      LAMINA_CHECK(own.size() == medians.size() && own[size].rows == medians[size].rows);
      slices.push_back(own[size].slice_seconds);
      tails.push_back(own[size].tail_seconds);
    }
    medians[size].slice_seconds = LowerMedian(std::move(slices));
    medians[size].tail_seconds = LowerMedian(std::move(tails));
  }
  return medians;
}

double MedianRate(const Turns& turns, Rate rate) {
  std::vector<double> rates;
  for (const PolicyTurn* turn : turns) {
    rates.push_back(turn->times.*rate);
  }
  return UpperMedian(std::move(rates));
}

plan::PolicyTimes MediansOf(const Turns& turns) {
  plan::PolicyTimes times = {
      .local = MedianSizes(turns, &plan::PolicyTimes::local),
      .pools = MedianSizes(turns, &plan::PolicyTimes::pools),
      .attention_local = MedianRate(turns, &plan::PolicyTimes::attention_local),
      .attention_shared = MedianRate(turns, &plan::PolicyTimes::attention_shared),
      .attention_pools = MedianRate(turns, &plan::PolicyTimes::attention_pools)};
  std::vector<double> reads;
  std::vector<double> making;
  for (const PolicyTurn* turn : turns) {
    reads.push_back(ReadsOf(*turn));
    making.push_back(turn->times.make_seconds);
  }
  times.read_bandwidth = UpperMedian(std::move(reads));
  times.make_seconds = LowerMedian(std::move(making));
  return times;
}

}  // namespace

plan::PolicyTimes TimesOfTurns(absl::Span<const PolicyTurn> turns) {
  LAMINA_CHECK(!turns.empty());
  const std::vector<Turns> groups = GroupsOf(turns);
  const bool fast_has_more = groups.size() > 1 && groups.back().size() > groups.front().size();
  plan::PolicyTimes times = MediansOf(fast_has_more ? groups.back() : groups.front());
  times.reads_low = turns.front().reads_before;
  for (const PolicyTurn& turn : turns) {
    times.reads_low = std::min({times.reads_low, turn.reads_before, turn.reads_after});
    times.reads_high = std::max({times.reads_high, turn.reads_before, turn.reads_after});
  }
  if (groups.size() == plan::kReadsEnds) {
    times.ends = {MediansOf(groups.front()), MediansOf(groups.back())};
  }
  return times;
}

}  // namespace lamina::compute_node
