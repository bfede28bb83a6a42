// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/logit_cut.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kSlack = 16;  // What the passes may write behind the last element.

// So few are sorted.
constexpr size_t kSorted = 64;

// Halvings of the range of values; after these, which suffice unless values crowd together on many
// scales, the range of bit patterns is halved, which ends within 32 more.
constexpr int kValueHalvings = 24;

// Integers in the order of floats that are not NaN.
uint32_t Ordered(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
float FromOrdered(uint32_t ordered) {
  return std::bit_cast<float>((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// A value in (lowest, highest].
float Pivot(const LogitRange& range, int halvings) {
  const uint32_t low = Ordered(range.lowest);
  const uint32_t high = Ordered(range.highest);
  const float middle = halvings < kValueHalvings ? range.lowest * 0.5f + range.highest * 0.5f
                                                 : FromOrdered(low + (high - low + 1) / 2);
  return middle > range.lowest && middle <= range.highest ? middle : range.highest;
}

// What is in question: the best of these are still missing from the cut.
struct Search {
  WeightedLogits pairs;
  size_t count = 0;
  double weight = 0;  // Weight of what is in the cut already.
  double wanted = 0;
};

// The last that is in the cut, and how many of that value are.
struct Last {
  float logit = 0;
  size_t ties = 0;
};

// Takes the best, one after the other, until the weight is reached. The first stays whatever the
// rounding of `wanted`.
Last TakeBest(const Search& search, bool sort) {
  uint32_t order[kSorted];
  if (sort) {
    std::iota(order, order + search.count, 0u);
    std::sort(order, order + search.count, [&](uint32_t a, uint32_t b) {
      const float left = search.pairs.logits[a];
      const float right = search.pairs.logits[b];
      return left > right || (left == right && a < b);
    });
  }
  Last last;
  double weight = search.weight;
  for (size_t i = 0; i < search.count; ++i) {
    if (i > 0 && weight >= search.wanted) {
      break;
    }
    const size_t at = sort ? order[i] : i;
    last.ties = i > 0 && search.pairs.logits[at] == last.logit ? last.ties + 1 : 1;
    last.logit = search.pairs.logits[at];
    weight += double{search.pairs.weights[at]};
  }
  return last;
}

Last FindLast(Search search) {
  for (int halvings = 0; search.count > kSorted; ++halvings) {
    const LogitRange range = RangeOf({search.pairs.logits, search.count});
    if (range.lowest == range.highest) {
      return TakeBest(search, false);
    }
    const float pivot = Pivot(range, halvings);
    const double upper = WeightFrom(search.pairs, search.count, pivot);
    const bool enough = search.weight + upper >= search.wanted;
    if (!enough) {
      search.weight += upper;
    }
    search.count = KeepHalf(search.pairs, search.count, pivot, enough);
  }
  return TakeBest(search, true);
}

Search SearchOver(size_t tokens, double wanted, CutScratch& scratch) {
  scratch.logits.resize(std::max(scratch.logits.size(), tokens + kSlack));
  scratch.weights.resize(scratch.logits.size());
  return {.pairs = {scratch.logits.data(), scratch.weights.data()}, .wanted = wanted};
}

LogitCut CutBehind(const Search& search, absl::Span<const float> logits) {
  if (search.count == 0) {
    return {.bound = std::numeric_limits<float>::infinity(), .ties_end = logits.size()};
  }
  const Last last = FindLast(search);
  return {.bound = last.logit, .ties_end = EndOfTies(logits, last.logit, last.ties)};
}

}  // namespace

LogitCut CutByCount(absl::Span<const float> logits, size_t count, CutScratch& scratch) {
  Search search = SearchOver(logits.size(), static_cast<double>(count), scratch);
  search.count = Collect(logits, nullptr, 0.0f, search.pairs);
  return CutBehind(search, logits);
}

LogitCut CutByWeight(absl::Span<const float> logits, absl::Span<const float> weights, double total,
                     double share, CutScratch& scratch) {
  Search search = SearchOver(logits.size(), share * total, scratch);
  // Tokens below this bound weigh less than the part that may be left out, even all together; half
  // of it leaves room for roundings. As they seldom all are just below it, a larger one is tried
  // first, which is right if what it leaves in question weighs enough.
  const double bound = (1 - share) * total / static_cast<double>(logits.size()) / 2;
  constexpr double kTried = 24;
  constexpr double kRoundings = 1 + 1e-6;
  const auto collect = [&](double smallest) {
    search.count = Collect(
        logits, weights.data(),
        std::max(static_cast<float>(smallest), std::numeric_limits<float>::min()), search.pairs);
  };
  collect(bound * kTried);
  if (WeightFrom(search.pairs, search.count, -std::numeric_limits<float>::infinity()) <
      search.wanted * kRoundings) {
    collect(bound);
  }
  return CutBehind(search, logits);
}

}  // namespace lamina::kernels::cpu
