// SPDX-License-Identifier: Apache-2.0
#include "gateway/apis/responses_format.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/random_hex.h"

namespace lamina::gateway {
namespace {

using Kind = AnswerPart::Kind;

constexpr size_t kIdDigits = 32;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json TextPart(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json ThoughtPart(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

Json MessageItem(const std::string& id, const std::string& status, Json content) {
  return {{"id", id},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

Json CallItem(const std::string& id, const std::string& status, const CalledFunction& call) {
  return {{"id", id},           {"type", "function_call"}, {"status", status},
          {"call_id", call.id}, {"name", call.name},       {"arguments", call.arguments}};
}

Json ThoughtItem(const std::string& id, Json content) {
  return {{"id", id},
          {"type", "reasoning"},
          {"summary", Json::array()},
          {"content", std::move(content)}};
}

}  // namespace

ResponsesFormat::ResponsesFormat(Json echoed)
    : id_("resp_" + RandomHex(kIdDigits)),
      created_(absl::ToUnixSeconds(absl::Now())),
      echoed_(std::move(echoed)) {}

Json ResponsesFormat::Response(const std::string& status, Json output) const {
  Json response = {{"id", id_},        {"object", "response"}, {"created_at", created_},
                   {"status", status}, {"error", nullptr},     {"incomplete_details", nullptr}};
  response.update(echoed_);
  response["output"] = std::move(output);
  response["usage"] = nullptr;
  return response;
}

Json ResponsesFormat::Finished(client::FinishReason finish, Json output,
                               const TokenCounts& counts) const {
  const bool cut = finish == client::FinishReason::kLength;
  Json response = Response(cut ? "incomplete" : "completed", std::move(output));
  if (cut) {
    response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  response["usage"] = {
      {"input_tokens", counts.prompt},
      {"input_tokens_details", {{"cached_tokens", counts.cached}}},
      {"output_tokens", counts.completion},
      {"output_tokens_details", {{"reasoning_tokens", counts.reasoning.value_or(0)}}},
      {"total_tokens", counts.prompt + counts.completion}};
  return response;
}

std::string ResponsesFormat::Whole(const FinishedChoice& choice, const TokenCounts& counts) {
  // What was cut is the last item alone, as in a stream.
  const bool cut = choice.finish == client::FinishReason::kLength;
  const auto status = [cut](bool last) { return cut && last ? "incomplete" : "completed"; };
  Json output = Json::array();
  if (!choice.reasoning.empty()) {
    output.push_back(
        ThoughtItem("rs_" + RandomHex(kIdDigits), Json::array({ThoughtPart(choice.reasoning)})));
  }
  if (!choice.text.empty() || choice.calls.empty()) {
    output.push_back(MessageItem("msg_" + RandomHex(kIdDigits), status(choice.calls.empty()),
                                 Json::array({TextPart(choice.text)})));
  }
  for (const CalledFunction& call : choice.calls) {
    output.push_back(
        CallItem("fc_" + RandomHex(kIdDigits), status(&call == &choice.calls.back()), call));
  }
  return Dump(Finished(choice.finish, std::move(output), counts));
}

std::string ResponsesFormat::Event(const std::string& name, Json data) {
  Json event = {{"type", name}, {"sequence_number", sequence_++}};
  event.update(data);
  return NamedEvent(name, event);
}

std::string ResponsesFormat::Begin(const TokenCounts&) {
  // One after the other: each has the next number.
  const Json data = {{"response", Response("in_progress", Json::array())}};
  std::string events = Event("response.created", data);
  events += Event("response.in_progress", data);
  return events;
}

// The open item, with what it has so far only when it is done. `cut`: it is not whole.
Json ResponsesFormat::Item(bool done, bool cut) const {
  const std::string status = cut ? "incomplete" : done ? "completed" : "in_progress";
  switch (kind_) {
    case Kind::kReasoning:
      return ThoughtItem(item_id_, done ? Json::array({ThoughtPart(text_)}) : Json::array());
    case Kind::kText:
      return MessageItem(item_id_, status, done ? Json::array({TextPart(text_)}) : Json::array());
    case Kind::kCall:
    case Kind::kArguments:
      break;
  }
  return CallItem(item_id_, status,
                  {.id = call_id_, .name = name_, .arguments = done ? text_ : ""});
}

std::string ResponsesFormat::OpenItem(const AnswerPart& part, const std::string& call_id) {
  std::string events = CloseItem();
  open_ = true;
  kind_ = part.kind;
  text_.clear();
  item_id_ = (kind_ == Kind::kText        ? "msg_"
              : kind_ == Kind::kReasoning ? "rs_"
                                          : "fc_") +
             RandomHex(kIdDigits);
  if (kind_ == Kind::kCall) {
    call_id_ = call_id;
    name_ = part.text;
  }
  events += Event("response.output_item.added",
                  {{"output_index", output_.size()}, {"item", Item(/*done=*/false)}});
  if (kind_ != Kind::kCall) {
    events += Event("response.content_part.added",
                    {{"item_id", item_id_},
                     {"output_index", output_.size()},
                     {"content_index", 0},
                     {"part", kind_ == Kind::kText ? TextPart("") : ThoughtPart("")}});
  }
  return events;
}

std::string ResponsesFormat::CloseItem(bool cut) {
  if (!std::exchange(open_, false)) {
    return "";
  }
  const Json place = {{"item_id", item_id_}, {"output_index", output_.size()}};
  const auto with = [&place](Json data) {
    Json all = place;
    all.update(data);
    return all;
  };
  std::string events;
  if (kind_ == Kind::kCall) {
    events = Event("response.function_call_arguments.done",
                   with({{"name", name_}, {"arguments", text_}}));
  } else {
    const bool is_text = kind_ == Kind::kText;
    Json done = {{"content_index", 0}, {"text", text_}};
    if (is_text) {
      done["logprobs"] = Json::array();
    }
    events = Event(is_text ? "response.output_text.done" : "response.reasoning_text.done",
                   with(std::move(done)));
    events += Event(
        "response.content_part.done",
        with({{"content_index", 0}, {"part", is_text ? TextPart(text_) : ThoughtPart(text_)}}));
  }
  Json item = Item(/*done=*/true, cut);
  events += Event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
  output_.push_back(std::move(item));
  return events;
}

std::string ResponsesFormat::Part(const AnswerPart& part, const std::string& call_id) {
  std::string events;
  if (part.kind == Kind::kCall) {
    return OpenItem(part, call_id);
  }
  if (part.kind != Kind::kArguments && (!open_ || kind_ != part.kind)) {
    events = OpenItem(part, call_id);
  }
  text_ += part.text;
  Json data = {{"item_id", item_id_}, {"output_index", output_.size()}, {"delta", part.text}};
  if (part.kind != Kind::kArguments) {
    data["content_index"] = 0;
  }
  if (part.kind == Kind::kText) {
    data["logprobs"] = Json::array();
  }
  return events + Event(part.kind == Kind::kText        ? "response.output_text.delta"
                        : part.kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                                        : "response.function_call_arguments.delta",
                        std::move(data));
}

std::string ResponsesFormat::End(const AnswerEnd& end, const TokenCounts& counts) {
  const bool cut = end.finish == client::FinishReason::kLength;
  std::string events = CloseItem(cut);
  return events + Event(cut ? "response.incomplete" : "response.completed",
                        {{"response", Finished(end.finish, output_, counts)}});
}

std::string ResponsesFormat::ErrorEvent(const ApiError& error) {
  return Event("error", {{"code", error.code}, {"message", error.message}, {"param", nullptr}});
}

}  // namespace lamina::gateway
