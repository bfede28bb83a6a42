// SPDX-License-Identifier: Apache-2.0
#include "gateway/request_form.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

constexpr float kTemperatureDefault = 1.0f;  // OpenAI's; the coordinator's own is greedy.
constexpr uint32_t kTokensKeptFree = 16;     // OpenAI's default of max_tokens.

void TakeAdvice(const client::SamplingDefaults& advised, client::GenerateOptions& options) {
  const auto fill = [](const auto& advice, auto& option) {
    if (!option.has_value()) {
      option = advice;
    }
  };
  if (options.beams.width > 0) {
    return;  // Advice is on how to draw.
  }
  fill(advised.temperature, options.temperature);
  fill(advised.top_k, options.top_k);
  fill(advised.top_p, options.top_p);
  fill(advised.min_p, options.min_p);
  fill(advised.repetition_penalty, options.repetition_penalty);
  options.temperature = options.temperature.value_or(kTemperatureDefault);
}

Json Sequence(std::initializer_list<Json> elements) {
  return {{"type", "sequence"}, {"elements", Json::array_t(elements)}};
}

Json AnyText(const std::vector<std::string>& excluded) {
  return {{"type", "any_text"}, {"excludes", excluded}};
}

// The output's form as a part of a structural tag.
Json FormatOf(const OutputForm& form) {
  switch (form.kind) {
    case OutputForm::Kind::kAny:
      break;
    case OutputForm::Kind::kJsonSchema:
      return {{"type", "json_schema"},
              {"json_schema", Json::parse(form.text, nullptr, /*allow_exceptions=*/false)},
              {"max_whitespace_cnt", 1}};
    case OutputForm::Kind::kRegex:
      return {{"type", "regex"}, {"pattern", form.text}};
    case OutputForm::Kind::kGrammar:
      return {{"type", "grammar"}, {"grammar", form.text}};
    case OutputForm::Kind::kStructuralTag: {
      const Json tag = Json::parse(form.text, nullptr, /*allow_exceptions=*/false);
      return tag.is_object() ? tag.value("format", Json()) : Json();
    }
  }
  return AnyText({"<think>"});
}

Json Thought(const std::string& begin, const CompletionRequest& request) {
  std::vector<std::string> excluded = request.bad_words;
  excluded.emplace_back("</think>");
  Json content = AnyText(excluded);
  if (request.thinking_tokens_max.has_value()) {
    content["max_tokens"] = *request.thinking_tokens_max;
  }
  Json end = {{"type", "const_string"}, {"value", "</think>"}};
  if (begin.empty()) {
    return Sequence({std::move(content), std::move(end)});
  }
  return {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", "</think>"}};
}

void SetFormat(const Json& format, OutputForm& form) {
  form = {OutputForm::Kind::kStructuralTag,
          Json{{"type", "structural_tag"}, {"format", format}}.dump(
              -1, ' ', false, Json::error_handler_t::replace)};
}

// A thought may come before what has a form, and has its own bound. A structural tag of the
// client's is of the whole output: it has a place for the thought, or there is none.
void AddThought(bool whole, CompletionRequest& request) {
  OutputForm& form = request.options.form;
  const bool bounded = request.thinking_tokens_max.has_value();
  if (whole || request.thought == AnswerReader::Thought::kNone || (form.any() && !bounded)) {
    return;
  }
  const Json space = {{"type", "regex"}, {"pattern", "\\n{0,2}"}};
  // Behind the thought there is none, as where nothing is asked for.
  std::vector<std::string> excluded = request.bad_words;
  excluded.emplace_back("<think>");
  const Json rest = request.bad_words.empty() ? FormatOf(form) : AnyText(excluded);
  const Json thought =
      Thought(request.thought == AnswerReader::Thought::kOpen ? "" : "<think>", request);
  const Json before = Sequence({thought, space});
  SetFormat(request.thought == AnswerReader::Thought::kOpen
                ? Sequence({before, rest})
                : Sequence({Json{{"type", "optional"}, {"content", before}}, rest}),
            form);
}

// A model that may call either calls, or says what has the form that was asked for. A structural
// tag of the client's is of the whole output, and so are vLLM's structured_outputs: they have a
// place for calls, or there are none.
absl::Status AddCallsToForm(CompletionRequest& request) {
  OutputForm& form = request.options.form;
  if (request.form_field != "response_format" || form.kind == OutputForm::Kind::kStructuralTag) {
    return absl::OkStatus();
  }
  const CallSyntax& syntax = request.family->syntax;
  if (!syntax.in_prompt.empty()) {
    return BadField("response_format", "invalid_value",
                    "'response_format' and 'tools' that the model may call exclude each other "
                    "with this model, whose calls begin with a special token that no form has: "
                    "set 'tool_choice' to 'none' or 'required', or leave 'response_format' out");
  }
  SetFormat(Json{{"type", "or"},
                 {"elements", Json::array({CallsFormat(request.tools, syntax), FormatOf(form)})}},
            form);
  return absl::OkStatus();
}

absl::Status AddTools(const ChatShape& shape, CompletionRequest& request) {
  ToolRequest& tools = request.tools;
  if (tools.choice == ToolChoice::kNone) {
    return absl::OkStatus();
  }
  if (tools.choice == ToolChoice::kAuto && (shape.family() == nullptr || !shape.takes_tools())) {
    return BadField("tools", "unsupported_parameter",
                    shape.takes_tools()
                        ? "'tools' is not supported: it is not known how this model writes calls; "
                          "name its family in gateway.tool_parser"
                        : "'tools' is not supported: the model's chat template has no place for "
                          "them; give the server one that has (chat_template)");
  }
  request.family = shape.family() != nullptr ? shape.family() : &HermesFamily();
  client::GenerateOptions& options = request.options;
  options.chat.tools_json = tools.json;
  options.keep_special = options.keep_special || request.family->keep_special;
  if (!tools.enforced()) {
    return AddCallsToForm(request);
  }
  if (!options.form.any() || !request.bad_words.empty()) {
    return BadField("tool_choice", "invalid_value",
                    "'tool_choice' that demands a call and another form of the output exclude "
                    "each other");
  }
  if (request.options.ignore_eos) {
    return BadField("ignore_eos", "invalid_value",
                    "'ignore_eos' cannot be: an answer that must be calls ends with them");
  }
  SetFormat(CallsFormat(tools, request.family->syntax), options.form);
  request.form_field = "tools";
  if (request.thought == AnswerReader::Thought::kNone) {
    options.chat.suffix = request.family->syntax.in_prompt;
  }
  return absl::OkStatus();
}

// Serves a family whose answers are in marks always. What has a form is the answer alone, behind
// its mark: a form has no place for a thought in other marks than tags.
void AddMarks(const ChatShape& shape, CompletionRequest& request) {
  const ToolFamily* family = shape.family();
  if (family == nullptr || !family->always_marks()) {
    return;
  }
  request.family = family;
  request.options.keep_special = true;
  if (!request.options.form.any() && !request.tools.enforced()) {
    request.options.chat.suffix = family->before_text;
  }
}

void KeepWordsOut(CompletionRequest& request) {
  if (!request.bad_words.empty()) {
    SetFormat(AnyText(request.bad_words), request.options.form);
    request.form_field = "bad_words";
  }
}

}  // namespace

absl::Status FitToModel(const client::ModelInfo& model, const ChatShape& shape,
                        CompletionRequest& request) {
  // Before it is parsed.
  LAMINA_RETURN_IF_ERROR(NameForm(CheckOutputForm(request.options.form), request.form_field));
  TakeAdvice(model.sampling, request.options);
  const bool whole = request.options.form.kind == OutputForm::Kind::kStructuralTag;
  if (request.truncate_to_fit) {
    // At most half is kept free: some clients always ask for more than the model has, and a prompt
    // that fits would be cut to nothing. The answer is cut to what fits behind it.
    const uint32_t wanted =
        request.max_tokens_given ? *request.options.max_tokens : kTokensKeptFree;
    const uint32_t kept_free = std::clamp(wanted, 1u, std::max(1u, model.sequence_tokens_max / 2));
    request.options.prompt_tokens_max =
        std::max(1u, model.sequence_tokens_max - std::min(model.sequence_tokens_max, kept_free));
  }
  if (request.chat) {
    request.thought = shape.ThoughtOf(request.options.chat);
    LAMINA_RETURN_IF_ERROR(AddTools(shape, request));
  }
  if (request.thinking_tokens_max.has_value() && request.thought == AnswerReader::Thought::kNone) {
    return BadField("thinking_token_budget", "unsupported_parameter",
                    "'thinking_token_budget' is not supported: this model does not think in tags");
  }
  KeepWordsOut(request);
  AddThought(whole, request);
  if (request.options.ignore_eos && !request.options.form.any()) {
    return BadField("ignore_eos", "invalid_value",
                    "'ignore_eos' cannot be: 'bad_words' and 'thinking_token_budget' give the "
                    "output a form, which ends when it is whole");
  }
  if (request.chat) {
    AddMarks(shape, request);
  }
  return absl::OkStatus();
}

}  // namespace lamina::gateway
