// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat_form.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/json_bounds.h"
#include "common/random_hex.h"
#include "common/status_macros.h"

namespace lamina::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// What nobody's template writes by itself.
constexpr char kProbe[] = "lamina-probe-7f3a";
constexpr char kProbeId[] = "lamina7f3";  // Mistral's templates take nine letters and digits.

std::string NameOf(const model::Tokenizer& tokenizer, TokenId token) {
  return token < 0 ? "" : std::string(tokenizer.TokenName(token));
}

absl::StatusOr<Json> ParseJson(const std::string& text, absl::string_view what,
                               Json::value_t wanted) {
  LAMINA_RETURN_IF_ERROR(CheckRequestJson(text, what));
  Json out = Json::parse(text, nullptr, false);
  if (out.type() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is not a JSON ", wanted == Json::value_t::array ? "array" : "object"));
  }
  return out;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Whether this is a part of a message that is text, as {"type": "text", "text": "..."}.
bool IsTextPart(const Json& part) {
  return part.is_string() ||
         (part.is_object() && part.contains("text") && part["text"].is_string() &&
          (!part.contains("type") || part["type"] == "text"));
}

absl::Status CheckParts(const Json& parts, size_t index) {
  for (const Json& part : parts) {
    if (!IsTextPart(part)) {
      const bool named = part.is_object() && part.contains("type") && part["type"].is_string();
      return absl::InvalidArgumentError(absl::StrCat(
          "messages[", index, "].content has a part of type ",
          named ? part["type"].get<std::string>() : "unknown", "; only text is served"));
    }
  }
  return absl::OkStatus();
}

std::string JoinParts(const Json& parts) {
  std::string out;
  for (const Json& part : parts) {
    absl::StrAppend(&out, out.empty() ? "" : "\n",
                    (part.is_string() ? part : part["text"]).get<std::string>());
  }
  return out;
}

// Templates look for the type of a part, and pass over what has none.
Json TypedParts(const Json& parts) {
  Json out = Json::array();
  for (const Json& part : parts) {
    Json typed = part.is_string() ? Json({{"type", "text"}, {"text", part}}) : part;
    typed["type"] = "text";
    out.push_back(std::move(typed));
  }
  return out;
}

// Some servers and clients write so a call of a function that takes nothing.
bool AreNone(const Json& arguments) {
  return arguments.is_null() ||
         (arguments.is_string() &&
          absl::StripAsciiWhitespace(arguments.get_ref<const std::string&>()).empty());
}

// Most templates write the arguments of a call with tojson.
absl::Status ReadArguments(const CallForm& form, absl::string_view what, Json* message) {
  if (!message->contains("tool_calls") || !(*message)["tool_calls"].is_array()) {
    return absl::OkStatus();
  }
  for (Json& call : (*message)["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        !call["function"].contains("arguments")) {
      continue;
    }
    Json& arguments = call["function"]["arguments"];
    if (AreNone(arguments)) {
      arguments = Json::object();
    }
    if (form.text_arguments && !arguments.is_string()) {
      arguments = Dump(arguments);
    } else if (!form.text_arguments && arguments.is_string()) {
      const auto text = arguments.get<std::string>();
      LAMINA_RETURN_IF_ERROR(
          CheckRequestJson(text, absl::StrCat("the arguments of a call in ", what)));
      Json parsed = Json::parse(text, nullptr, false);
      if (parsed.is_object()) {
        arguments = std::move(parsed);
      }
    }
  }
  return absl::OkStatus();
}

// Whether a message calls functions and says nothing.
bool CallsAlone(const Json& message) {
  const auto calls = message.find("tool_calls");
  const auto content = message.find("content");
  return calls != message.end() && calls->is_array() && !calls->empty() &&
         (content == message.end() || content->is_null() || *content == "");
}

absl::StatusOr<Json> MessageOf(const ChatMessage& message, size_t index, bool takes_parts,
                               const CallForm& form) {
  if (message.json.empty()) {
    return Json({{"role", message.role}, {"content", message.content}});
  }
  const std::string what = absl::StrCat("messages[", index, "]");
  LAMINA_ASSIGN_OR_RETURN(Json out, ParseJson(message.json, what, Json::value_t::object));
  if (out.contains("content") && out["content"].is_array()) {
    LAMINA_RETURN_IF_ERROR(CheckParts(out["content"], index));
    out["content"] = takes_parts ? TypedParts(out["content"]) : Json(JoinParts(out["content"]));
  }
  LAMINA_RETURN_IF_ERROR(ReadArguments(form, what, &out));
  if (form.none_content && CallsAlone(out)) {
    out["content"] = nullptr;
  }
  return out;
}

absl::Status NoFinalText() {
  return absl::InvalidArgumentError(
      "continue_final_message: the last message has no text, or the chat template changes it");
}

// What the last message ends with: its content, or the last part of that. Null unless it is text.
std::string* LastText(Json* messages) {
  if (messages->empty() || !messages->back().contains("content")) {
    return nullptr;
  }
  Json* text = &messages->back()["content"];
  if (text->is_array() && !text->empty()) {
    text = &text->back();
    text = text->is_object() ? &(*text)["text"] : text;
  }
  return text->get_ptr<std::string*>();
}

// Puts `mark` and a space behind the text that the last message ends with, and returns that text.
absl::StatusOr<std::string> MarkEnd(absl::string_view mark, Json* messages) {
  std::string* text = LastText(messages);
  if (text == nullptr || absl::StripAsciiWhitespace(*text).empty()) {
    return NoFinalText();
  }
  std::string unmarked = *text;
  absl::StrAppend(text, mark, " ");
  return unmarked;
}

// Ends what was rendered where the mark is, behind `last`, as transformers does. A template that
// drops the space behind the mark would have dropped white space at the end of `last` as well.
absl::Status CutAtMark(const std::string& mark, absl::string_view last, std::string* rendered) {
  const size_t place = rendered->find(mark);
  if (place == std::string::npos ||
      rendered->find(mark, place + mark.size()) != std::string::npos) {
    return NoFinalText();
  }
  const bool trimmed = rendered->compare(place + mark.size(), 1, " ") != 0;
  rendered->resize(place);
  const absl::string_view bare = absl::StripTrailingAsciiWhitespace(absl::string_view(*rendered));
  if (!absl::EndsWith(bare, absl::StripAsciiWhitespace(last))) {
    return NoFinalText();
  }
  rendered->resize(trimmed ? bare.size() : place);
  return absl::OkStatus();
}

}  // namespace

ChatForm::ChatForm(const model::Tokenizer& tokenizer, const std::string& source) {
  const absl::string_view chosen = source.empty() ? tokenizer.chat_template() : source;
  if (chosen.empty()) {
    status_ = absl::UnimplementedError(
        "the model has no chat template, so it takes no chats; send a plain prompt");
    return;
  }
  absl::StatusOr<model::ChatTemplate> created = model::ChatTemplate::Create(
      chosen, NameOf(tokenizer, tokenizer.bos()), NameOf(tokenizer, tokenizer.eos()));
  if (!created.ok()) {
    // A template that is wrong is no fault of the request.
    status_ = absl::UnimplementedError(absl::StrCat(
        "chats cannot be rendered; send a plain prompt: ", created.status().message()));
    return;
  }
  template_ = *std::move(created);
  takes_parts_ = ProbeParts().value_or(false);
  calls_ = ProbeCalls();
}

// Whether the template shows the text of a list of parts, and not the list.
absl::StatusOr<bool> ChatForm::ProbeParts() const {
  const Json parts = Json::array({Json({{"type", "text"}, {"text", kProbe}})});
  model::ChatTemplateInput input{.messages =
                                     Json::array({Json({{"role", "user"}, {"content", parts}})})};
  LAMINA_ASSIGN_OR_RETURN(const std::string text, template_->Render(input, std::tm{}));
  return absl::StrContains(text, kProbe) && !absl::StrContains(text, "'type'") &&
         !absl::StrContains(text, "\"type\"");
}

// The first form in which the template shows a call, that of transformers before the others. A
// template that shows none gets that one too.
CallForm ChatForm::ProbeCalls() const {
  for (const CallForm form :
       {CallForm{}, CallForm{.text_arguments = true}, CallForm{.none_content = true},
        CallForm{.text_arguments = true, .none_content = true}}) {
    const Json object = Json::object({{kProbe, 1}});
    const Json arguments = form.text_arguments ? Json(Dump(object)) : object;
    const Json call = {{"id", kProbeId},
                       {"type", "function"},
                       {"function", Json::object({{"name", "f"}, {"arguments", arguments}})}};
    const Json content = form.none_content ? Json(nullptr) : Json("");
    const absl::StatusOr<std::string> text = template_->Render(
        {.messages = Json::array(
             {Json::object({{"role", "user"}, {"content", "x"}}),
              Json::object({{"role", "assistant"},
                            {"content", content},
                            {"tool_calls", Json::array({call})}}),
              Json::object({{"role", "tool"}, {"tool_call_id", kProbeId}, {"content", "x"}})}),
         .keep_null_content = form.none_content},
        std::tm{});
    if (text.ok() && absl::StrContains(*text, kProbe)) {
      return form;
    }
  }
  return {};
}

absl::StatusOr<std::string> ChatForm::Render(const ChatRequest& request, const std::tm& now) const {
  LAMINA_RETURN_IF_ERROR(status_);
  if (request.continue_final_message && request.add_generation_prompt) {
    return absl::InvalidArgumentError(
        "continue_final_message and add_generation_prompt exclude each other");
  }
  model::ChatTemplateInput input{.messages = Json::array(),
                                 .add_generation_prompt = request.add_generation_prompt,
                                 .keep_null_content = calls_.none_content};
  for (const ChatMessage& message : request.messages) {
    LAMINA_ASSIGN_OR_RETURN(Json entry,
                            MessageOf(message, input.messages.size(), takes_parts_, calls_));
    input.messages.push_back(std::move(entry));
  }
  if (!request.tools_json.empty()) {
    LAMINA_ASSIGN_OR_RETURN(input.tools,
                            ParseJson(request.tools_json, "tools", Json::value_t::array));
  }
  if (!request.arguments_json.empty()) {
    LAMINA_ASSIGN_OR_RETURN(
        input.arguments,
        ParseJson(request.arguments_json, "the template's arguments", Json::value_t::object));
    if (input.arguments.contains("documents")) {
      input.documents = std::exchange(input.arguments["documents"], nullptr);
    }
  }
  // No client's text has the mark, and the outcome does not depend on it.
  const std::string mark =
      request.continue_final_message ? absl::StrCat("lamina-end-", RandomHex(32)) : "";
  std::string last;
  if (request.continue_final_message) {
    LAMINA_ASSIGN_OR_RETURN(last, MarkEnd(mark, &input.messages));
  }
  LAMINA_ASSIGN_OR_RETURN(std::string text, template_->Render(input, now));
  if (request.continue_final_message) {
    LAMINA_RETURN_IF_ERROR(CutAtMark(mark, last, &text));
  }
  return text + request.suffix;
}

}  // namespace lamina::coordinator
