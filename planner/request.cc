// SPDX-License-Identifier: Apache-2.0
#include "planner/request.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/string_distance.h"
#include "common/units.h"
#include "plan/limits.h"

namespace lamina::planner {
namespace {

constexpr double kTokensMax = plan::kSequenceTokensMax;
constexpr double kRateMax = 1e6;

using Pairs = std::vector<std::pair<std::string, std::string>>;

// "a=1,b=2"; every key once, and one of `known`.
absl::StatusOr<Pairs> ParsePairs(absl::string_view text, const std::vector<std::string>& known) {
  Pairs pairs;
  std::set<std::string> seen;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (std::find(known.begin(), known.end(), pair.first) == known.end()) {
      const std::string nearest = NearestName(pair.first, known);
      return absl::InvalidArgumentError(
          absl::StrCat("unknown key '", pair.first, "'",
                       nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"),
                       " Known: ", absl::StrJoin(known, ", ")));
    }
    if (!seen.insert(pair.first).second) {
      return absl::InvalidArgumentError(absl::StrCat("'", pair.first, "' is given twice"));
    }
    pairs.push_back(pair);
  }
  return pairs;
}

absl::Status ReadNumber(const std::string& key, const std::string& text, double least, double most,
                        double& out) {
  if (!absl::SimpleAtod(text, &out) || !(out >= least && out <= most)) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": '", text, "' is not a number in [", least, ", ", most, "]"));
  }
  return absl::OkStatus();
}

// "p95" is 0.95.
absl::Status ReadPercentile(absl::string_view text, double& share) {
  absl::string_view number = text;
  double percent = 0;
  if (!absl::ConsumePrefix(&number, "p") || !absl::SimpleAtod(number, &percent) ||
      !(percent >= 1 && percent <= 99.9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("at: '", text, "' is not a percentile in p1 to p99.9, like p95"));
  }
  share = percent / 100;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Load> ParseLoad(absl::string_view text) {
  LAMINA_ASSIGN_OR_RETURN(const Pairs pairs, ParsePairs(text, {"rate", "input", "output", "lengths",
                                                               "prefix", "prefixes", "hit"}));
  Load load;
  std::optional<double> hit;
  for (const auto& [key, value] : pairs) {
    if (key == "lengths") {
      const absl::StatusOr<Lengths> lengths = ParseLengths(value);
      if (!lengths.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("lengths: ", lengths.status().message()));
      }
      load.lengths = *lengths;
      continue;
    }
    if (key == "hit") {
      LAMINA_RETURN_IF_ERROR(ReadNumber(key, value, 0, 1, hit.emplace()));
      continue;
    }
    const bool rate = key == "rate";
    double& out = rate              ? load.rate
                  : key == "input"  ? load.input
                  : key == "output" ? load.output
                  : key == "prefix" ? load.prefix
                                    : load.prefixes;
    LAMINA_RETURN_IF_ERROR(
        ReadNumber(key, value, rate ? 1e-6 : 1, rate ? kRateMax : kTokensMax, out));
  }
  if (load.input == 0 || load.output == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(load.input == 0 ? "input" : "output",
                     ": missing; write a load like rate=20,input=1024,output=256"));
  }
  if (hit.has_value() && load.prefix > 0) {
    return absl::InvalidArgumentError(
        "hit: prefix is given too; give one of them, a share of the input or tokens");
  }
  if (hit.has_value()) {
    load.prefix = std::round(*hit * load.input);
  }
  if (load.prefix > load.input) {
    return absl::InvalidArgumentError(absl::StrCat("prefix: ", load.prefix, " is more than the ",
                                                   load.input, " tokens of input"));
  }
  return load;
}

absl::StatusOr<Slo> ParseSlo(absl::string_view text) {
  LAMINA_ASSIGN_OR_RETURN(const Pairs pairs, ParsePairs(text, {"ttft", "tpot", "at"}));
  Slo slo;
  for (const auto& [key, value] : pairs) {
    if (key == "at") {
      LAMINA_RETURN_IF_ERROR(ReadPercentile(value, slo.at));
      continue;
    }
    const absl::StatusOr<Nanos> duration = ParseDuration(value);
    if (!duration.ok() || *duration <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, ": '", value, "' is not a duration above 0, like 80ms or 2s"));
    }
    (key == "ttft" ? slo.ttft_seconds : slo.tpot_seconds) = static_cast<double>(*duration) * 1e-9;
  }
  return slo;
}

absl::StatusOr<double> ParseBudget(absl::string_view text) {
  absl::string_view number = text;
  double budget = 0;
  if (!absl::ConsumeSuffix(&number, "/h") || !absl::SimpleAtod(number, &budget) ||
      !std::isfinite(budget) || budget <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a budget; write it like 20/h, in the catalogue's currency"));
  }
  return budget;
}

}  // namespace lamina::planner
