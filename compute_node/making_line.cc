// SPDX-License-Identifier: Apache-2.0
#include "compute_node/making_line.h"

#include <algorithm>
#include <bit>

#include "absl/types/span.h"

namespace lamina::compute_node {

void MakingLine::Add(uint32_t tokens, double seconds) {
  Bucket& bucket = buckets_[static_cast<size_t>(std::bit_width(tokens)) - 1];
  bucket.samples[bucket.added % kLatest] = {.tokens = static_cast<double>(tokens),
                                            .seconds = seconds};
  ++bucket.added;
}

std::optional<policy::FittedLine> MakingLine::Fit() const {
  std::array<policy::TimeSample, kBuckets * kLatest> all;
  size_t count = 0;
  for (const Bucket& bucket : buckets_) {
    const size_t held = std::min(bucket.added, kLatest);
    std::copy_n(bucket.samples.begin(), held, all.begin() + static_cast<std::ptrdiff_t>(count));
    count += held;
  }
  const absl::Span<const policy::TimeSample> samples = absl::MakeConstSpan(all).first(count);
  const bool vary = std::any_of(samples.begin(), samples.end(), [&](const auto& sample) {
    return sample.tokens != samples.front().tokens;
  });
  return vary ? std::optional(policy::FitLine(samples)) : std::nullopt;
}

}  // namespace lamina::compute_node
