// SPDX-License-Identifier: Apache-2.0
#include "common/line_fit.h"

#include <algorithm>
#include <bit>

namespace lamina {
namespace {

// A bucket's mean forgets what is this many samples old.
constexpr double kMemory = 32;

// A bucket weighs what it did until so many samples came without it, and a tenth of that at ten
// times as many. One lane of 32 layers makes them in 34 steps at a memory node, whose layers are
// samples, and in 1,024 at a compute node, whose steps are.
constexpr double kFresh = 1024;

// The origin of a proportional line weighs much less than buckets that still come, and as much as
// one of kMemory samples that came last 131,072 samples ago.
constexpr double kOrigin = 0.25;

}  // namespace

void LineFit::Add(double size, double value) {
  const auto whole = static_cast<uint64_t>(std::min(size, 4294967295.0));
  Bucket& bucket = buckets_[static_cast<size_t>(std::bit_width(whole))];
  bucket.samples = std::min(WeightOf(bucket) + 1, kMemory);
  bucket.size += (size - bucket.size) / bucket.samples;
  bucket.value += (value - bucket.value) / bucket.samples;
  bucket.latest = ++samples_;
}

double LineFit::WeightOf(const Bucket& bucket) const {
  return bucket.samples * kFresh / std::max(kFresh, static_cast<double>(samples_ - bucket.latest));
}

LineFit::Values LineFit::Line(bool proportional) const {
  const double origin = proportional && buckets_[0].samples == 0 ? kOrigin : 0;
  int points = origin > 0 ? 1 : 0;
  double weight = origin;
  double size = 0;
  double value = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.samples > 0) {
      ++points;
      weight += WeightOf(bucket);
      size += WeightOf(bucket) * bucket.size;
      value += WeightOf(bucket) * bucket.value;
    }
  }
  size /= weight;
  value /= weight;
  double variance = origin * size * size;
  double covariance = origin * size * value;
  for (const Bucket& bucket : buckets_) {
    if (bucket.samples > 0) {
      const double off = WeightOf(bucket) * (bucket.size - size);
      variance += off * (bucket.size - size);
      covariance += off * (bucket.value - value);
    }
  }
  if (points < 2 || variance == 0) {
    return {.fixed = value};
  }
  const double slope = std::max(0.0, covariance / variance);
  const double fixed = value - slope * size;
  if (fixed >= 0) {
    return {.fixed = fixed, .slope = slope};
  }
  return {.slope = value / size};  // Through the origin.
}

}  // namespace lamina
