// SPDX-License-Identifier: Apache-2.0
//
// CheckGrammarSpeed: follows one long output of a form, to find those that are slow to follow.
//
// Threading: one thread.

#pragma once

#include "absl/status/status.h"

namespace lamina::model {

// One output of a form, byte by byte.
class GrammarWalk {
 public:
  virtual ~GrammarWalk() = default;
  // Goes on by a byte; false if none fits.
  virtual bool GoOn() = 0;
  // Finds the tokens that may come next.
  virtual void FindTokens() = 0;
};

// Follows 1,024 bytes, with the tokens that may come next at the first and at each 64th.
// Errors: kInvalidArgument  it took too long; says how to write the form.
// Cost: half a second of processor time for the bytes at most, and a tenth for the tokens each
// time.
absl::Status CheckGrammarSpeed(GrammarWalk& walk);

}  // namespace lamina::model
