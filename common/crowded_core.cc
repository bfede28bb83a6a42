// SPDX-License-Identifier: Apache-2.0
#include "common/crowded_core.h"

#include <sys/resource.h>

#include "common/units.h"

namespace lamina {
namespace {

constexpr Nanos kPeriod = Millis(20);
// So many in a period. The machine's own threads stop others a few times a second.
constexpr int64_t kStops = 2;
// What happened in a longer time says little about now.
constexpr Nanos kPeriodMost = 5 * kPeriod;
// A thread that sleeps while it waits is stopped less often: the others have not gone therefore.
constexpr Nanos kStaysFor = Millis(200);

constexpr Nanos kYield = Millis(1);
constexpr Nanos kYieldCrowded = Micros(10);

int64_t StopsOfThisThread() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

bool CrowdedCore::Is(Nanos now, absl::FunctionRef<int64_t()> stops) {
  if (now < crowded_until_) {
    return true;
  }
  const Nanos passed = now - looked_at_;
  if (passed < kPeriod) {
    return false;
  }
  const int64_t before = stops_;
  stops_ = stops();
  looked_at_ = now;
  const bool crowded = passed <= kPeriodMost && (stops_ - before) * kPeriod >= kStops * passed;
  crowded_until_ = crowded ? now + kStaysFor : 0;
  return crowded;
}

bool CoreIsCrowded(Nanos now) {
  static thread_local CrowdedCore core;
  return core.Is(now, StopsOfThisThread);
}

Nanos YieldTime(Nanos now) { return CoreIsCrowded(now) ? kYieldCrowded : kYield; }

}  // namespace lamina
