// SPDX-License-Identifier: Apache-2.0
#include "gateway/extra_parameters.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

constexpr int64_t kTokensMax = std::numeric_limits<int32_t>::max();
constexpr size_t kBadWordsMax = 128;
constexpr size_t kBadWordBytesMax = 256;
constexpr size_t kAllowedTokensMax = 1024;

absl::Status ReadTruncation(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> most,
                          body.Integer("truncate_prompt_tokens", -1, kTokensMax));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given, body.String("truncation_side"));
  const std::string side = given.value_or("left");
  if (most == 0) {
    return BadField("truncate_prompt_tokens", "integer_below_min_value",
                    "'truncate_prompt_tokens' is 0; keep at least 1, or -1 for what fits");
  }
  if (side != "left" && side != "right") {
    return BadField("truncation_side", "invalid_value",
                    absl::StrCat("'truncation_side' is '", side, "'; it must be left or right"));
  }
  request.truncate_to_fit = most == -1;
  if (most.value_or(-1) > 0) {
    request.options.prompt_tokens_max = static_cast<uint32_t>(*most);
  }
  request.options.truncate_end = side == "right";
  return absl::OkStatus();
}

absl::Status ReadBadWords(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(request.bad_words, body.Strings("bad_words", kBadWordsMax));
  for (const std::string& word : request.bad_words) {
    if (word.empty() || word.size() > kBadWordBytesMax) {
      return BadField("bad_words", word.empty() ? "empty_string" : "string_above_max_length",
                      absl::StrCat("'bad_words' has a text of ", word.size(),
                                   " bytes; each must have 1 to ", kBadWordBytesMax));
    }
  }
  if (!request.bad_words.empty() && !request.options.form.any()) {
    return BadField("bad_words", "invalid_value",
                    "'bad_words' and a form of the output exclude each other");
  }
  return absl::OkStatus();
}

absl::Status ReadAllowedTokens(JsonObject& body, client::GenerateOptions& options) {
  const Json* tokens = body.Find("allowed_token_ids");
  if (tokens == nullptr) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(options.allowed_tokens, ParseTokens(*tokens, "allowed_token_ids"));
  if (options.allowed_tokens.empty() || options.allowed_tokens.size() > kAllowedTokensMax) {
    return BadField("allowed_token_ids", "invalid_value",
                    absl::StrCat("'allowed_token_ids' has ", options.allowed_tokens.size(),
                                 " tokens; it must have 1 to ", kAllowedTokensMax));
  }
  return absl::OkStatus();
}

absl::Status ReadIds(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> ids, body.Bool("return_token_ids"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> as_ids,
                          body.Bool("return_tokens_as_token_ids"));
  request.return_ids = ids.value_or(false);
  request.options.return_prompt = request.return_ids;
  request.tokens_as_ids = as_ids.value_or(false);
  return absl::OkStatus();
}

absl::Status ReadEffort(JsonObject& body, Json& arguments) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> effort, body.String("reasoning_effort"));
  if (!effort.has_value()) {
    return absl::OkStatus();
  }
  constexpr absl::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts)) {
    return BadField("reasoning_effort", "invalid_value",
                    absl::StrCat("'reasoning_effort' is '", *effort,
                                 "'; it must be none, minimal, low, medium, high or xhigh"));
  }
  arguments["reasoning_effort"] = *effort;
  if (*effort == "none" && !arguments.contains("enable_thinking")) {
    arguments["enable_thinking"] = false;
  }
  return absl::OkStatus();
}

absl::Status ReadThoughts(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> include, body.Bool("include_reasoning"));
  request.include_reasoning = include.value_or(true);
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> budget,
                          body.Integer("thinking_token_budget", 0, kTokensMax));
  if (budget.has_value()) {
    request.thinking_tokens_max = static_cast<uint32_t>(*budget);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadExtraParameters(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> skip, body.Bool("skip_special_tokens"));
  request.options.keep_special = !skip.value_or(true);
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> stop, body.Bool("include_stop_str_in_output"));
  request.options.include_stop = stop.value_or(false);
  LAMINA_RETURN_IF_ERROR(ReadTruncation(body, request));
  LAMINA_RETURN_IF_ERROR(ReadBadWords(body, request));
  LAMINA_RETURN_IF_ERROR(ReadAllowedTokens(body, request.options));
  return ReadIds(body, request);
}

absl::Status ReadTemplateParameters(JsonObject& body, client::ChatOptions& chat) {
  Json arguments = Json::object();
  LAMINA_ASSIGN_OR_RETURN(const Json* given, body.Object("chat_template_kwargs"));
  if (given != nullptr) {
    for (const char* name : {"messages", "tools", "add_generation_prompt", "chat_template",
                             "tokenize", "continue_final_message"}) {
      if (given->contains(name)) {
        return BadField("chat_template_kwargs", "invalid_value",
                        absl::StrCat("'chat_template_kwargs' has '", name,
                                     "', which is no variable of a template's own"));
      }
    }
    arguments = *given;
  }
  LAMINA_RETURN_IF_ERROR(ReadEffort(body, arguments));
  if (const Json* documents = body.Find("documents"); documents != nullptr) {
    if (!documents->is_array()) {
      return BadField(
          "documents", "invalid_type",
          absl::StrCat("'documents' must be an array, and is ", JsonTypeName(*documents)));
    }
    arguments["documents"] = *documents;
  }
  LAMINA_RETURN_IF_ERROR(body.Refuse(
      "chat_template", {}, "the server's own chat template is used (chat_template of its file)"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> go_on, body.Bool("continue_final_message"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> open, body.Bool("add_generation_prompt"));
  chat.continue_final_message = go_on.value_or(false);
  chat.add_generation_prompt = open.value_or(!chat.continue_final_message);
  if (chat.continue_final_message && chat.add_generation_prompt) {
    return BadField("continue_final_message", "invalid_value",
                    "'continue_final_message' and 'add_generation_prompt' exclude each other");
  }
  if (!arguments.empty()) {
    chat.arguments_json = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return absl::OkStatus();
}

absl::Status ReadChatParameters(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(request.tools, ReadTools(body));
  LAMINA_RETURN_IF_ERROR(body.Refuse("functions", {Json::array()}, "use tools"));
  LAMINA_RETURN_IF_ERROR(body.Refuse("function_call", {"none", "auto"}, "use tool_choice"));
  LAMINA_RETURN_IF_ERROR(ReadThoughts(body, request));
  LAMINA_RETURN_IF_ERROR(ReadTemplateParameters(body, request.options.chat));
  LAMINA_RETURN_IF_ERROR(body.Refuse("modalities", {Json::array({"text"})}, "output is text only"));
  LAMINA_RETURN_IF_ERROR(body.Refuse("audio", {}, "output is text only"));
  LAMINA_RETURN_IF_ERROR(body.Refuse("web_search_options", {}, "there is no web search"));
  LAMINA_RETURN_IF_ERROR(body.Refuse("verbosity", {"medium"}, "say it in the prompt"));
  LAMINA_RETURN_IF_ERROR(
      body.Refuse("add_special_tokens", {false}, "the chat template has the special tokens"));
  return body.Refuse("echo", {false}, "a chat is not echoed");
}

}  // namespace lamina::gateway
