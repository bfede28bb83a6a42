// SPDX-License-Identifier: Apache-2.0
//
// What tests of kernels share that Highway compiles once for each instruction set ("target"): which
// ones this processor has, and a test's body on one after the other.

#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "hwy/targets.h"

namespace lamina::kernels {

inline constexpr int64_t kAllTargets = std::numeric_limits<int64_t>::max();
// Those with a fused multiply-add.
inline constexpr int64_t kFmaTargets = HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL;
// A build for any x86-64 has them in every kernel; AVX3_DL where a kernel asks for it.
inline constexpr int64_t kCompiledTargets = HWY_SSE4 | HWY_AVX2 | HWY_AVX3;

// How many of `targets` this processor has, by its own word, whatever was compiled.
inline size_t CountTargetsHere(int64_t targets) {
  return static_cast<size_t>(
      std::popcount(static_cast<uint64_t>(hwy::SupportedTargets() & targets)));
}

// Whether Linux lists the flag for this processor.
inline bool ProcessorHas(const std::string& flag) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("flags")) {
      return (line + " ").find(" " + flag + " ") != std::string::npos;
    }
  }
  return false;
}

// Calls body(target) while that one alone is chosen, for each of `targets` that is compiled and
// that this processor has, the plainest first. Expects all that a build has by rule: with fewer a
// test would hold a target against itself.
template <class Body>
void OnEachTarget(int64_t targets, const Body& body) {
  const auto choose = [](int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  const int64_t here = hwy::SupportedTargets() & HWY_TARGETS & targets;
  size_t ran = 0;
  for (int bit = 62; bit >= 0; --bit) {
    const int64_t target = int64_t{1} << bit;
    if ((here & target) != 0) {
      SCOPED_TRACE(hwy::TargetName(target));
      choose(target);
      body(target);
      choose(0);
      ++ran;
    }
  }
  EXPECT_GE(ran, CountTargetsHere(targets & kCompiledTargets))
      << "this build leaves out instruction sets that this processor has";
}

}  // namespace lamina::kernels
