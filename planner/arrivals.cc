// SPDX-License-Identifier: Apache-2.0
#include "planner/arrivals.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/philox.h"

namespace lamina::planner {
namespace {

// The latest arrival, in seconds: what follows one takes time, too.
constexpr double kLatest = 2 * kArrivalSecondsMax;

// Coefficients of variation: deviation over mean.
struct Spread {
  double input = 0;
  double output = 0;
};

Spread SpreadOf(Lengths lengths) {
  switch (lengths) {
    case Lengths::kFixed:
      return {};
    case Lengths::kShareGpt:
      return {.input = 1.2, .output = 0.9};
    case Lengths::kAzure:
      return {.input = 0.9, .output = 1.3};
  }
  return {};
}

uint32_t Draw(double mean, double variation, uint32_t most, Prng& random) {
  double tokens = mean;
  if (variation > 0) {
    const double variance = std::log1p(variation * variation);
    tokens = std::exp(std::log(mean) - variance / 2 + std::sqrt(variance) * random.Normal());
  }
  return static_cast<uint32_t>(std::clamp(std::round(tokens), 1.0, static_cast<double>(most)));
}

}  // namespace

absl::StatusOr<Lengths> ParseLengths(absl::string_view text) {
  if (text == "fixed") {
    return Lengths::kFixed;
  }
  if (text == "sharegpt") {
    return Lengths::kShareGpt;
  }
  if (text == "azure") {
    return Lengths::kAzure;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not one of fixed, sharegpt, azure"));
}

std::vector<TokenId> PromptOf(uint64_t request, const TraceRequest& what) {
  std::vector<TokenId> prompt(what.input, static_cast<TokenId>(1 + request % INT32_MAX));
  std::fill_n(prompt.begin(), what.prefix == 0 ? 0 : std::min(what.prefix_tokens, what.input),
              -static_cast<TokenId>(what.prefix & INT32_MAX));
  return prompt;
}

absl::Status CheckArrivals(uint64_t requests, double rate) {
  const double seconds = static_cast<double>(requests) / rate;
  if (seconds <= kArrivalSecondsMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rate: ", requests, " requests at ", rate, " a second come over ", seconds,
                   " s; at most ", kArrivalSecondsMax, ". Ask for fewer, or raise the rate"));
}

std::vector<TraceRequest> MakeArrivals(const ArrivalOptions& options) {
  LAMINA_CHECK(options.rate > 0 && options.tokens_max >= 2);
  Prng random(options.seed);
  const Spread spread = SpreadOf(options.lengths);
  std::vector<TraceRequest> requests;
  requests.reserve(options.requests);
  double at = 0;
  for (uint64_t i = 0; i < options.requests; ++i) {
    at -= std::log1p(-random.Uniform()) / options.rate;
    TraceRequest request{.at = static_cast<Nanos>(std::min(at, kLatest) * 1e9)};
    request.input = Draw(options.input, spread.input, options.tokens_max - 1, random);
    request.output =
        Draw(options.output, spread.output, options.tokens_max - request.input, random);
    if (options.prefix_tokens > 0) {
      request.prefix = 1 + static_cast<uint32_t>(random.Below(options.prefixes));
      request.prefix_tokens = std::min(options.prefix_tokens, request.input);
    }
    requests.push_back(request);
  }
  return requests;
}

}  // namespace lamina::planner
