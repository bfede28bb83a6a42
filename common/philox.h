// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10: random numbers as a function of (key, counter), so that any replica can draw the
// numbers of any position of any request. Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC'11; the round constants are those of Random123.

#pragma once

#include <array>
#include <cstdint>

namespace lamina {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A uniform double in [0, 1) with 53 random bits for (seed, position, draw).
double PhiloxUniform(uint64_t seed, uint64_t position, uint32_t draw);

// A sequential generator over Philox for simulation and tests; satisfies UniformRandomBitGenerator.
class Prng {
 public:
  using result_type = uint64_t;
  explicit Prng(uint64_t seed) : seed_(seed) {}

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return UINT64_MAX; }
  uint64_t operator()();

  // Uniform in [0, bound). Requires: bound > 0.
  uint64_t Below(uint64_t bound);
  double Uniform();  // [0, 1)
  double Normal();   // mean 0, deviation 1
  bool Chance(double probability) { return Uniform() < probability; }

 private:
  uint64_t seed_;
  uint64_t index_ = 0;
};

}  // namespace lamina
