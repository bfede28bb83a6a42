// SPDX-License-Identifier: Apache-2.0
#include "bench/fma_peak.h"

#include <chrono>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/fma_peak.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as it must be.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::bench::HWY_NAMESPACE {

// Returns the flops done; `result` keeps the compiler from dropping them. Twelve chains hide the
// latency of every machine we know.
double Chains(size_t rounds, float* result) {
  const hwy::HWY_NAMESPACE::ScalableTag<float> d;
  using V = hwy::HWY_NAMESPACE::Vec<decltype(d)>;
  constexpr int kChains = 12;
  const V factor = Set(d, 0.999f);
  V chains[kChains];
  for (V& chain : chains) {
    chain = Set(d, 1.0f);
  }
  for (size_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      chains[c] = MulAdd(chains[c], factor, factor);
    }
  }
  V sum = chains[0];
  for (int c = 1; c < kChains; ++c) {
    sum = Add(sum, chains[c]);
  }
  *result = GetLane(sum);
  return 2.0 * kChains * static_cast<double>(Lanes(d) * rounds);
}

}  // namespace lamina::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::bench {

HWY_EXPORT(Chains);

double MeasureFmaPeak(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kRounds = 1 << 20;
  double best = 0;
  volatile float sink = 0;
  const auto start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    float result = 0;
    const auto before = Clock::now();
    const double flops = HWY_DYNAMIC_DISPATCH(Chains)(kRounds, &result);
    sink = sink + result;
    const double rate = flops / std::chrono::duration<double>(Clock::now() - before).count();
    best = rate > best ? rate : best;
  }
  return best;
}

}  // namespace lamina::bench
#endif  // HWY_ONCE
