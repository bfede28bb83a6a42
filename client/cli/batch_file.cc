// SPDX-License-Identifier: Apache-2.0
#include "client/cli/batch_file.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/choice_fields.h"
#include "client/field_error.h"
#include "client/json_object.h"
#include "client/output_form_json.h"
#include "common/status_macros.h"
#include "common/system_fingerprint.h"
#include "model/chat_template.h"

namespace lamina::cli {
namespace {

constexpr char kChatUrl[] = "/v1/chat/completions";
constexpr char kCompletionsUrl[] = "/v1/completions";
// What a body without max_tokens gets, as from the gateway. A chat goes on until the context is
// full: the server ends at its longest sequence.
constexpr uint32_t kCompletionTokensDefault = 16;
constexpr uint32_t kChatTokensDefault = std::numeric_limits<int32_t>::max();

absl::Status Wrong(absl::string_view field, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is not ", wanted));
}

absl::Status NotServed(absl::string_view field) {
  return absl::InvalidArgumentError(
      absl::StrCat("the field ", field, " is not supported in batches"));
}

// Reads one field of a body.
using ReadField = absl::Status (*)(const Json& value, const std::string& name,
                                   BatchRequest* request);

// A decimal that is whole is a whole number, as at the gateway.
template <typename T>
absl::Status Number(const Json& value, const std::string& name, std::optional<T>* out) {
  if constexpr (std::is_integral_v<T>) {
    const std::optional<int64_t> exact = client::ExactInteger(value);
    if (!value.is_number_unsigned() && exact.value_or(-1) < 0) {
      return Wrong(name, "a whole number that is not negative");
    }
    const uint64_t whole =
        value.is_number_unsigned() ? value.get<uint64_t>() : static_cast<uint64_t>(*exact);
    if (static_cast<T>(whole) != whole) {
      return Wrong(name, absl::StrCat("at most ", std::numeric_limits<T>::max()));
    }
    *out = static_cast<T>(whole);
  } else {
    if (!value.is_number()) {
      return Wrong(name, "a number");
    }
    *out = value.get<T>();
  }
  return absl::OkStatus();
}

template <auto member>
absl::Status ReadNumber(const Json& value, const std::string& name, BatchRequest* request) {
  return Number(value, name, &(request->options.*member));
}

// vLLM's word for all tokens is -1, as at the gateway.
absl::Status ReadTopK(const Json& value, const std::string& name, BatchRequest* request) {
  if (client::ExactInteger(value) == -1) {
    request->options.top_k = 0;
    return absl::OkStatus();
  }
  return Number(value, name, &request->options.top_k);
}

// OpenAI's seeds may be negative. -1 is vLLM's word for one that is drawn.
absl::Status ReadSeed(const Json& value, const std::string& name, BatchRequest* request) {
  const std::optional<int64_t> exact = client::ExactInteger(value);
  if (exact.value_or(0) >= 0) {
    return Number(value, name, &request->options.seed);
  }
  if (*exact != -1) {
    request->options.seed = static_cast<uint64_t>(*exact);
  }
  return absl::OkStatus();
}

absl::Status ReadMessages(const Json& value, const std::string& name, BatchRequest* request) {
  if (!value.is_array() || value.empty()) {
    return Wrong(name, "a list with messages");
  }
  std::vector<client::ChatMessage> messages;
  for (Json message : value) {
    // OpenAI's newer word for the system's part, and its older one for a tool's, which templates do
    // not know.
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    if (role == "developer" || role == "function") {
      message["role"] = role == "developer" ? "system" : "tool";
    }
    messages.push_back({.json = message.dump()});
  }
  request->options.prompt = std::move(messages);
  return absl::OkStatus();
}

absl::Status ReadTools(const Json& value, const std::string& name, BatchRequest*) {
  if (value == Json::array()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name,
                   " are not served in batches: answers are not read for calls there; send the "
                   "request to the gateway"));
}

absl::Status ReadStream(const Json& value, const std::string& name, BatchRequest*) {
  return value == false ? absl::OkStatus() : Wrong(name, "false: results of batches come whole");
}

// What would change an answer is not served; false changes none.
absl::Status ReadFalse(const Json& value, const std::string& name, BatchRequest*) {
  return value == false ? absl::OkStatus() : NotServed(name);
}

absl::Status ReadPromptField(const Json& value, const std::string& name, BatchRequest* request) {
  if (value.is_string()) {
    request->options.prompt = value.get<std::string>();
    return absl::OkStatus();
  }
  std::vector<TokenId> tokens;
  for (const Json& token : value) {
    if (!value.is_array() || !token.is_number_integer()) {
      return Wrong(name, "a text or a list of token ids");
    }
    const auto whole = token.get<int64_t>();
    if (static_cast<TokenId>(whole) != whole) {
      return Wrong(name, "a list of token ids: one is too large");
    }
    tokens.push_back(static_cast<TokenId>(whole));
  }
  request->options.prompt = std::move(tokens);
  return absl::OkStatus();
}

absl::Status ReadStop(const Json& value, const std::string& name, BatchRequest* request) {
  for (const Json& stop : value.is_array() ? value : Json::array({value})) {
    if (!stop.is_string()) {
      return Wrong(name, "a text or a list of texts");
    }
    request->options.stop.push_back(stop.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const Json& value, const std::string& name, BatchRequest* request) {
  if (!value.is_object()) {
    return Wrong(name, "an object of token ids and numbers");
  }
  for (const auto& [key, bias] : value.items()) {
    TokenId token = 0;
    if (!absl::SimpleAtoi(key, &token) || !bias.is_number()) {
      return Wrong(name, "an object of token ids and numbers");
    }
    request->options.logit_bias.emplace_back(token, bias.get<float>());
  }
  return absl::OkStatus();
}

absl::Status ReadIgnoreEos(const Json& value, const std::string& name, BatchRequest* request) {
  if (!value.is_boolean()) {
    return Wrong(name, "true or false");
  }
  request->options.ignore_eos = value.get<bool>();
  return absl::OkStatus();
}

// One of the two fields may have a form, in whichever order they come, as at the gateway.
absl::Status TakeForm(absl::StatusOr<OutputForm> form, BatchRequest* request) {
  if (!form.ok() || form->any()) {
    return form.status();
  }
  if (!request->options.form.any()) {
    return absl::InvalidArgumentError(
        "response_format and structured_outputs exclude each other: leave one of them out");
  }
  request->options.form = *std::move(form);
  return absl::OkStatus();
}

absl::Status ReadResponseFormat(const Json& value, const std::string&, BatchRequest* request) {
  return TakeForm(client::ResponseFormat(value), request);
}

absl::Status ReadStructuredOutputs(const Json& value, const std::string&, BatchRequest* request) {
  return TakeForm(client::StructuredOutputs(value), request);
}

absl::Status ReadModel(const Json& value, const std::string& name, BatchRequest* request) {
  if (!value.is_string()) {
    return Wrong(name, "a text");
  }
  request->model = value.get<std::string>();
  return absl::OkStatus();
}

absl::Status Ignore(const Json&, const std::string&, BatchRequest*) { return absl::OkStatus(); }

// One of those that say which answers there are, which depend on each other: ReadAnswers() reads
// them, whatever their order.
absl::Status ReadLater(const Json&, const std::string&, BatchRequest*) { return absl::OkStatus(); }

struct Field {
  absl::string_view name;
  ReadField read;
};
using client::GenerateOptions;
constexpr Field kFields[] = {
    {"model", ReadModel},
    {"user", Ignore},
    {"metadata", Ignore},
    {"store", Ignore},
    {"service_tier", Ignore},
    {"safety_identifier", Ignore},
    {"prompt_cache_key", Ignore},
    {"prompt_cache_retention", Ignore},
    {"prediction", Ignore},
    {"stream", ReadStream},
    {"max_tokens", ReadNumber<&GenerateOptions::max_tokens>},
    {"max_completion_tokens", ReadNumber<&GenerateOptions::max_tokens>},
    {"min_tokens", ReadNumber<&GenerateOptions::min_tokens>},
    {"n", ReadLater},
    {"use_beam_search", ReadLater},
    {"beam_width", ReadLater},
    {"length_penalty", ReadLater},
    {"early_stopping", ReadLater},
    {"temperature", ReadNumber<&GenerateOptions::temperature>},
    {"top_p", ReadNumber<&GenerateOptions::top_p>},
    {"top_k", ReadTopK},
    {"min_p", ReadNumber<&GenerateOptions::min_p>},
    {"repetition_penalty", ReadNumber<&GenerateOptions::repetition_penalty>},
    {"presence_penalty", ReadNumber<&GenerateOptions::presence_penalty>},
    {"frequency_penalty", ReadNumber<&GenerateOptions::frequency_penalty>},
    {"seed", ReadSeed},
    {"stop", ReadStop},
    {"logit_bias", ReadLogitBias},
    {"ignore_eos", ReadIgnoreEos},
    {"response_format", ReadResponseFormat},
    {"structured_outputs", ReadStructuredOutputs},
};
constexpr Field kChatFields[] = {
    {"messages", ReadMessages}, {"tools", ReadTools}, {"logprobs", ReadFalse}};
constexpr Field kCompletionFields[] = {
    {"prompt", ReadPromptField}, {"echo", ReadFalse}, {"best_of", ReadLater}};

const Field* FindField(absl::string_view name, bool chat) {
  const auto named = [name](const Field& field) { return field.name == name; };
  const auto* found = std::find_if(std::begin(kFields), std::end(kFields), named);
  if (found != std::end(kFields)) {
    return found;
  }
  const absl::Span<const Field> own =
      chat ? absl::MakeConstSpan(kChatFields) : absl::MakeConstSpan(kCompletionFields);
  const auto own_field = std::find_if(own.begin(), own.end(), named);
  return own_field == own.end() ? nullptr : &*own_field;
}

// How many answers there are and which, as the gateway reads it.
absl::Status ReadAnswers(const Json& body, BatchRequest* request) {
  GenerateOptions& options = request->options;
  client::JsonObject fields(body);
  LAMINA_RETURN_IF_ERROR(client::ReadChoices(fields, options));
  if (!request->chat) {
    LAMINA_RETURN_IF_ERROR(client::ReadBestOf(fields, options));
  }
  LAMINA_RETURN_IF_ERROR(client::ReadBeams(fields, options));
  if (options.beams.width == 0 && !options.temperature.has_value()) {
    options.temperature = 1;  // OpenAI's default; a search draws nothing.
  }
  return absl::OkStatus();
}

absl::Status ReadBody(const Json& body, BatchRequest* request) {
  const char* prompt = request->chat ? "messages" : "prompt";
  if (!body.is_object() || !body.contains(prompt) || body[prompt].is_null()) {
    return absl::InvalidArgumentError(absl::StrCat("the body has no ", prompt));
  }
  request->options.max_tokens = request->chat ? kChatTokensDefault : kCompletionTokensDefault;
  for (const auto& [name, value] : body.items()) {
    if (value.is_null()) {
      continue;  // Absent, as at the gateway.
    }
    const Field* field = FindField(name, request->chat);
    LAMINA_RETURN_IF_ERROR(field == nullptr ? NotServed(name) : field->read(value, name, request));
  }
  // The newer of the two names counts, in whichever order they come, as at the gateway.
  if (const auto newer = body.find("max_completion_tokens");
      newer != body.end() && !newer->is_null()) {
    LAMINA_RETURN_IF_ERROR(Number(*newer, "max_completion_tokens", &request->options.max_tokens));
  }
  return ReadAnswers(body, request);
}

absl::Status ReadRequest(const Json& line, BatchRequest* request) {
  const std::string url = line.value("url", Json()).is_string() ? line["url"] : Json("");
  if (line.value("method", Json("POST")) != "POST" || (url != kChatUrl && url != kCompletionsUrl)) {
    return absl::InvalidArgumentError(
        absl::StrCat("only POST of ", kChatUrl, " and ", kCompletionsUrl, " is served in batches"));
  }
  request->chat = url == kChatUrl;
  return ReadBody(line.value("body", Json()), request);
}

bool IsBlank(absl::string_view line) {
  return line.find_first_not_of(" \t\r") == absl::string_view::npos;
}

// Calls `take` with each line that is not empty, and its number.
template <typename Take>
void ForLines(absl::string_view text, const Take& take) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const absl::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!IsBlank(line)) {
      take(line, number);
    }
  }
}

absl::StatusOr<Json> ParseLine(absl::string_view line, size_t number) {
  Json out = Json::parse(line, nullptr, false);
  if (!out.is_object() || !out.contains("custom_id") || !out["custom_id"].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", number, " is not a JSON object with a custom_id"));
  }
  return out;
}

// Whether the prompt of a chat ends within a thought, which the template has opened.
bool OpensThought(const client::ModelInfo& model) {
  const absl::StatusOr<model::ChatTemplate> chat_template =
      model::ChatTemplate::Create(model.chat_template, model.bos_token, model.eos_token);
  if (!chat_template.ok()) {
    return false;  // The server says what is wrong with it.
  }
  const absl::StatusOr<std::string> text = chat_template->Render(
      {.messages = Json::array({Json{{"role", "user"}, {"content", "x"}}})}, std::tm{});
  const size_t open = text.ok() ? text->rfind("<think>") : std::string::npos;
  return open != std::string::npos && text->find("</think>", open) == std::string::npos;
}

// Whether a form binds from the first token on where the gateway lets a thought come first. A
// structural tag is of the whole output there, too.
bool LeavesThoughtOut(const OutputForm& form) {
  return !form.any() && form.kind != OutputForm::Kind::kStructuralTag;
}

// Whether a result line that was cut off may be this text; Envelope() says how it begins.
bool MayBeginResult(absl::string_view text) {
  constexpr absl::string_view kBegin = R"({"id":"batch_req_)";
  return absl::StartsWith(text, kBegin) || absl::StartsWith(kBegin, text);
}

Json Envelope(const BatchRequest& request, int status_code, const std::string& request_id,
              Json body) {
  return {{"id", absl::StrCat("batch_req_", request.custom_id)},
          {"custom_id", request.custom_id},
          {"response",
           {{"status_code", status_code}, {"request_id", request_id}, {"body", std::move(body)}}},
          {"error", nullptr}};
}

}  // namespace

BatchFile ParseBatch(absl::string_view text) {
  BatchFile out;
  std::set<std::string> seen;
  ForLines(text, [&](absl::string_view line, size_t number) {
    const absl::StatusOr<Json> json = ParseLine(line, number);
    if (!json.ok()) {
      out.problems.emplace_back(json.status().message());
      return;
    }
    BatchRequest request{.custom_id = (*json)["custom_id"].get<std::string>()};
    if (!seen.insert(request.custom_id).second) {
      out.problems.push_back(absl::StrCat("line ", number, ": the custom_id ", request.custom_id,
                                          " was there before"));
      return;
    }
    request.status = ReadRequest(*json, &request);
    out.requests.push_back(std::move(request));
  });
  return out;
}

void CheckModels(const std::vector<std::string>& names, std::vector<BatchRequest>& requests) {
  for (BatchRequest& request : requests) {
    const bool served = request.model.empty() ||
                        std::find(names.begin(), names.end(), request.model) != names.end();
    if (request.status.ok() && !served) {
      request.status = absl::NotFoundError(
          absl::StrCat("the model '", request.model,
                       "' is not served here; served: ", absl::StrJoin(names, ", ")));
    }
  }
}

void CheckAnswers(const client::ModelInfo& model, std::vector<BatchRequest>& requests) {
  // Its marks are special tokens, without which thought and answer cannot be told apart.
  const bool channels = absl::StrContains(model.chat_template, "<|channel|>") &&
                        absl::StrContains(model.chat_template, "<|message|>");
  const bool opens_thought = OpensThought(model);
  for (BatchRequest& request : requests) {
    if (!request.chat || !request.status.ok()) {
      continue;
    }
    if (channels) {
      request.status = absl::InvalidArgumentError(
          "this model answers in channels, which are not read in batches; send the request to the "
          "gateway");
    } else if (opens_thought && LeavesThoughtOut(request.options.form)) {
      request.status = absl::InvalidArgumentError(
          "response_format and structured_outputs are not served in batches with this model, whose "
          "answers begin with a thought: the thought would have the form; send the request to the "
          "gateway");
    }
  }
}

absl::StatusOr<BatchDone> ReadBatchResults(std::istream& in) {
  BatchDone out;
  std::string line;
  size_t number = 1;
  for (; std::getline(in, line) && !in.eof(); ++number) {
    out.bytes += line.size() + 1;
    if (IsBlank(line)) {
      continue;
    }
    LAMINA_ASSIGN_OR_RETURN(const Json json, ParseLine(line, number));
    if (!json.contains("response")) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " is not a result"));
    }
    out.custom_ids.insert(json["custom_id"].get<std::string>());
  }
  if (in.bad()) {
    return absl::DataLossError("the results cannot be read");
  }
  // A last line without its end is of a run that was cut off, or the file has other contents.
  if (!IsBlank(line) && !MayBeginResult(line)) {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", number, ", which has no line end, is not the beginning of a result"));
  }
  return out;
}

Json BatchResult(const BatchRequest& request, const std::string& model,
                 const std::string& request_id, const std::map<uint32_t, BatchChoice>& choices,
                 int64_t created) {
  Json list = Json::array();
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  std::string lossy;  // All choices have one policy.
  for (const auto& [index, choice] : choices) {
    lossy = choice.usage.lossy;
    Json entry = {{"index", index}};
    if (request.chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}};
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = nullptr;
    entry["finish_reason"] = std::string(FinishReasonName(choice.finish_reason));
    list.push_back(std::move(entry));
    prompt_tokens = choice.usage.prompt_tokens;
    completion_tokens += choice.usage.completion_tokens + choice.usage.left_out_tokens;
  }
  return Envelope(request, 200, request_id,
                  {{"id", absl::StrCat(request.chat ? "chatcmpl-" : "cmpl-", request_id)},
                   {"object", request.chat ? "chat.completion" : "text_completion"},
                   {"created", created},
                   {"model", model},
                   {"system_fingerprint", SystemFingerprint(lossy)},
                   {"choices", std::move(list)},
                   {"usage",
                    {{"prompt_tokens", prompt_tokens},
                     {"completion_tokens", completion_tokens},
                     {"total_tokens", prompt_tokens + completion_tokens}}}});
}

Json BatchError(const BatchRequest& request, const absl::Status& status) {
  const bool ours = status.code() == absl::StatusCode::kInternal;
  const bool no_model = status.code() == absl::StatusCode::kNotFound;
  const auto or_null = [](std::string text) {
    return text.empty() ? Json() : Json(std::move(text));
  };
  return Envelope(
      request,
      ours       ? 500
      : no_model ? 404
                 : 400,
      "",
      {{"error",
        {{"message", std::string(status.message())},
         {"type", ours ? "server_error" : "invalid_request_error"},
         {"param", no_model ? Json("model") : or_null(client::FieldOf(status))},
         {"code", no_model ? Json("model_not_found") : or_null(client::FieldCodeOf(status))}}}});
}

bool IsTransient(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return true;
    default:
      return false;
  }
}

}  // namespace lamina::cli
