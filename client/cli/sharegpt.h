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

// The first turn of a dialogue, and its answer.
struct Dialogue {
  std::string prompt;
  std::string answer;
};

// The first `most` dialogues that begin with a turn of "human" or "user" and an answer to it, and
// that `fits`, in their order; the others are passed over. Empty: none fits.
// Errors: kInvalidArgument  not such JSON, or no such dialogue; names the first entry that is no
//                           dialogue at all.
//         those of `fits`.
absl::StatusOr<std::vector<Dialogue>> ParseShareGpt(
    absl::string_view text, size_t most,
    const std::function<absl::StatusOr<bool>(const Dialogue&)>& fits);

}  // namespace lamina::cli
