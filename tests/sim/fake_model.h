// SPDX-License-Identifier: Apache-2.0
//
// The model of the simulation: the next token is a hash of the request's seed and of every token
// before it. So one token lost, repeated, or read from somebody else's slot changes all that
// follow.

#pragma once

#include <cstdint>

#include "common/sampling_params.h"

namespace lamina::sim {

inline constexpr TokenId kVocabulary = 1000;

inline uint64_t Mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

// The state after some tokens; starts with the seed.
class FakeModel {
 public:
  explicit FakeModel(uint64_t seed) : state_(Mix(seed + 1)) {}
  void See(TokenId token) { state_ = Mix(state_ ^ (static_cast<uint64_t>(token) + 0x9e3779b9)); }
  TokenId Next() const { return static_cast<TokenId>(Mix(state_ + 7) % kVocabulary); }
  // Log-probability of `token` coming next.
  float Logprob(TokenId token) const {
    return -static_cast<float>(Mix(state_ ^ static_cast<uint64_t>(token)) % 4096) / 256.0f;
  }

 private:
  uint64_t state_;
};

}  // namespace lamina::sim
