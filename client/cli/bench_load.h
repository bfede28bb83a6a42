// SPDX-License-Identifier: Apache-2.0
//
// The load of `lamina bench`: which requests arrive when. Pure; the same options give the same
// load.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/sampling_params.h"

namespace lamina::cli {

struct Arrival {
  Nanos at = 0;  // After the start. 0 for all in a closed loop.
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::string text = {};  // The prompt; empty: random tokens.
  // The next turn of the conversation whose last one is the arrival before this: it arrives when
  // that has ended.
  bool follows = false;
  // Prompts of the same prefix (not 0) begin with the same tokens, this many of them.
  uint32_t prefix = 0;
  uint32_t prefix_tokens = 0;
};

struct LoadOptions {
  uint32_t requests = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  double rate = 0;  // Requests per second, exponential gaps (Poisson); 0: all at the start.
  uint64_t seed = 0;
};

std::vector<Arrival> MakeArrivals(const LoadOptions& options);

// Lines of {"arrival_s": 0.5, "input_tokens": 128, "output_tokens": 64}, sorted by arrival;
// "prefix": 1, "prefix_tokens": 64 where prompts begin alike. With `bad_lines` lines that are wrong
// are left out and named there; without, they are errors. Errors: kInvalidArgument naming the line
// and what is wrong with it; no lines that are right; more than a million.
absl::StatusOr<std::vector<Arrival>> ParseTrace(absl::string_view text,
                                                std::vector<std::string>* bad_lines = nullptr);

// Ids drawn evenly from [0, vocabulary); another prompt for each index.
std::vector<TokenId> RandomPrompt(uint64_t seed, size_t index, uint32_t tokens,
                                  uint32_t vocabulary);

// A random prompt with the arrival's prefix at its beginning.
std::vector<TokenId> PromptOf(uint64_t seed, size_t index, const Arrival& arrival,
                              uint32_t vocabulary);

}  // namespace lamina::cli
