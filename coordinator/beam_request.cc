// SPDX-License-Identifier: Apache-2.0
#include "coordinator/beam_request.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::coordinator {

absl::Status CheckBeamRequest(const GenerateSpec& spec) {
  LAMINA_RETURN_IF_ERROR(spec.beams.Validate());
  if (spec.choices > spec.beams.width) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", spec.choices, " and beam_width ", spec.beams.width,
                     ": a search has no more answers than beams; lower n or raise beam_width"));
  }
  const SamplingParams& sampling = spec.sampling;
  const struct {
    const char* field;
    bool set;
  } fields[] = {{"temperature", sampling.temperature != 0},
                {"top_k", sampling.top_k != 0},
                {"top_p", sampling.top_p != 1},
                {"min_p", sampling.min_p != 0},
                {"repetition_penalty", sampling.repetition_penalty != 1},
                {"presence_penalty", sampling.presence_penalty != 0},
                {"frequency_penalty", sampling.frequency_penalty != 0},
                {"logit_bias", !sampling.logit_bias.empty()},
                {"allowed_tokens", !sampling.allowed_tokens.empty()},
                {"structured output", !sampling.form.any()},
                {"stop", !spec.stop.empty()},
                {"best_of", spec.best != 0}};
  for (const auto& [field, set] : fields) {
    if (set) {
      return absl::InvalidArgumentError(
          absl::StrCat("beam search goes by the model's own log-probabilities, and not together "
                       "with ",
                       field, "; leave it out"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::coordinator
