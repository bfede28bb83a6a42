// SPDX-License-Identifier: Apache-2.0
#include "gateway/completion_format.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/system_fingerprint.h"
#include "model/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace lamina::gateway {

const char kDoneEvent[] = "data: [DONE]\n\n";
const char kKeepAliveComment[] = ": keep-alive\n\n";

namespace {

using OrderedJson = nlohmann::ordered_json;

// JSON has no infinity; clients know this stand-in.
constexpr float kLogprobLeast = -9999.0f;

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string Quote(absl::string_view text) { return Dump(OrderedJson(std::string(text))); }

// Tokens that are no text by themselves are shown as escaped bytes.
std::string TokenName(const std::string& text, absl::string_view escaped_prefix) {
  if (model::ToValidUtf8(text) == text) {
    return text;
  }
  std::string name(escaped_prefix);
  for (const char byte : text) {
    absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned char>(byte));
  }
  return name;
}

double Shown(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, kLogprobLeast) : kLogprobLeast;
}

OrderedJson Bytes(const std::string& text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : text) {
    bytes.push_back(static_cast<unsigned char>(byte));
  }
  return bytes;
}

std::string IdName(TokenId token) { return absl::StrCat("token_id:", token); }

OrderedJson ChatEntry(TokenId token, const std::string& text, float logprob, bool as_ids) {
  return {{"token", as_ids ? IdName(token) : TokenName(text, "")},
          {"logprob", Shown(logprob)},
          {"bytes", Bytes(text)}};
}

OrderedJson ChatLogprobs(const std::vector<ShownToken>& tokens, bool as_ids) {
  OrderedJson content = OrderedJson::array();
  for (const ShownToken& token : tokens) {
    OrderedJson entry = ChatEntry(token.token, token.text, token.logprob.value_or(0), as_ids);
    entry["top_logprobs"] = OrderedJson::array();
    for (const client::TokenLogprob& top : token.top) {
      entry["top_logprobs"].push_back(ChatEntry(top.token, top.text, top.logprob, as_ids));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

std::string CompletionName(TokenId token, const std::string& text, bool as_ids) {
  return as_ids ? IdName(token) : TokenName(text, "bytes:");
}

OrderedJson TopLogprobs(const ShownToken& token, bool as_ids) {
  if (!token.logprob.has_value()) {
    return nullptr;
  }
  OrderedJson top = OrderedJson::object();
  for (const client::TokenLogprob& alternative : token.top) {
    top[CompletionName(alternative.token, alternative.text, as_ids)] = Shown(alternative.logprob);
  }
  top[CompletionName(token.token, token.text, as_ids)] = Shown(*token.logprob);
  return top;
}

OrderedJson CompletionLogprobs(const std::vector<ShownToken>& tokens, int64_t text_offset,
                               const TokenForm& form) {
  OrderedJson offsets = OrderedJson::array();
  OrderedJson logprobs = OrderedJson::array();
  OrderedJson names = OrderedJson::array();
  OrderedJson top = OrderedJson::array();
  for (const ShownToken& token : tokens) {
    offsets.push_back(std::max<int64_t>(text_offset, 0));
    text_offset += CountCharacters(token.text);
    logprobs.push_back(token.logprob.has_value() ? OrderedJson(Shown(*token.logprob))
                                                 : OrderedJson(nullptr));
    names.push_back(CompletionName(token.token, token.text, form.as_ids));
    top.push_back(TopLogprobs(token, form.as_ids));
  }
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(logprobs)},
          {"tokens", std::move(names)},
          {"top_logprobs", form.alternatives > 0 ? std::move(top) : OrderedJson(nullptr)}};
}

// vLLM's shape: null for the first token, then {"token id": {...}} for each: the prompt's own token
// and the alternatives.
OrderedJson PromptLogprobs(const std::vector<ShownToken>& tokens) {
  const auto entry = [](float logprob, size_t rank, const std::string& text) {
    return OrderedJson{
        {"logprob", Shown(logprob)}, {"rank", rank}, {"decoded_token", TokenName(text, "bytes:")}};
  };
  OrderedJson list = OrderedJson::array();
  for (const ShownToken& token : tokens) {
    if (!token.logprob.has_value()) {
      list.push_back(nullptr);
      continue;
    }
    OrderedJson ranked = {
        {absl::StrCat(token.token), entry(*token.logprob, token.rank, token.text)}};
    for (size_t i = 0; i < token.top.size(); ++i) {
      const client::TokenLogprob& other = token.top[i];
      ranked[absl::StrCat(other.token)] = entry(other.logprob, i + 1, other.text);
    }
    list.push_back(std::move(ranked));
  }
  return list;
}

OrderedJson UsageJson(const TokenCounts& counts) {
  OrderedJson usage = {{"prompt_tokens", counts.prompt},
                       {"completion_tokens", counts.completion},
                       {"total_tokens", counts.prompt + counts.completion},
                       {"prompt_tokens_details", {{"cached_tokens", counts.cached}}}};
  if (counts.reasoning.has_value()) {
    usage["completion_tokens_details"] = {{"reasoning_tokens", *counts.reasoning}};
  }
  return usage;
}

// What else can end a choice is an error of the whole request.
absl::string_view ReasonName(client::FinishReason reason, bool called) {
  return reason == client::FinishReason::kLength ? "length" : called ? "tool_calls" : "stop";
}

OrderedJson CallJson(const CalledFunction& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

OrderedJson MessageJson(const FinishedChoice& choice) {
  const bool only_calls = choice.text.empty() && !choice.calls.empty();
  OrderedJson message = {{"role", "assistant"},
                         {"content", only_calls ? OrderedJson(nullptr) : OrderedJson(choice.text)},
                         {"refusal", nullptr},
                         {"annotations", OrderedJson::array()}};
  if (!choice.calls.empty()) {
    message["tool_calls"] = OrderedJson::array();
    for (const CalledFunction& call : choice.calls) {
      message["tool_calls"].push_back(CallJson(call));
    }
  }
  if (!choice.reasoning.empty()) {
    message["reasoning"] = choice.reasoning;
    message["reasoning_content"] = choice.reasoning;
  }
  return message;
}

OrderedJson Head(const CompletionHead& head, absl::string_view object) {
  return {{"id", head.id},
          {"object", std::string(object)},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", SystemFingerprint(head.lossy)}};
}

std::string EventPrefix(const CompletionHead& head) {
  const OrderedJson json = Head(head, head.chat ? "chat.completion.chunk" : "text_completion");
  std::string text = Dump(json);
  text.pop_back();  // The closing brace.
  return absl::StrCat("data: ", text, ",\"choices\":[");
}

}  // namespace

CompletionFormat::CompletionFormat(CompletionHead head, TokenForm form)
    : head_(std::move(head)), form_(form), event_prefix_(EventPrefix(head_)) {}

std::string CompletionFormat::Whole(const std::vector<FinishedChoice>& choices,
                                    const TokenCounts& usage) const {
  OrderedJson body = Head(head_, head_.chat ? "chat.completion" : "text_completion");
  body["choices"] = OrderedJson::array();
  for (const FinishedChoice& choice : choices) {
    OrderedJson entry = {{"index", choice.index}};
    if (head_.chat) {
      entry["message"] = MessageJson(choice);
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] = !form_.logprobs ? OrderedJson(nullptr)
                        : head_.chat    ? ChatLogprobs(choice.tokens, form_.as_ids)
                                     : CompletionLogprobs(choice.tokens, choice.text_offset, form_);
    if (choice.ids.has_value()) {
      entry["token_ids"] = *choice.ids;
      (head_.chat ? body : entry)["prompt_token_ids"] = choice.prompt_ids;
    }
    if (!choice.prompt_tokens.empty()) {
      // A chat has one prompt, whatever its choices.
      (head_.chat ? body : entry)["prompt_logprobs"] = PromptLogprobs(choice.prompt_tokens);
    }
    entry["finish_reason"] = std::string(ReasonName(choice.finish, choice.called));
    body["choices"].push_back(std::move(entry));
  }
  body["usage"] = UsageJson(usage);
  return Dump(body);
}

std::string CompletionFormat::Event(absl::string_view choice, Usage usage,
                                    const TokenCounts& counts, absl::string_view members) const {
  const std::string field = usage == Usage::kAbsent ? ""
                            : usage == Usage::kNull
                                ? ",\"usage\":null"
                                : absl::StrCat(",\"usage\":", Dump(UsageJson(counts)));
  return absl::StrCat(event_prefix_, choice, "]", members, field, "}\n\n");
}

std::string CompletionFormat::Logprobs(const std::vector<ShownToken>& tokens,
                                       int64_t text_offset) const {
  if (!form_.logprobs || tokens.empty()) {
    return "null";
  }
  return Dump(head_.chat ? ChatLogprobs(tokens, form_.as_ids)
                         : CompletionLogprobs(tokens, text_offset, form_));
}

std::string CompletionFormat::RoleEvent(uint32_t index, Usage usage,
                                        const TokenCounts& counts) const {
  return Event(absl::StrCat("{\"index\":", index,
                            ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}"
                            ",\"logprobs\":null,\"finish_reason\":null}"),
               usage, counts);
}

std::string CompletionFormat::TextEvent(uint32_t index, absl::string_view text,
                                        const std::vector<ShownToken>& tokens, uint32_t text_offset,
                                        Usage usage, const TokenCounts& counts) const {
  return TextEvent(index, TextMembers(text, tokens, text_offset), usage, counts);
}

std::string CompletionFormat::TextEvent(uint32_t index, absl::string_view members, Usage usage,
                                        const TokenCounts& counts) const {
  return Event(absl::StrCat("{\"index\":", index, ",", members, ",\"finish_reason\":null}"), usage,
               counts);
}

std::string CompletionFormat::TextMembers(absl::string_view text,
                                          const std::vector<ShownToken>& tokens,
                                          int64_t text_offset) const {
  const std::string shown = head_.chat ? absl::StrCat("\"delta\":{\"content\":", Quote(text), "}")
                                       : absl::StrCat("\"text\":", Quote(text));
  return absl::StrCat(shown, ",\"logprobs\":", Logprobs(tokens, text_offset));
}

std::string CompletionFormat::PartEvent(uint32_t index, const AnswerPart& part, size_t number,
                                        const std::string& id,
                                        const std::vector<ShownToken>& tokens, Usage usage,
                                        const TokenCounts& counts) const {
  OrderedJson delta;
  switch (part.kind) {
    case AnswerPart::Kind::kText:
      delta = {{"content", part.text}};
      break;
    case AnswerPart::Kind::kReasoning:
      delta = {{"reasoning", part.text}, {"reasoning_content", part.text}};
      break;
    case AnswerPart::Kind::kCall: {
      OrderedJson call = {{"index", number}};
      call.update(CallJson({.id = id, .name = part.text}));
      delta = {{"tool_calls", OrderedJson::array({std::move(call)})}};
      break;
    }
    case AnswerPart::Kind::kArguments:
      delta = {{"tool_calls", OrderedJson::array({OrderedJson{
                                  {"index", number}, {"function", {{"arguments", part.text}}}}})}};
      break;
  }
  return Event(absl::StrCat("{\"index\":", index, ",\"delta\":", Dump(delta),
                            ",\"logprobs\":", Logprobs(tokens, 0), ",\"finish_reason\":null}"),
               usage, counts);
}

std::string CompletionFormat::IdsEvent(uint32_t index, const std::vector<TokenId>& ids,
                                       const std::vector<TokenId>& prompt_ids, Usage usage,
                                       const TokenCounts& counts) const {
  const std::string prompt =
      prompt_ids.empty() ? ""
                         : absl::StrCat(",\"prompt_token_ids\":", Dump(OrderedJson(prompt_ids)));
  return Event(
      absl::StrCat("{\"index\":", index, ",", head_.chat ? "\"delta\":{}" : "\"text\":\"\"",
                   ",\"logprobs\":null,\"finish_reason\":null,\"token_ids\":",
                   Dump(OrderedJson(ids)), head_.chat ? "" : prompt, "}"),
      usage, counts, head_.chat ? prompt : "");
}

std::string CompletionFormat::FinishEvent(uint32_t index, client::FinishReason finish, bool called,
                                          Usage usage, const TokenCounts& counts) const {
  return Event(
      absl::StrCat("{\"index\":", index, ",", head_.chat ? "\"delta\":{}" : "\"text\":\"\"",
                   ",\"logprobs\":null,\"finish_reason\":\"", ReasonName(finish, called), "\"}"),
      usage, counts);
}

std::string CompletionFormat::UsageEvent(const TokenCounts& counts) const {
  return Event("", Usage::kCounts, counts);
}

std::string ErrorEvent(absl::string_view error_json) {
  return absl::StrCat("data: ", error_json, "\n\n");
}

uint32_t CountCharacters(absl::string_view text) {
  return static_cast<uint32_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

}  // namespace lamina::gateway
