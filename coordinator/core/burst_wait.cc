// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/burst_wait.h"

#include <algorithm>

namespace lamina::core {

void BurstWait::Came(uint32_t tokens, Nanos now) {
  first_ = tokens_ == 0 ? now : first_;
  last_ = now;
  tokens_ += tokens;
}

Nanos BurstWait::PlanAt(double tokens_per_second) const {
  if (tokens_ == 0 || tokens_ >= step_tokens_ || tokens_per_second <= 0) {
    return 0;
  }
  const double seconds = kShare * static_cast<double>(tokens_) / tokens_per_second;
  const double longest = ToSeconds(last_ - first_ + kSilence);
  return seconds >= longest ? last_ + kSilence : first_ + static_cast<Nanos>(seconds * 1e9);
}

}  // namespace lamina::core
