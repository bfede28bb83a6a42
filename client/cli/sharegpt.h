// SPDX-License-Identifier: Apache-2.0
//
// Dialogues in ShareGPT's form: [{"conversations": [{"from": "human", "value": "..."}, {"from":
// "gpt", "value": "..."}, ...]}, ...]. Pure.

#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::cli {

struct Turn {
  std::string question;
  std::string answer;
};

// The turns up to the first that is no question with an answer; one at least.
struct Dialogue {
  std::vector<Turn> turns;
};

// The first `most` dialogues that begin with a turn of "human" or "user" and an answer to it, and
// that `fits`, in their order; the others are passed over. Empty: none fits.
// Errors: kInvalidArgument  not such JSON, or no such dialogue; names the first entry that is no
//                           dialogue at all.
//         those of `fits`.
absl::StatusOr<std::vector<Dialogue>> ParseShareGpt(
    absl::string_view text, size_t most,
    const std::function<absl::StatusOr<bool>(const Dialogue&)>& fits);

// Text that asks turn `number` of the dialogue: everything said before, then the question.
// Requires: number < dialogue.turns.size().
std::string PromptOfTurn(const Dialogue& dialogue, size_t number);

}  // namespace lamina::cli
