// SPDX-License-Identifier: Apache-2.0
#include "plan/policy_times.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "plan/limits.h"

namespace lamina::plan {
namespace {

constexpr uint32_t kRowsMax = kRunningMax;  // The most rows of a batch that a node measures.

absl::Status CheckFigures(const PolicyTimes& times) {
  for (const std::vector<SliceTimes>* sizes : {&times.local, &times.pools}) {
    uint32_t least = 1;
    for (const SliceTimes& size : *sizes) {
      const bool sound = size.rows >= least && size.rows <= kRowsMax &&
                         std::isfinite(size.slice_seconds) && size.slice_seconds > 0 &&
                         std::isfinite(size.tail_seconds) && size.tail_seconds >= 0;
      if (!sound) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a slice of ", size.rows, " rows that took ", size.slice_seconds, " s, its tail ",
            size.tail_seconds, " s; wanted are positive times, of batches that grow up to ",
            kRowsMax, " rows"));
      }
      least = size.rows + 1;
    }
  }
  if (!std::isfinite(times.make_seconds) || times.make_seconds < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("K and V of a token made in ", times.make_seconds, " s"));
  }
  for (const double rate : {times.attention_local, times.attention_shared, times.attention_pools,
                            times.read_bandwidth, times.reads_low, times.reads_high}) {
    if (!std::isfinite(rate) || rate < 0) {
      return absl::InvalidArgumentError(absl::StrCat("a rate of ", rate, " bytes a second"));
    }
  }
  return absl::OkStatus();
}

// Whether what can be predicted from one can be from the other.
bool HasAllOf(const PolicyTimes& end, const PolicyTimes& times) {
  return end.measured() == times.measured() && end.local.empty() == times.local.empty() &&
         end.pools.empty() == times.pools.empty() &&
         (end.attention_shared > 0) == (times.attention_shared > 0) &&
         (end.attention_pools > 0) == (times.attention_pools > 0) &&
         (end.make_seconds > 0) == (times.make_seconds > 0);
}

}  // namespace

absl::Status CheckPolicyTimes(const PolicyTimes& times) {
  LAMINA_RETURN_IF_ERROR(CheckFigures(times));
  if (!times.ends.empty() && times.ends.size() != kReadsEnds) {
    return absl::InvalidArgumentError(
        absl::StrCat("times at ", times.ends.size(), " ends of reads, of which there are two"));
  }
  for (const PolicyTimes& end : times.ends) {
    LAMINA_RETURN_IF_ERROR(CheckFigures(end));
    if (!HasAllOf(end, times) || !end.ends.empty()) {
      return absl::InvalidArgumentError(
          "times at an end of reads that lack what was measured, or have ends themselves");
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::plan
