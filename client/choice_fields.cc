// SPDX-License-Identifier: Apache-2.0
#include "client/choice_fields.h"

#include <algorithm>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/field_error.h"
#include "common/beam_params.h"
#include "common/status_macros.h"

namespace lamina::client {
namespace {

constexpr uint32_t kBeamWidthDefault = 4;

// transformers' true, false and "never".
absl::Status ReadEarlyStopping(const Json& value, BeamStop& stop) {
  if (value.is_boolean()) {
    stop = value.get<bool>() ? BeamStop::kFull : BeamStop::kHeuristic;
    return absl::OkStatus();
  }
  if (value == "never") {
    stop = BeamStop::kNever;
    return absl::OkStatus();
  }
  return BadField("early_stopping", "invalid_value",
                  "'early_stopping' must be true, false or \"never\"");
}

// What a search does not go with, and a width that it cannot have.
absl::Status CheckSearch(const GenerateOptions& options, uint32_t answers) {
  if (options.beams.width > BeamParams::kWidthMax || options.beams.width < answers) {
    return BadField("beam_width", "invalid_value",
                    absl::StrCat("a search of ", options.beams.width, " beams for ", answers,
                                 " answers: it must have as many beams as 'n' at least, and at "
                                 "most ",
                                 BeamParams::kWidthMax));
  }
  if (options.temperature.value_or(0) != 0) {
    return BadField("temperature", "invalid_value",
                    absl::StrCat("'temperature' is ", *options.temperature,
                                 "; a beam search draws nothing: leave it out, or set 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadChoices(JsonObject& body, GenerateOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> choices, body.Integer("n", 1, kChoicesMax));
  options.n = static_cast<uint32_t>(choices.value_or(1));
  return absl::OkStatus();
}

absl::Status ReadBestOf(JsonObject& body, GenerateOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> best_of,
                          body.Integer("best_of", 1, kChoicesMax));
  const uint32_t choices = options.n.value_or(1);
  if (!best_of.has_value() || *best_of == choices) {
    return absl::OkStatus();
  }
  if (*best_of < choices) {
    return BadField("best_of", "invalid_value",
                    absl::StrCat("'best_of' is ", *best_of, ", less than 'n', which is ", choices));
  }
  options.best_of = static_cast<uint32_t>(*best_of);
  return absl::OkStatus();
}

absl::Status ReadBeams(JsonObject& body, GenerateOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> search, body.Bool("use_beam_search"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> width,
                          body.Integer("beam_width", 1, BeamParams::kWidthMax));
  LAMINA_ASSIGN_OR_RETURN(
      const std::optional<double> penalty,
      body.Number("length_penalty", -BeamParams::kLengthPenaltyMax, BeamParams::kLengthPenaltyMax));
  const Json* stop = body.Find("early_stopping");
  if (!search.value_or(false)) {
    if (width.has_value() || penalty.value_or(1) != 1 || (stop != nullptr && *stop != false)) {
      return BadField(width.has_value()          ? "beam_width"
                      : penalty.value_or(1) != 1 ? "length_penalty"
                                                 : "early_stopping",
                      "invalid_value",
                      "'beam_width', 'length_penalty' and 'early_stopping' are only for requests "
                      "with 'use_beam_search': true");
    }
    return absl::OkStatus();
  }
  const uint32_t answers = options.n.value_or(1);
  const uint32_t asked = std::max(answers, options.best_of.value_or(1));
  options.best_of.reset();
  options.beams.width = width.has_value() ? static_cast<uint32_t>(*width)
                        : asked > 1       ? asked
                                          : kBeamWidthDefault;
  options.beams.length_penalty = penalty.value_or(1);
  if (stop != nullptr) {
    LAMINA_RETURN_IF_ERROR(ReadEarlyStopping(*stop, options.beams.early_stopping));
  }
  return CheckSearch(options, answers);
}

}  // namespace lamina::client
