// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench_load.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/philox.h"
#include "nlohmann/json.hpp"

namespace lamina::cli {
namespace {

constexpr size_t kRequestsMax = 1'000'000;
constexpr double kArrivalSecondsMax = 1e6;
constexpr int64_t kTokensMax = 1 << 20;
constexpr int64_t kPrefixesMax = 1 << 20;

// What is wrong with a line, or an empty string.
std::string ParseTraceLine(absl::string_view line, Arrival& arrival) {
  const nlohmann::json object =
      nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return "not a JSON object";
  }
  for (const auto& [key, value] : object.items()) {
    if (key == "arrival_s") {
      if (!value.is_number() || !(value.get<double>() >= 0) ||
          value.get<double>() > kArrivalSecondsMax) {
        return absl::StrCat("arrival_s must be a number in [0, ", kArrivalSecondsMax, "]");
      }
      arrival.at = static_cast<Nanos>(value.get<double>() * 1e9);
    } else if (key == "prefix") {
      if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
          value.get<int64_t>() > kPrefixesMax) {
        return absl::StrCat("prefix must be a whole number in [1, ", kPrefixesMax, "]");
      }
      arrival.prefix = value.get<uint32_t>();
    } else if (key == "input_tokens" || key == "output_tokens" || key == "prefix_tokens") {
      if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
          value.get<int64_t>() > kTokensMax) {
        return absl::StrCat(key, " must be a whole number in [1, ", kTokensMax, "]");
      }
      (key == "input_tokens"    ? arrival.input_tokens
       : key == "output_tokens" ? arrival.output_tokens
                                : arrival.prefix_tokens) = value.get<uint32_t>();
    } else {
      return absl::StrCat("unknown key '", key, "'");
    }
  }
  if (arrival.input_tokens == 0 || arrival.output_tokens == 0) {
    return "wants arrival_s, input_tokens and output_tokens";
  }
  if ((arrival.prefix == 0) != (arrival.prefix_tokens == 0)) {
    return "prefix and prefix_tokens come together";
  }
  return arrival.prefix_tokens > arrival.input_tokens ? "prefix_tokens is more than input_tokens"
                                                      : "";
}

}  // namespace

std::vector<Arrival> MakeArrivals(const LoadOptions& options) {
  Prng prng(options.seed);
  std::vector<Arrival> arrivals;
  double at_s = 0;
  for (uint32_t i = 0; i < options.requests; ++i) {
    arrivals.push_back({.at = static_cast<Nanos>(at_s * 1e9),
                        .input_tokens = options.input_tokens,
                        .output_tokens = options.output_tokens});
    if (options.rate > 0) {
      at_s += -std::log1p(-prng.Uniform()) / options.rate;
    }
  }
  return arrivals;
}

absl::StatusOr<std::vector<Arrival>> ParseTrace(absl::string_view text,
                                                std::vector<std::string>* bad_lines) {
  std::vector<Arrival> arrivals;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) {
      continue;
    }
    Arrival arrival;
    const std::string wrong = ParseTraceLine(line, arrival);
    if (!wrong.empty()) {
      const std::string what = absl::StrCat("trace line ", number, ": ", wrong);
      if (bad_lines == nullptr) {
        return absl::InvalidArgumentError(what);
      }
      bad_lines->push_back(what);
      continue;
    }
    arrivals.push_back(arrival);
    if (arrivals.size() > kRequestsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("the trace has more than ", kRequestsMax, " requests"));
    }
  }
  if (arrivals.empty()) {
    return absl::InvalidArgumentError(
        bad_lines == nullptr || bad_lines->empty()
            ? "the trace has no requests"
            : absl::StrCat("the trace has no line that is right; ", bad_lines->front()));
  }
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
  return arrivals;
}

std::vector<TokenId> RandomPrompt(uint64_t seed, size_t index, uint32_t tokens,
                                  uint32_t vocabulary) {
  Prng prng(seed ^ (0x9e3779b97f4a7c15u * (index + 1)));  // Golden ratio: far apart for all index.
  std::vector<TokenId> prompt(tokens);
  for (TokenId& token : prompt) {
    token = static_cast<TokenId>(prng.Below(vocabulary));
  }
  return prompt;
}

std::vector<TokenId> PromptOf(uint64_t seed, size_t index, const Arrival& arrival,
                              uint32_t vocabulary) {
  std::vector<TokenId> prompt = RandomPrompt(seed, index, arrival.input_tokens, vocabulary);
  // Indices of requests end where these begin.
  const std::vector<TokenId> prefix =
      RandomPrompt(seed, kRequestsMax + arrival.prefix, arrival.prefix_tokens, vocabulary);
  std::copy(prefix.begin(), prefix.end(), prompt.begin());
  return prompt;
}

}  // namespace lamina::cli
