// SPDX-License-Identifier: Apache-2.0
#include "common/line_fit.h"

#include <algorithm>
#include <bit>

namespace lamina {
namespace {

// A bucket's mean forgets what is this many samples old.
constexpr uint32_t kMemory = 32;

}  // namespace

void LineFit::Add(double size, double value) {
  const auto whole = static_cast<uint64_t>(std::min(size, 4294967295.0));
  Bucket& bucket = buckets_[static_cast<size_t>(std::bit_width(whole))];
  bucket.samples = std::min(bucket.samples + 1, kMemory);
  bucket.size += (size - bucket.size) / bucket.samples;
  bucket.value += (value - bucket.value) / bucket.samples;
  ++samples_;
}

LineFit::Values LineFit::Line(bool proportional) const {
  double count = 0;
  double size = 0;
  double value = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.samples > 0) {
      count += 1;
      size += bucket.size;
      value += bucket.value;
    }
  }
  size /= count;
  value /= count;
  double variance = 0;
  double covariance = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.samples > 0) {
      variance += (bucket.size - size) * (bucket.size - size);
      covariance += (bucket.size - size) * (bucket.value - value);
    }
  }
  if (count < 2 || variance == 0) {
    return proportional && size > 0 ? Values{.slope = value / size} : Values{.fixed = value};
  }
  const double slope = std::max(0.0, covariance / variance);
  const double fixed = value - slope * size;
  if (fixed >= 0) {
    return {.fixed = fixed, .slope = slope};
  }
  return {.slope = value / size};  // Through the origin.
}

}  // namespace lamina
