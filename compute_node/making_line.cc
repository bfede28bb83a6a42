// SPDX-License-Identifier: Apache-2.0
#include "compute_node/making_line.h"

#include <algorithm>
#include <bit>

#include "absl/types/span.h"

namespace lamina::compute_node {
namespace {

// The best line through the origin; one size is explained whole if its times are all the same.
policy::FittedLine FitProportion(absl::Span<const policy::TimeSample> samples) {
  double product = 0;
  double tokens = 0;
  double seconds = 0;
  for (const policy::TimeSample& sample : samples) {
    product += sample.tokens * sample.seconds;
    tokens += sample.tokens * sample.tokens;
    seconds += sample.seconds * sample.seconds;
  }
  policy::FittedLine fitted;
  fitted.line = {.fixed = 0, .slope = product / tokens};
  fitted.r_squared = seconds > 0 ? product / tokens * product / seconds : 1;
  return fitted;
}

}  // namespace

void MakingLine::Add(uint32_t tokens, double seconds) {
  Bucket& bucket = buckets_[static_cast<size_t>(std::bit_width(tokens)) - 1];
  bucket.samples[bucket.added % kLatest] = {.tokens = static_cast<double>(tokens),
                                            .seconds = seconds};
  ++bucket.added;
  bucket.latest = ++added_;
}

std::optional<policy::FittedLine> MakingLine::Fit() const {
  std::array<policy::TimeSample, kBuckets * kLatest> all;
  size_t count = 0;
  for (const Bucket& bucket : buckets_) {
    const size_t held = added_ - bucket.latest < kRemembered ? std::min(bucket.added, kLatest) : 0;
    std::copy_n(bucket.samples.begin(), held, all.begin() + static_cast<std::ptrdiff_t>(count));
    count += held;
  }
  if (count == 0) {
    return std::nullopt;
  }
  const absl::Span<const policy::TimeSample> samples = absl::MakeConstSpan(all).first(count);
  const auto [least, most] =
      std::minmax_element(samples.begin(), samples.end(),
                          [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
  return most->tokens < 2 * least->tokens ? FitProportion(samples) : policy::FitLine(samples);
}

}  // namespace lamina::compute_node
