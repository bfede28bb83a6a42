// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/fault_limits.h"

#include <algorithm>

namespace lamina::core {

void FaultLimits::NoteFault(uint64_t epoch, Nanos now) {
  if (without_progress_++ == 0) {
    first_without_progress_ = epoch;
  }
  while (!faults_.empty() && faults_.front().at < now - kWindow - kExplainedWithin) {
    faults_.pop_front();
  }
  if (!departed_ || now - last_departure_ > kExplainedWithin) {
    faults_.push_back({.epoch = epoch, .at = now});
  }
}

void FaultLimits::NoteDeparture(Nanos now) {
  without_progress_ = 0;
  departed_ = true;
  last_departure_ = now;
  std::erase_if(faults_, [now](const Fault& fault) { return fault.at >= now - kExplainedWithin; });
}

void FaultLimits::Forget() {
  without_progress_ = 0;
  faults_.clear();
}

uint32_t FaultLimits::Unexplained(Nanos now) const {
  return static_cast<uint32_t>(
      std::count_if(faults_.begin(), faults_.end(), [now](const Fault& fault) {
        const Nanos age = now - fault.at;
        return age > kExplainedWithin && age <= kExplainedWithin + kWindow;
      }));
}

}  // namespace lamina::core
