// SPDX-License-Identifier: Apache-2.0
//
// Dialogues in ShareGPT's form: [{"conversations": [{"from": "human", "value": "..."}, {"from":
// "gpt", "value": "..."}, ...]}, ...]. Pure.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::cli {

// The first turn of a dialogue, and its answer.
struct Dialogue {
  std::string prompt;
  std::string answer;
};

// The first `most` dialogues that begin with a turn of "human" or "user" and an answer to it, in
// their order; those that do not are passed over.
// Errors: kInvalidArgument  not such JSON, or no such dialogue; names the first entry that is no
//                           dialogue at all.
absl::StatusOr<std::vector<Dialogue>> ParseShareGpt(absl::string_view text, size_t most);

}  // namespace lamina::cli
