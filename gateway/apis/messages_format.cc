// SPDX-License-Identifier: Apache-2.0
#include "gateway/apis/messages_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json_bounds.h"
#include "common/random_hex.h"

namespace lamina::gateway {
namespace {

constexpr size_t kIdDigits = 24;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Why an answer has ended, and by which stop sequence.
Json Ending(const AnswerEnd& end) {
  const bool cut = end.finish == client::FinishReason::kLength;
  const bool stopped = !cut && !end.stop.empty();
  const char* reason = cut          ? "max_tokens"
                       : stopped    ? "stop_sequence"
                       : end.called ? "tool_use"
                                    : "end_turn";
  return {{"stop_reason", reason}, {"stop_sequence", stopped ? Json(end.stop) : Json(nullptr)}};
}

// Anthropic counts tokens that were found, and those of new entries, apart from input_tokens. No
// entry is bought here.
Json Usage(const TokenCounts& counts) {
  const uint32_t cached = std::min(counts.cached, counts.prompt);
  return {{"input_tokens", counts.prompt - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", counts.completion}};
}

Json ErrorJson(const ApiError& error) {
  const char* type = error.http_status == 401   ? "authentication_error"
                     : error.http_status == 404 ? "not_found_error"
                     : error.http_status == 413 ? "request_too_large"
                     : error.http_status == 429 ? "rate_limit_error"
                     : error.http_status == 503 ? "overloaded_error"
                     : error.http_status >= 500 ? "api_error"
                                                : "invalid_request_error";
  return {{"type", "error"}, {"error", {{"type", type}, {"message", error.message}}}};
}

// An empty object where max_tokens has cut the call, and where the arguments are beyond what a
// request may have: they could not come back in one.
Json Parsed(const std::string& arguments) {
  if (!CheckRequestJson(arguments, "arguments").ok()) {
    return Json::object();
  }
  Json json = Json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? std::move(json) : Json::object();
}

}  // namespace

std::string NamedEvent(const std::string& name, const Json& data) {
  return absl::StrCat("event: ", name, "\ndata: ", Dump(data), "\n\n");
}

std::string MessagesErrorBody(const ApiError& error) { return Dump(ErrorJson(error)); }

MessagesFormat::MessagesFormat(std::string model)
    : id_("msg_" + RandomHex(kIdDigits)), model_(std::move(model)) {}

std::string MessagesFormat::Whole(const FinishedChoice& choice, const TokenCounts& counts) {
  Json content = Json::array();
  if (!choice.reasoning.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", choice.reasoning}, {"signature", ""}});
  }
  if (!choice.text.empty()) {
    content.push_back({{"type", "text"}, {"text", choice.text}});
  }
  for (const CalledFunction& call : choice.calls) {
    content.push_back({{"type", "tool_use"},
                       {"id", call.id},
                       {"name", call.name},
                       {"input", Parsed(call.arguments)}});
  }
  const Json ending = Ending({choice.finish, !choice.calls.empty(), choice.stop});
  return Dump({{"id", id_},
               {"type", "message"},
               {"role", "assistant"},
               {"model", model_},
               {"content", std::move(content)},
               {"stop_reason", ending["stop_reason"]},
               {"stop_sequence", ending["stop_sequence"]},
               {"usage", Usage(counts)}});
}

std::string MessagesFormat::Begin(const TokenCounts& counts) {
  return NamedEvent("message_start",
                    {{"type", "message_start"},
                     {"message",
                      {{"id", id_},
                       {"type", "message"},
                       {"role", "assistant"},
                       {"model", model_},
                       {"content", Json::array()},
                       {"stop_reason", nullptr},
                       {"stop_sequence", nullptr},
                       {"usage", Usage({.prompt = counts.prompt, .cached = counts.cached})}}}});
}

std::string MessagesFormat::OpenBlock(AnswerPart::Kind kind, Json block) {
  std::string events = CloseBlock();
  open_ = true;
  kind_ = kind;
  return events + NamedEvent("content_block_start", {{"type", "content_block_start"},
                                                     {"index", blocks_++},
                                                     {"content_block", std::move(block)}});
}

std::string MessagesFormat::CloseBlock() {
  if (!std::exchange(open_, false)) {
    return "";
  }
  return NamedEvent("content_block_stop", {{"type", "content_block_stop"}, {"index", blocks_ - 1}});
}

std::string MessagesFormat::Part(const AnswerPart& part, const std::string& call_id) {
  // Each piece is written before the next: they count blocks.
  std::string events;
  const auto open = [this, &events, &part](Json block) {
    if (!open_ || kind_ != part.kind || part.kind == AnswerPart::Kind::kCall) {
      events += OpenBlock(part.kind, std::move(block));
    }
  };
  const auto delta = [this, &events](Json value) {
    events += NamedEvent(
        "content_block_delta",
        {{"type", "content_block_delta"}, {"index", blocks_ - 1}, {"delta", std::move(value)}});
  };
  switch (part.kind) {
    case AnswerPart::Kind::kText:
      open({{"type", "text"}, {"text", ""}});
      delta({{"type", "text_delta"}, {"text", part.text}});
      break;
    case AnswerPart::Kind::kReasoning:
      open({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      delta({{"type", "thinking_delta"}, {"thinking", part.text}});
      break;
    case AnswerPart::Kind::kCall:
      open({{"type", "tool_use"}, {"id", call_id}, {"name", part.text}, {"input", Json::object()}});
      break;
    case AnswerPart::Kind::kArguments:
      delta({{"type", "input_json_delta"}, {"partial_json", part.text}});
      break;
  }
  return events;
}

std::string MessagesFormat::End(const AnswerEnd& end, const TokenCounts& counts) {
  return CloseBlock() +
         NamedEvent("message_delta",
                    {{"type", "message_delta"}, {"delta", Ending(end)}, {"usage", Usage(counts)}}) +
         NamedEvent("message_stop", {{"type", "message_stop"}});
}

std::string MessagesFormat::ErrorEvent(const ApiError& error) {
  return NamedEvent("error", ErrorJson(error));
}

}  // namespace lamina::gateway
