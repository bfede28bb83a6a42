// SPDX-License-Identifier: Apache-2.0
#include "common/sampling_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace lamina {
namespace {

constexpr int32_t kLogprobsMax = 20;
constexpr size_t kLogitBiasMax = 1024;
constexpr size_t kAllowedTokensMax = 1024;

absl::Status OutOfRange(const char* field, float value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must be in ", range));
}

}  // namespace

absl::Status SamplingParams::Validate() const {
  if (!(temperature >= 0.0f) || std::isinf(temperature)) {
    return OutOfRange("temperature", temperature, "[0, inf)");
  }
  if (!(top_p > 0.0f && top_p <= 1.0f)) {
    return OutOfRange("top_p", top_p, "(0, 1]");
  }
  if (!(min_p >= 0.0f && min_p <= 1.0f)) {
    return OutOfRange("min_p", min_p, "[0, 1]");
  }
  if (!(repetition_penalty > 0.0f) || std::isinf(repetition_penalty)) {
    return OutOfRange("repetition_penalty", repetition_penalty, "(0, inf)");
  }
  if (!(presence_penalty >= -2.0f && presence_penalty <= 2.0f)) {
    return OutOfRange("presence_penalty", presence_penalty, "[-2, 2]");
  }
  if (!(frequency_penalty >= -2.0f && frequency_penalty <= 2.0f)) {
    return OutOfRange("frequency_penalty", frequency_penalty, "[-2, 2]");
  }
  if (logprobs < -1 || logprobs > kLogprobsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs is ", logprobs, "; it must be in [0, ", kLogprobsMax, "]"));
  }
  if (logit_bias.size() > kLogitBiasMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "logit_bias has ", logit_bias.size(), " entries; at most ", kLogitBiasMax, " are allowed"));
  }
  for (const auto& [token, bias] : logit_bias) {
    if (!(bias >= -100.0f && bias <= 100.0f)) {
      return OutOfRange("logit_bias", bias, "[-100, 100]");
    }
  }
  if (allowed_tokens.size() > kAllowedTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat("allowed_tokens has ", allowed_tokens.size(),
                                                   " entries; at most ", kAllowedTokensMax,
                                                   " are allowed"));
  }
  return CheckOutputForm(form);
}

}  // namespace lamina
