// SPDX-License-Identifier: Apache-2.0
//
// SamplingParams: how a request turns logits into tokens. Fixed at admission. Together with the
// tokens so far it determines the next token, so that any replica can continue any request.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/output_form.h"

namespace lamina {

using TokenId = int32_t;

// How many tokens a request gets at most that does not say how many it wants.
inline constexpr uint32_t kMaxTokensDefault = 512;

struct SamplingParams {
  float temperature = 0.0f;  // >= 0; 0 is greedy: the smallest id among the largest logits.
  uint32_t top_k = 0;        // Keep the k most likely; 0 keeps all.
  float top_p = 1.0f;        // Keep the smallest set with at least this mass; in (0, 1].
  float min_p = 0.0f;        // Drop tokens below min_p times the largest probability; [0, 1].
  float repetition_penalty = 1.0f;  // > 0; divides positive, multiplies negative logits of seen
                                    // tokens (prompt and output).
  float presence_penalty = 0.0f;    // [-2, 2]; subtracted once from tokens of the output.
  float frequency_penalty = 0.0f;   // [-2, 2]; subtracted per occurrence in the output.
  std::vector<std::pair<TokenId, float>> logit_bias;  // Added to raw logits.
  std::vector<TokenId> allowed_tokens;                // No others are sampled; empty: all are.
  uint64_t seed = 0;
  OutputForm form;        // Tokens that do not fit are never sampled.
  int32_t logprobs = -1;  // Alternatives to report of the token: [0, 20]; -1 means none at all.

  // Errors: kInvalidArgument names the field, the value and the range.
  absl::Status Validate() const;

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

}  // namespace lamina
