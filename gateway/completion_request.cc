// SPDX-License-Identifier: Apache-2.0
#include "gateway/completion_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/choice_fields.h"
#include "client/output_form_json.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"
#include "gateway/chat_messages.h"
#include "gateway/extra_parameters.h"

namespace lamina::gateway {
namespace {

// OpenAI's default for plain completions; a chat goes on until the context is full.
constexpr uint32_t kCompletionTokensDefault = 16;
constexpr int64_t kTokensMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kLogprobsMax = 20;   // As the coordinator allows.
constexpr size_t kStopsMax = 16;       // As the coordinator allows.
constexpr size_t kStopBytesMax = 256;  // As the coordinator allows.
constexpr size_t kStopTokensMax = 128;
constexpr size_t kLogitBiasMax = 1024;  // As the coordinator allows.

absl::Status ReadSampling(JsonObject& body, client::GenerateOptions& options) {
  const auto real = [&body](const char* name, double least, double most,
                            std::optional<float>& out) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const std::optional<double> value, body.Number(name, least, most));
    if (value.has_value()) {
      out = static_cast<float>(*value);
    }
    return absl::OkStatus();
  };
  LAMINA_RETURN_IF_ERROR(real("temperature", 0, 2, options.temperature));
  LAMINA_RETURN_IF_ERROR(real("top_p", 0, 1, options.top_p));
  LAMINA_RETURN_IF_ERROR(real("min_p", 0, 1, options.min_p));
  LAMINA_RETURN_IF_ERROR(real("presence_penalty", -2, 2, options.presence_penalty));
  LAMINA_RETURN_IF_ERROR(real("frequency_penalty", -2, 2, options.frequency_penalty));
  LAMINA_RETURN_IF_ERROR(real("repetition_penalty", 1e-6, 1e6, options.repetition_penalty));
  if (options.top_p == 0.0f) {
    return BadField("top_p", "decimal_below_min_value", "'top_p' is 0; it must be in (0, 1]");
  }
  // vLLM's word for all tokens is -1.
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k,
                          body.Integer("top_k", -1, kTokensMax));
  if (top_k.has_value()) {
    options.top_k = static_cast<uint32_t>(std::max<int64_t>(*top_k, 0));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> seed,
                          body.Integer("seed", INT64_MIN, INT64_MAX));
  if (seed.has_value() && *seed != -1) {  // vLLM's word for one that is drawn.
    options.seed = static_cast<uint64_t>(*seed);
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(JsonObject& body, client::GenerateOptions& options) {
  const Json* value = body.Find("logit_bias");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (!value->is_object()) {
    return WrongType("logit_bias", "an object of token ids and biases", *value);
  }
  if (value->size() > kLogitBiasMax) {
    return BadField("logit_bias", "object_above_max_properties",
                    absl::StrCat("'logit_bias' has ", value->size(), " tokens; at most ",
                                 kLogitBiasMax, " are allowed"));
  }
  JsonObject biases(*value, "logit_bias.");
  for (const auto& [key, bias] : value->items()) {
    TokenId token = 0;
    if (!absl::SimpleAtoi(key, &token) || token < 0) {
      return BadField("logit_bias", "invalid_value",
                      absl::StrCat("'logit_bias' has the key '", key, "', which is no token id"));
    }
    LAMINA_ASSIGN_OR_RETURN(const std::optional<double> number, biases.Number(key, -100, 100));
    options.logit_bias.emplace_back(token, static_cast<float>(number.value_or(0)));
  }
  return absl::OkStatus();
}

absl::Status ReadStops(JsonObject& body, client::GenerateOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(options.stop, body.Strings("stop", kStopsMax));
  for (const std::string& stop : options.stop) {
    if (stop.empty() || stop.size() > kStopBytesMax) {
      return BadField("stop", stop.empty() ? "empty_string" : "string_above_max_length",
                      absl::StrCat("'stop' has a string of ", stop.size(),
                                   " bytes; each must have 1 to ", kStopBytesMax));
    }
  }
  if (const Json* tokens = body.Find("stop_token_ids"); tokens != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(options.stop_tokens, ParseTokens(*tokens, "stop_token_ids"));
    if (options.stop_tokens.size() > kStopTokensMax) {
      return BadField("stop_token_ids", "array_above_max_length",
                      absl::StrCat("'stop_token_ids' has ", options.stop_tokens.size(),
                                   " tokens; at most ", kStopTokensMax, " are allowed"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadStreaming(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> stream, body.Bool("stream"));
  request.stream = stream.value_or(false);
  const Json* value = body.Find("stream_options");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (!request.stream) {
    return BadField("stream_options", "invalid_value",
                    "'stream_options' is only for requests with 'stream': true");
  }
  if (!value->is_object()) {
    return WrongType("stream_options", "an object", *value);
  }
  JsonObject options(*value, "stream_options.");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> include, options.Bool("include_usage"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> continuous,
                          options.Bool("continuous_usage_stats"));
  options.Ignore("include_obfuscation");
  request.include_usage = include.value_or(false);
  request.continuous_usage = request.include_usage && continuous.value_or(false);
  return options.RefuseUnknown();
}

absl::Status ReadForm(JsonObject& body, CompletionRequest& request) {
  client::GenerateOptions& options = request.options;
  const std::pair<const char*, absl::StatusOr<OutputForm> (*)(const Json&)> fields[] = {
      {"response_format", client::ResponseFormat},
      {"structured_outputs", client::StructuredOutputs}};
  for (const auto& [name, read] : fields) {
    const Json* value = body.Find(name);
    if (value == nullptr) {
      continue;
    }
    absl::StatusOr<OutputForm> form = read(*value);
    if (!form.ok()) {
      return BadField(name, "invalid_value",
                      absl::StrCat("'", name, "': ", form.status().message()));
    }
    if (!form->any() && !options.form.any()) {
      return BadField(name, "invalid_value",
                      "'response_format' and 'structured_outputs' exclude each other");
    }
    if (!form->any()) {
      options.form = *std::move(form);
      request.form_field = name;
    }
  }
  if (!options.form.any() && options.ignore_eos) {
    return BadField("ignore_eos", "invalid_value",
                    "'ignore_eos' cannot be: output of a given form ends when it is whole");
  }
  return absl::OkStatus();
}

// Fields that change nothing here, and fields that would and that this server does not obey.
absl::Status ReadOthers(JsonObject& body) {
  for (const char* name :
       {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "request_id", "spaces_between_special_tokens", "prediction"}) {
    body.Ignore(name);
  }
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}) {
    LAMINA_RETURN_IF_ERROR(body.Refuse(name, {}, "use structured_outputs"));
  }
  return body.RefuseUnknown();
}

absl::Status ReadCommon(JsonObject& body, CompletionRequest& request) {
  client::GenerateOptions& options = request.options;
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> model, body.String("model"));
  if (!model.has_value() || model->empty()) {
    return Missing("model");
  }
  request.model = *model;
  LAMINA_RETURN_IF_ERROR(ReadSampling(body, options));
  LAMINA_RETURN_IF_ERROR(ReadLogitBias(body, options));
  LAMINA_RETURN_IF_ERROR(ReadStops(body, options));
  LAMINA_RETURN_IF_ERROR(ReadStreaming(body, request));
  LAMINA_RETURN_IF_ERROR(client::ReadChoices(body, options));
  request.choices = *options.n;
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> ignore_eos, body.Bool("ignore_eos"));
  options.ignore_eos = ignore_eos.value_or(false);
  LAMINA_RETURN_IF_ERROR(ReadForm(body, request));
  LAMINA_RETURN_IF_ERROR(ReadExtraParameters(body, request));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> min_tokens,
                          body.Integer("min_tokens", 0, kTokensMax));
  if (min_tokens.has_value()) {
    options.min_tokens = static_cast<uint32_t>(*min_tokens);
  }
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> priority,
                          body.Integer("priority", INT32_MIN, INT32_MAX));
  options.priority = static_cast<int32_t>(priority.value_or(0));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> salt, body.String("cache_salt"));
  options.cache_salt = salt.value_or("");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> prompt_logprobs,
                          body.Integer("prompt_logprobs", 0, kLogprobsMax));
  if (prompt_logprobs.has_value()) {
    request.prompt_logprobs = static_cast<uint32_t>(*prompt_logprobs);
  }
  if (request.prompt_logprobs.has_value() && request.stream) {
    return BadField("prompt_logprobs", "invalid_value",
                    "'prompt_logprobs' is only for requests that are not streamed");
  }
  return absl::OkStatus();
}

absl::Status CheckMinTokens(const CompletionRequest& request) {
  const client::GenerateOptions& options = request.options;
  if (options.min_tokens.value_or(0) > options.max_tokens.value_or(UINT32_MAX) &&
      !request.no_tokens) {
    return BadField("min_tokens", "invalid_value",
                    absl::StrCat("'min_tokens' is ", *options.min_tokens, ", more than the ",
                                 *options.max_tokens, " of max_tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckChoices(const CompletionRequest& request, const RequestLimits& limits) {
  const client::GenerateOptions& options = request.options;
  const uint32_t each = std::max({*options.n, options.best_of.value_or(0), options.beams.width});
  const uint64_t all = uint64_t{request.prompts.size()} * each;
  if (all > limits.choices_max) {
    return BadField(
        request.prompts.size() > 1 ? "prompt" : "n", "array_above_max_length",
        absl::StrCat(request.prompts.size(), " prompts of ", each, " choices each are ", all,
                     "; at most ", limits.choices_max, " are allowed in one request"));
  }
  return absl::OkStatus();
}

// A string, strings, token ids, or lists of token ids.
absl::StatusOr<std::vector<client::Prompt>> ParsePrompts(const Json& value,
                                                         const RequestLimits& limits) {
  std::vector<client::Prompt> prompts;
  if (value.is_string()) {
    prompts.emplace_back(value.get<std::string>());
    return prompts;
  }
  if (!value.is_array()) {
    return BadField("prompt", "invalid_type",
                    absl::StrCat("'prompt' must be a string, an array of strings, an array of "
                                 "token ids, or an array of such arrays, and is ",
                                 JsonTypeName(value)));
  }
  if (value.empty()) {
    return BadField("prompt", "empty_array", "'prompt' is an empty array");
  }
  if (value.front().is_number()) {
    LAMINA_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, ParseTokens(value, "prompt"));
    prompts.emplace_back(std::move(tokens));
    return prompts;
  }
  if (value.size() > limits.choices_max) {
    return BadField("prompt", "array_above_max_length",
                    absl::StrCat("'prompt' has ", value.size(), " prompts; at most ",
                                 limits.choices_max, " are allowed"));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string path = absl::StrCat("prompt[", i, "]");
    if (value[i].type() != value.front().type() || !(value[i].is_string() || value[i].is_array())) {
      return BadField(path, "invalid_type",
                      absl::StrCat("'", path, "' is ", JsonTypeName(value[i]),
                                   "; a batch is all strings or all arrays of token ids"));
    }
    if (value[i].is_string()) {
      prompts.emplace_back(value[i].get<std::string>());
    } else {
      LAMINA_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, ParseTokens(value[i], path));
      prompts.emplace_back(std::move(tokens));
    }
  }
  return prompts;
}

absl::Status ReadCompletionLogprobs(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> logprobs,
                          body.Integer("logprobs", 0, kLogprobsMax));
  if (!logprobs.has_value()) {
    return absl::OkStatus();
  }
  request.logprobs = true;
  request.options.logprobs = static_cast<uint32_t>(*logprobs);
  return absl::OkStatus();
}

// Answers of a search, and the best of several, are known at the end.
absl::Status ReadBeams(JsonObject& body, CompletionRequest& request) {
  LAMINA_RETURN_IF_ERROR(client::ReadBeams(body, request.options));
  if (request.stream && request.options.beams.width > 0) {
    return BadField("use_beam_search", "invalid_value",
                    "'use_beam_search' is only for requests that are not streamed");
  }
  return absl::OkStatus();
}

absl::Status ReadBestOf(JsonObject& body, CompletionRequest& request) {
  LAMINA_RETURN_IF_ERROR(client::ReadBestOf(body, request.options));
  if (request.stream && request.options.best_of.has_value()) {
    return BadField("best_of", "invalid_value",
                    "'best_of' above 'n' is only for requests that are not streamed");
  }
  return absl::OkStatus();
}

absl::Status ReadChatLogprobs(JsonObject& body, CompletionRequest& request) {
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> logprobs, body.Bool("logprobs"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> top,
                          body.Integer("top_logprobs", 0, kLogprobsMax));
  request.logprobs = logprobs.value_or(false);
  if (top.value_or(0) > 0 && !request.logprobs) {
    return BadField("top_logprobs", "invalid_value",
                    "'top_logprobs' is only for requests with 'logprobs': true");
  }
  if (request.logprobs) {
    request.options.logprobs = static_cast<uint32_t>(top.value_or(0));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TokenId> CompletionRequest::Kept(std::vector<TokenId> tokens) const {
  const size_t most = options.prompt_tokens_max.value_or(UINT32_MAX);
  if (tokens.size() > most && options.truncate_end) {
    tokens.resize(most);
  } else if (tokens.size() > most) {
    tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(most));
  }
  return tokens;
}

absl::StatusOr<std::vector<TokenId>> ParseTokens(const Json& tokens, absl::string_view path) {
  if (!tokens.is_array()) {
    return BadField(
        path, "invalid_type",
        absl::StrCat("'", path, "' must be an array of token ids, and is ", JsonTypeName(tokens)));
  }
  std::vector<TokenId> ids;
  ids.reserve(tokens.size());
  for (const Json& token : tokens) {
    const std::optional<int64_t> id = ExactInteger(token);
    if (!id.has_value() || *id < 0 || *id > INT32_MAX) {
      return BadField(
          path, token.is_number_integer() ? "invalid_value" : "invalid_type",
          absl::StrCat("'", path, "' has ",
                       token.is_number() ? token.dump() : std::string(JsonTypeName(token)),
                       "; token ids are whole numbers from 0"));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

absl::StatusOr<CompletionRequest> ParseCompletion(const Json& json, const RequestLimits& limits) {
  JsonObject body(json);
  CompletionRequest request;
  LAMINA_RETURN_IF_ERROR(ReadCommon(body, request));
  const Json* prompt = body.Find("prompt");
  if (prompt == nullptr) {
    return Missing("prompt");
  }
  LAMINA_ASSIGN_OR_RETURN(request.prompts, ParsePrompts(*prompt, limits));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> echo, body.Bool("echo"));
  request.echo = echo.value_or(false);
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> max_tokens,
                          body.Integer("max_tokens", request.echo ? 0 : 1, kTokensMax));
  request.no_tokens = max_tokens == 0;
  request.max_tokens_given = max_tokens.value_or(0) > 0;
  request.options.max_tokens = static_cast<uint32_t>(max_tokens.value_or(kCompletionTokensDefault));
  LAMINA_RETURN_IF_ERROR(CheckMinTokens(request));
  LAMINA_RETURN_IF_ERROR(ReadCompletionLogprobs(body, request));
  LAMINA_RETURN_IF_ERROR(ReadBestOf(body, request));
  LAMINA_RETURN_IF_ERROR(ReadBeams(body, request));
  LAMINA_RETURN_IF_ERROR(CheckChoices(request, limits));
  LAMINA_RETURN_IF_ERROR(body.Refuse("suffix", {""}, "text cannot be inserted"));
  LAMINA_RETURN_IF_ERROR(
      body.Refuse("add_special_tokens", {true}, "send token ids to have no special tokens added"));
  LAMINA_RETURN_IF_ERROR(body.Refuse("parallel_tool_calls", {true}, "tools are for chats"));
  LAMINA_RETURN_IF_ERROR(ReadOthers(body));
  return request;
}

absl::StatusOr<CompletionRequest> ParseChatCompletion(const Json& json,
                                                      const RequestLimits& limits) {
  JsonObject body(json);
  CompletionRequest request;
  request.chat = true;
  LAMINA_RETURN_IF_ERROR(ReadCommon(body, request));
  const Json* messages = body.Find("messages");
  if (messages == nullptr) {
    return Missing("messages");
  }
  LAMINA_ASSIGN_OR_RETURN(std::vector<client::ChatMessage> parsed, ParseMessages(*messages));
  request.prompts.emplace_back(std::move(parsed));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> max_tokens,
                          body.Integer("max_tokens", 1, kTokensMax));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<int64_t> newer,
                          body.Integer("max_completion_tokens", 1, kTokensMax));
  request.max_tokens_given = max_tokens.has_value() || newer.has_value();
  // The coordinator ends at the longest sequence that it serves.
  request.options.max_tokens =
      static_cast<uint32_t>(newer.value_or(max_tokens.value_or(kTokensMax)));
  LAMINA_RETURN_IF_ERROR(CheckMinTokens(request));
  LAMINA_RETURN_IF_ERROR(ReadChatLogprobs(body, request));
  LAMINA_RETURN_IF_ERROR(ReadBeams(body, request));
  LAMINA_RETURN_IF_ERROR(CheckChoices(request, limits));
  LAMINA_RETURN_IF_ERROR(ReadChatParameters(body, request));
  LAMINA_RETURN_IF_ERROR(ReadOthers(body));
  return request;
}

}  // namespace lamina::gateway
