// SPDX-License-Identifier: Apache-2.0
#include "compute_node/reads_seen.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace lamina::compute_node {
namespace {

double ValueAt(std::vector<double>& values, size_t at) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(at);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool ReadsAlike(double a, double b) { return std::max(a, b) <= kReadsAlike * std::min(a, b); }

ReadsSeen SeenIn(absl::Span<const double> reads, size_t group_min) {
  LAMINA_CHECK(!reads.empty());
  const auto [low, high] = std::minmax_element(reads.begin(), reads.end());
  LAMINA_CHECK(*low >= 0);
  ReadsSeen seen = {.low = *low, .high = *high};
  std::vector<size_t> slow(reads.size());
  std::iota(slow.begin(), slow.end(), size_t{0});
  if (*low == 0 || ReadsAlike(*low, *high)) {
    seen.groups.push_back(std::move(slow));
    return seen;
  }
  const double middle = std::sqrt(*low * *high);
  const auto border = std::stable_partition(slow.begin(), slow.end(),
                                            [&](size_t turn) { return reads[turn] < middle; });
  std::vector<size_t> fast(border, slow.end());
  slow.erase(border, slow.end());
  const bool slow_counts = slow.size() >= group_min || slow.size() >= fast.size();
  const bool fast_counts = fast.size() >= group_min || fast.size() > slow.size();
  if (slow_counts) {
    seen.groups.push_back(std::move(slow));
  }
  if (fast_counts) {
    seen.groups.push_back(std::move(fast));
  }
  return seen;
}

double LowerMedian(std::vector<double> values) {
  LAMINA_CHECK(!values.empty());
  return ValueAt(values, (values.size() - 1) / 2);
}

double UpperMedian(std::vector<double> values) {
  LAMINA_CHECK(!values.empty());
  return ValueAt(values, values.size() / 2);
}

}  // namespace lamina::compute_node
