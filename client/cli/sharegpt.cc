// SPDX-License-Identifier: Apache-2.0
#include "client/cli/sharegpt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace lamina::cli {
namespace {

using nlohmann::json;

std::string TextOf(const json& turn, const char* key) {
  const auto value = turn.find(key);
  return value != turn.end() && value->is_string() ? value->get<std::string>() : "";
}

Dialogue DialogueOf(const json& list) {
  Dialogue dialogue;
  for (size_t i = 0; i + 1 < list.size() && list[i].is_object() && list[i + 1].is_object();
       i += 2) {
    const std::string from = TextOf(list[i], "from");
    Turn turn{TextOf(list[i], "value"), TextOf(list[i + 1], "value")};
    if ((from != "human" && from != "user") || turn.question.empty() || turn.answer.empty()) {
      break;
    }
    dialogue.turns.push_back(std::move(turn));
  }
  return dialogue;
}

}  // namespace

absl::StatusOr<std::vector<Dialogue>> ParseShareGpt(
    absl::string_view text, size_t most,
    const std::function<absl::StatusOr<bool>(const Dialogue&)>& fits) {
  const json list = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) {
    return absl::InvalidArgumentError(
        "not a JSON list of dialogues in ShareGPT's form: [{\"conversations\": [...]}, ...]");
  }
  std::vector<Dialogue> dialogues;
  bool any = false;
  for (size_t i = 0; i < list.size() && dialogues.size() < most; ++i) {
    const json* turns = nullptr;
    if (list[i].is_object() && list[i].contains("conversations")) {
      turns = &list[i]["conversations"];
    }
    if (turns == nullptr || !turns->is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", i + 1, " has no list 'conversations'"));
    }
    Dialogue dialogue = DialogueOf(*turns);
    if (dialogue.turns.empty()) {
      continue;
    }
    any = true;
    LAMINA_ASSIGN_OR_RETURN(const bool fit, fits(dialogue));
    if (fit) {
      dialogues.push_back(std::move(dialogue));
    }
  }
  if (!any) {
    return absl::InvalidArgumentError("no dialogue begins with a question and its answer");
  }
  return dialogues;
}

std::string PromptOfTurn(const Dialogue& dialogue, size_t number) {
  std::string text;
  for (size_t i = 0; i < number; ++i) {
    absl::StrAppend(&text, dialogue.turns[i].question, "\n\n", dialogue.turns[i].answer, "\n\n");
  }
  return text + dialogue.turns[number].question;
}

}  // namespace lamina::cli
