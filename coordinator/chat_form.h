// SPDX-License-Identifier: Apache-2.0
//
// ChatForm: renders a request's conversation with the model's own chat template.
//
// What an OpenAI-like request allows and templates do not expect is made plain here: parts of text
// become one text where the template knows texts only, and arguments of tool calls that are JSON in
// a text become objects, unless the template shows a call in another form alone.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/chat_template.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::coordinator {

struct ChatMessage {
  std::string role;
  std::string content;
  std::string json;  // The whole message as a JSON object; replaces the two above when not empty.
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::string tools_json;  // A JSON array; empty for none.
  // A JSON object with further variables, `documents` among them; empty for none.
  std::string arguments_json;
  bool add_generation_prompt = true;
  // The text ends with that of the last message, white space too unless the template trims it.
  bool continue_final_message = false;
  std::string suffix;  // Put behind the text.
};

// What a template takes for a message that calls functions.
struct CallForm {
  bool text_arguments = false;  // Arguments are JSON in a text, which the template joins to others.
  bool none_content = false;    // A message without a text has the content none, not an empty text.
};

class ChatForm {
 public:
  // Takes the template of `tokenizer`, which is not needed afterwards, or `source` unless empty.
  explicit ChatForm(const model::Tokenizer& tokenizer, const std::string& source = "");

  // Why chats cannot be rendered; OK when they can.
  const absl::Status& status() const { return status_; }

  // `now`: local time.
  // Errors: status(). kInvalidArgument  JSON that is none or of another shape, a part of a message
  //                                     that is no text, a last message to continue that the
  //                                     template does not show, or model::ChatTemplate::Render's.
  absl::StatusOr<std::string> Render(const ChatRequest& request, const std::tm& now) const;

 private:
  absl::StatusOr<bool> ProbeParts() const;
  CallForm ProbeCalls() const;

  absl::Status status_;
  std::optional<model::ChatTemplate> template_;
  bool takes_parts_ = false;
  CallForm calls_;
};

}  // namespace lamina::coordinator
