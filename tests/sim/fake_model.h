// SPDX-License-Identifier: Apache-2.0
//
// The model of the simulation: the next token is a hash of the request's seed and of every token
// before it that its window reaches. So one token lost, repeated, or read from somebody else's slot
// changes all that follow.

#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/sampling_params.h"
#include "plan/step_plan.h"

namespace lamina::sim {

inline constexpr TokenId kVocabulary = 1000;

inline uint64_t Mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

// The state after some tokens; starts with the seed. With a window only the last tokens matter.
class FakeModel {
 public:
  explicit FakeModel(uint64_t seed, uint32_t window = 0) : seed_(seed), window_(window) {}
  void See(TokenId token) {
    tokens_.push_back(token);
    if (window_ > 0 && tokens_.size() > window_) {
      tokens_.pop_front();
    }
  }
  TokenId Next() const { return static_cast<TokenId>(Mix(State() + 7) % kVocabulary); }
  // The most likely next tokens, best first; Next() need not be one of them.
  std::vector<plan::TokenLogprob> Top(int32_t count) const {
    std::vector<plan::TokenLogprob> top;
    const uint64_t state = State();
    float logprob = 0;
    for (int32_t i = 0; i < count; ++i) {
      logprob -= static_cast<float>(Mix(state + static_cast<uint64_t>(i)) % 256) / 256.0f;
      // Steps of 37 meet no token twice.
      top.push_back({.token = static_cast<TokenId>((state + 37 * static_cast<uint64_t>(i)) %
                                                   static_cast<uint64_t>(kVocabulary)),
                     .logprob = logprob});
    }
    return top;
  }
  // Log-probability of `token` coming next.
  float Logprob(TokenId token) const {
    return -static_cast<float>(Mix(State() ^ static_cast<uint64_t>(token)) % 4096) / 256.0f;
  }

 private:
  uint64_t State() const {
    uint64_t state = Mix(seed_ + 1);
    for (const TokenId token : tokens_) {
      state = Mix(state ^ (static_cast<uint64_t>(token) + 0x9e3779b9));
    }
    return state;
  }

  uint64_t seed_;
  uint32_t window_;
  std::deque<TokenId> tokens_;
};

}  // namespace lamina::sim
