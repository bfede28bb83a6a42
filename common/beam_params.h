// SPDX-License-Identifier: Apache-2.0
//
// BeamParams: how a beam search goes. Names and meanings are those of transformers.

#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace lamina {

// When a search ends before the length limit.
enum class BeamStop : uint8_t {
  kHeuristic,  // `width` answers have ended, and the best beam, were it to end here, is no better
               // than the worst of them. early_stopping: false.
  kFull,       // `width` answers have ended. early_stopping: true.
  kNever,      // `width` answers have ended, and none can become better: with a positive
               // length_penalty the best beam is weighed as if it had the limit's length.
               // early_stopping: "never".
};

struct BeamParams {
  static constexpr uint32_t kWidthMax = 10;         // A row reports at most 20 candidates.
  static constexpr double kLengthPenaltyMax = 100;  // Either way.

  uint32_t width = 0;         // Beams, [1, kWidthMax]; 0 is no beam search.
  double length_penalty = 1;  // An answer of n tokens is worth sum of log-probabilities / n^this.
  BeamStop early_stopping = BeamStop::kHeuristic;

  // Errors: kInvalidArgument names the field, the value and the range.
  absl::Status Validate() const;

  friend bool operator==(const BeamParams&, const BeamParams&) = default;
};

}  // namespace lamina
