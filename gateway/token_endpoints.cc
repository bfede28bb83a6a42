// SPDX-License-Identifier: Apache-2.0
#include "gateway/token_endpoints.h"

#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"
#include "gateway/chat_messages.h"
#include "gateway/completion_request.h"
#include "gateway/deferred_handler.h"
#include "gateway/extra_parameters.h"
#include "gateway/json_object.h"

namespace lamina::gateway {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct TokenizeRequest {
  std::string model;
  client::Prompt prompt;
  client::ChatOptions chat;
  bool add_special = true;
  bool with_strings = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

absl::StatusOr<TokenizeRequest> ParseTokenize(const std::string& text) {
  LAMINA_ASSIGN_OR_RETURN(const Json json, ParseBody(text));
  JsonObject body(json);
  TokenizeRequest request;
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> model, body.String("model"));
  request.model = model.value_or("");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> prompt, body.String("prompt"));
  const Json* messages = body.Find("messages");
  if (prompt.has_value() == (messages != nullptr)) {
    return BadField("prompt", "missing_required_parameter", "give one of 'prompt' and 'messages'");
  }
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> add_special, body.Bool("add_special_tokens"));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> strings, body.Bool("return_token_strs"));
  request.with_strings = strings.value_or(false);
  if (prompt.has_value()) {
    request.prompt = *prompt;
    request.add_special = add_special.value_or(true);
  } else {
    LAMINA_ASSIGN_OR_RETURN(request.prompt, ParseMessages(*messages));
    if (add_special.value_or(false)) {
      return BadField("add_special_tokens", "unsupported_parameter",
                      "'add_special_tokens' is not for 'messages': the chat template has them");
    }
    LAMINA_RETURN_IF_ERROR(ReadTemplateParameters(body, request.chat));
    LAMINA_ASSIGN_OR_RETURN(const ToolRequest tools, ReadTools(body));
    request.chat.tools_json = tools.json;
  }
  LAMINA_RETURN_IF_ERROR(body.RefuseUnknown());
  return request;
}

absl::StatusOr<DetokenizeRequest> ParseDetokenize(const std::string& text) {
  LAMINA_ASSIGN_OR_RETURN(const Json json, ParseBody(text));
  JsonObject body(json);
  DetokenizeRequest request;
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> model, body.String("model"));
  request.model = model.value_or("");
  const Json* tokens = body.Find("tokens");
  if (tokens == nullptr) {
    return Missing("tokens");
  }
  LAMINA_ASSIGN_OR_RETURN(request.tokens, ParseTokens(*tokens, "tokens"));
  LAMINA_RETURN_IF_ERROR(body.RefuseUnknown());
  return request;
}

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Calls `next` when the model is the one that is served, or any.
void WithModel(const std::string& name, ModelDirectory& models,
               const std::shared_ptr<DeferredHandler>& handler,
               const std::function<void(const ServedModel& model)>& next) {
  models.Get([name, handler, next](const absl::StatusOr<ServedModel>& model) {
    if (!model.ok()) {
      handler->Respond(ErrorResponse(model.status()));
    } else if (!name.empty() && !model->Has(name)) {
      handler->Respond(ErrorResponse(UnknownModel(name, absl::StrJoin(model->names, ", "))));
    } else {
      next(*model);
    }
  });
}

// Responds with a call's answer: an error, or what `write` makes of it, which takes about `bytes`.
template <typename Answer, typename Write>
void RespondWith(SideWork& side_work, const std::shared_ptr<DeferredHandler>& handler,
                 absl::StatusOr<Answer> answer, size_t bytes, Write write) {
  if (!answer.ok()) {
    handler->Respond(ErrorResponse(answer.status()));
    return;
  }
  side_work.DoForAnswer(
      bytes, [answer = *std::move(answer), write] { return Dump(write(answer)); },
      [handler](std::string body) { handler->Respond({.body = std::move(body)}); });
}

// Reads a body and goes on with the request in it, or answers with what is wrong.
template <typename Request>
std::shared_ptr<RequestHandler> ReadAndAnswer(
    std::string body, absl::StatusOr<Request> (*parse)(const std::string& text),
    SideWork& side_work, ResponseWriter& writer,
    std::function<void(std::shared_ptr<DeferredHandler> handler, Request request)> answer) {
  const auto handler = std::make_shared<DeferredHandler>(writer);
  const size_t bytes = body.size();
  const absl::Status begun = side_work.Do(
      bytes, [parse, body = std::move(body)] { return parse(body); },
      [handler, answer = std::move(answer)](absl::StatusOr<Request> request) {
        if (request.ok()) {
          answer(handler, *std::move(request));
        } else {
          handler->Respond(ErrorResponse(request.status()));
        }
      });
  if (!begun.ok()) {
    handler->Respond(ErrorResponse(begun));
  }
  return handler;
}

// What a token and its text take in an answer, about.
constexpr size_t kTokenBytes = 8;

}  // namespace

std::shared_ptr<RequestHandler> AnswerTokenize(std::string body, const TokenServices& services,
                                               ResponseWriter& writer) {
  const auto answer = [services](const std::shared_ptr<DeferredHandler>& handler,
                                 TokenizeRequest request) {
    const auto shared = std::make_shared<TokenizeRequest>(std::move(request));
    const auto ask = [services, handler, request = shared](const ServedModel& model) {
      const auto write = [tokens_max = model.info.sequence_tokens_max,
                          strings = request->with_strings](const client::TokenizeResult& result) {
        return OrderedJson{
            {"count", result.tokens.size()},
            {"max_model_len", tokens_max},
            {"tokens", result.tokens},
            {"token_strs", strings ? OrderedJson(result.pieces) : OrderedJson(nullptr)}};
      };
      services.backend.Tokenize(
          request->prompt, request->chat, request->add_special,
          [services, handler, write](absl::StatusOr<client::TokenizeResult> result) {
            const size_t bytes = result.ok() ? result->tokens.size() * kTokenBytes : 0;
            RespondWith(services.side_work, handler, std::move(result), bytes, write);
          });
    };
    WithModel(shared->model, services.models, handler, ask);
  };
  return ReadAndAnswer<TokenizeRequest>(std::move(body), &ParseTokenize, services.side_work, writer,
                                        answer);
}

std::shared_ptr<RequestHandler> AnswerDetokenize(std::string body, const TokenServices& services,
                                                 ResponseWriter& writer) {
  const auto answer = [services](const std::shared_ptr<DeferredHandler>& handler,
                                 DetokenizeRequest request) {
    const auto shared = std::make_shared<DetokenizeRequest>(std::move(request));
    const auto ask = [services, handler, request = shared](const ServedModel&) {
      services.backend.Detokenize(request->tokens,
                                  [services, handler](absl::StatusOr<std::string> text) {
                                    const size_t bytes = text.ok() ? text->size() : 0;
                                    RespondWith(services.side_work, handler, std::move(text), bytes,
                                                [](const std::string& prompt) {
                                                  return OrderedJson{{"prompt", prompt}};
                                                });
                                  });
    };
    WithModel(shared->model, services.models, handler, ask);
  };
  return ReadAndAnswer<DetokenizeRequest>(std::move(body), &ParseDetokenize, services.side_work,
                                          writer, answer);
}

}  // namespace lamina::gateway
