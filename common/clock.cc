// SPDX-License-Identifier: Apache-2.0
#include "common/clock.h"

#include <chrono>

namespace lamina {
namespace {

class SteadyClock final : public Clock {
 public:
  Nanos Now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

const Clock& RealClock() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace lamina
