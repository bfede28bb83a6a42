// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: which requests a simulated cluster gets, and when.
//
// Threading: pure.   Determinism: same options, same requests.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/sampling_params.h"

namespace lamina::planner {

struct TraceRequest {
  Nanos at = 0;
  uint32_t input = 1;   // Prompt tokens.
  uint32_t output = 1;  // Generated tokens.
  // Requests of one prefix (not 0) begin with the same tokens, this many of them.
  uint32_t prefix = 0;
  uint32_t prefix_tokens = 0;  // At most `input`.
};

// The prompt's tokens, as a KV directory tells them apart: those of its prefix, and then ones that
// no other request has.
std::vector<TokenId> PromptOf(uint64_t request, const TraceRequest& what);

// How lengths are spread around their means. Both families are log-normal with assumed coefficients
// of variation: short chats whose prompts differ more than their answers, and long prompts with
// short answers. A trace of your own is better.
enum class Lengths : uint8_t {
  kFixed,     // All alike.
  kShareGpt,  // 1.2 of prompts, 0.9 of answers.
  kAzure,     // 0.9 of prompts, 1.3 of answers.
};

// "fixed", "sharegpt", "azure". Errors: kInvalidArgument with the known ones.
absl::StatusOr<Lengths> ParseLengths(absl::string_view text);

struct ArrivalOptions {
  uint64_t requests = 1000;
  double rate = 1;  // A second, with exponential gaps (Poisson). Above 0.
  double input = 1;
  double output = 1;
  Lengths lengths = Lengths::kFixed;
  // The most tokens of prompt and answer together: longer ones, as some are that are
  // drawn, are cut.
  uint32_t tokens_max = UINT32_MAX;
  // Tokens of the prompt that all requests of the same prefix share; each request draws one of
  // `prefixes`.
  uint32_t prefix_tokens = 0;
  uint32_t prefixes = 1;
  uint64_t seed = 0;
};

// The longest time over which requests arrive. Nanos can say more than twice as much.
inline constexpr double kArrivalSecondsMax = 4e9;

// Errors: kInvalidArgument  so many requests at this rate (above 0) take longer than that to come.
absl::Status CheckArrivals(uint64_t requests, double rate);

// Those that would come later than Nanos can say come then.
std::vector<TraceRequest> MakeArrivals(const ArrivalOptions& options);

}  // namespace lamina::planner
