// SPDX-License-Identifier: Apache-2.0
//
// ChatTemplate: a model's own template and what it sees, as transformers' apply_chat_template
// does it.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/template.h"

namespace lamina::model {

struct ChatTemplateInput {
  nlohmann::ordered_json messages;  // An array of objects.
  nlohmann::ordered_json tools;     // An array, or null.
  nlohmann::ordered_json documents;
  // Further variables, as "enable_thinking": an object, or null. None replaces one of the above.
  nlohmann::ordered_json arguments;
  bool add_generation_prompt = true;
  // Whether content that is null is none to the template. Transformers leaves it out.
  bool keep_null_content = false;
};

class ChatTemplate {
 public:
  // `bos` and `eos`: the texts of those tokens, or empty when the model has none; the template
  // then sees them undefined.
  // Errors: jinja::Template::Parse's.
  static absl::StatusOr<ChatTemplate> Create(absl::string_view source, std::string bos,
                                             std::string eos);

  // Members of messages that are null are left out, but for keep_null_content, and the reasoning of
  // a message is known under each of the names that templates read.
  // `now`: local time, which some templates write.
  // Errors: kInvalidArgument  the messages are not a list of objects, or none, or what the
  //                           template says of them. Else jinja::Template::Render's.
  absl::StatusOr<std::string> Render(const ChatTemplateInput& input, const std::tm& now) const;

 private:
  ChatTemplate(jinja::Template parsed, std::string bos, std::string eos)
      : template_(std::move(parsed)), bos_(std::move(bos)), eos_(std::move(eos)) {}

  jinja::Template template_;
  std::string bos_;
  std::string eos_;
};

}  // namespace lamina::model
