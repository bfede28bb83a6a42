// SPDX-License-Identifier: Apache-2.0
//
// TokenWork: how much of the decoding compute nodes' time prompts' chunks took, and how much rows
// took, by the straight line over rows that these nodes have measured (cost/token_price.h has the
// rule). Steps that are planned before anything is measured are left out.
//
// Threading: one thread.

#pragma once

#include <cstdint>

#include "cost/token_price.h"

namespace lamina::coordinator {

class TokenWork {
 public:
  // Of one slice: seconds = fixed + per_row * rows, for rows of either kind.
  void SetTimes(double fixed, double per_row) {
    fixed_ = fixed;
    per_row_ = per_row;
  }

  // A step is planned, on nodes for prompts alone or on the others.
  void Add(uint64_t rows, uint64_t prompt_tokens, bool on_prompt_nodes) {
    input_tokens_ += prompt_tokens;
    if (on_prompt_nodes) {
      return;
    }
    const cost::StepShares step =
        cost::ShapleyShares(Seconds(rows + prompt_tokens), Seconds(prompt_tokens), Seconds(rows));
    shares_.input += step.input;
    shares_.output += step.output;
  }

  uint64_t input_tokens() const { return input_tokens_; }  // Computed ones, again after preemption.
  const cost::StepShares& shares() const { return shares_; }

 private:
  double Seconds(uint64_t rows) const {
    return rows == 0 ? 0 : fixed_ + per_row_ * static_cast<double>(rows);
  }

  double fixed_ = 0;
  double per_row_ = 0;
  uint64_t input_tokens_ = 0;
  cost::StepShares shares_;
};

}  // namespace lamina::coordinator
