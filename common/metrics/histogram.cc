// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/histogram.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace lamina {

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)),
      counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds_.size() + 1)) {
  LAMINA_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::ObserveMany(double value, uint64_t count) {
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(place)].fetch_add(count, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(count), std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::Take() const {
  Snapshot out{.bounds = bounds_};
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    out.counts.push_back(counts_[i].load(std::memory_order_relaxed));
    out.count += out.counts.back();
  }
  out.sum = sum_.load(std::memory_order_relaxed);
  return out;
}

}  // namespace lamina
