// SPDX-License-Identifier: Apache-2.0
//
// What an interval of a data thread costs (telemetry/work_meter.h), with the timeline off and on,
// besides the reading of the clock that it cannot do without.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "bench/flags.h"
#include "common/clock.h"
#include "telemetry/work_meter.h"

namespace lamina {
namespace {

constexpr int kIntervals = 2'000'000;
constexpr int kRounds = 9;

// Nanoseconds of one call, best of the rounds.
template <typename Call>
double Best(const Call& call) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const Nanos start = RealClock().Now();
    for (int i = 0; i < kIntervals; ++i) {
      call();
    }
    best = std::min(best, static_cast<double>(RealClock().Now() - start) / kIntervals);
  }
  return best;
}

void Run() {
  telemetry::WorkMeter meter;
  Nanos interval = RealClock().Now();
  const auto once = [&meter, &interval] {
    interval = meter.EndInterval(
        {.start = interval, .part = telemetry::WorkKind::kDense, .lane = 1, .layer = 7});
  };
  const double clock = Best([&interval] { interval = RealClock().Now(); });
  const double off = Best(once);
  meter.ring().Start(INT64_MAX);
  const double on = Best(once);
  std::printf("clock %.1f ns, interval %.1f ns, interval with the timeline on %.1f ns\n", clock,
              off, on);
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  CLI::App app("What an interval of a data thread costs, with the timeline off and on");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  lamina::Run();
  return 0;
}
