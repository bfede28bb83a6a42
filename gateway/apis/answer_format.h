// SPDX-License-Identifier: Apache-2.0
//
// AnswerFormat: how an API other than OpenAI's completions writes the answer to one prompt, whole
// or in events. It belongs to one request: events depend on those before.
//
// Threading: the gateway's; Whole() in any thread, where nothing else is called.

#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gateway/answer_part.h"
#include "gateway/api_error.h"
#include "gateway/apis/field_names.h"
#include "gateway/completion_format.h"
#include "gateway/json_object.h"

namespace lamina::gateway {

// How an answer has ended.
struct AnswerEnd {
  client::FinishReason finish = client::FinishReason::kNotFinished;
  bool called = false;  // It has calls.
  std::string stop;     // The stop string that ended it; empty: none did.
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // The body of an answer that is not streamed.
  virtual std::string Whole(const FinishedChoice& choice, const TokenCounts& counts) = 0;

  // Events, in this order: Begin(), Part() for each, End().
  virtual std::string Begin(const TokenCounts& counts) = 0;
  // `call_id`: of the call that a part belongs to.
  virtual std::string Part(const AnswerPart& part, const std::string& call_id) = 0;
  virtual std::string End(const AnswerEnd& end, const TokenCounts& counts) = 0;

  // A failure after the first event, and in place of an answer.
  virtual std::string ErrorEvent(const ApiError& error) = 0;
  virtual std::string ErrorBody(const ApiError& error) = 0;
};

// What a request asks in the words of OpenAI's chats, and how its answer is written.
struct TranslatedRequest {
  Json chat;
  std::shared_ptr<AnswerFormat> format;
  FieldNames names;
};

// OpenAI's Responses, stateless: text and functions.
// Errors: kInvalidArgument  with the field and OpenAI's code for the mistake.
absl::StatusOr<TranslatedRequest> TranslateResponses(const Json& body);

// Anthropic's Messages: text, functions and thoughts. `count`: of count_tokens.
// Errors: the same.
absl::StatusOr<TranslatedRequest> TranslateMessages(const Json& body, bool count);

// An error as Anthropic's clients read it.
std::string MessagesErrorBody(const ApiError& error);

// "event: NAME\ndata: {...}\n\n".
std::string NamedEvent(const std::string& name, const Json& data);

}  // namespace lamina::gateway
