// SPDX-License-Identifier: Apache-2.0
//
// What a plan is asked for: a load, and the latencies to keep.
//
// Threading: values.

#pragma once

#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/arrivals.h"

namespace lamina::planner {

struct Load {
  double rate = 0;    // Requests a second; 0: as many as a configuration can answer.
  double input = 0;   // Prompt tokens of a request, in the mean.
  double output = 0;  // Generated tokens of a request, in the mean.
  Lengths lengths = Lengths::kFixed;  // How they are spread, for simulations.
  // Tokens of a prompt that all requests share which draw the same one of `prefixes`. Formulas take
  // them as kept once they were computed, whatever their number: a hit rate of prefix / input.
  double prefix = 0;
  double prefixes = 1;

  // Tokens that a decoding sequence holds, in the mean over its life.
  double context() const { return input + output / 2; }
  // Share of the prompt's tokens whose K and V are found where prefixes are kept.
  double hit() const { return prefix / input; }
};

struct Slo {
  double ttft_seconds = std::numeric_limits<double>::infinity();
  double tpot_seconds = std::numeric_limits<double>::infinity();
  double at = 0.95;  // Share of requests that keep both; formulas know means alone.
};

// "rate=20,input=1024,output=256,lengths=sharegpt,prefix=512,prefixes=8"; all but input and output
// may be left out. "hit=0.5" is a prefix of half of the input.
// Errors: kInvalidArgument naming the key, the value and what it may be.
absl::StatusOr<Load> ParseLoad(absl::string_view text);

// "ttft=2s,tpot=80ms,at=p95"; each may be left out.
absl::StatusOr<Slo> ParseSlo(absl::string_view text);

// "20/h", in the catalogue's currency.
absl::StatusOr<double> ParseBudget(absl::string_view text);

}  // namespace lamina::planner
