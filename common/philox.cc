// SPDX-License-Identifier: Apache-2.0
#include "common/philox.h"

#include <cmath>
#include <numbers>

namespace lamina {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * counter[0];
    const uint64_t p1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

namespace {

std::array<uint32_t, 4> Draw(uint64_t seed, uint64_t position, uint32_t draw) {
  return Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), draw, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

uint64_t Word(const std::array<uint32_t, 4>& block) { return uint64_t{block[1]} << 32 | block[0]; }

double ToUnit(uint64_t word) { return static_cast<double>(word >> 11) * 0x1.0p-53; }

}  // namespace

double PhiloxUniform(uint64_t seed, uint64_t position, uint32_t draw) {
  return ToUnit(Word(Draw(seed, position, draw)));
}

uint64_t Prng::operator()() { return Word(Draw(seed_, index_++, 0)); }

uint64_t Prng::Below(uint64_t bound) {
  // Multiply-shift (Lemire); the bias is below bound / 2^64.
  return static_cast<uint64_t>((static_cast<unsigned __int128>((*this)()) * bound) >> 64);
}

double Prng::Uniform() { return ToUnit((*this)()); }

double Prng::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

}  // namespace lamina
