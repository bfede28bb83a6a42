// SPDX-License-Identifier: Apache-2.0
#include "gateway/token_endpoints.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"
#include "gateway/chat_messages.h"
#include "gateway/completion_request.h"
#include "gateway/deferred_handler.h"
#include "gateway/json_object.h"

namespace lamina::gateway {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct TokenizeRequest {
  std::string model;
  client::Prompt prompt;
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
    LAMINA_RETURN_IF_ERROR(
        body.Refuse("add_generation_prompt", {true}, "the assistant's turn is always opened"));
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
    return BadField("tokens", "missing_required_parameter", "'tokens' is missing");
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

}  // namespace

std::shared_ptr<RequestHandler> AnswerTokenize(const std::string& body, Backend& backend,
                                               ModelDirectory& models, ResponseWriter& writer) {
  const absl::StatusOr<TokenizeRequest> request = ParseTokenize(body);
  if (!request.ok()) {
    writer.Respond(ErrorResponse(request.status()));
    return nullptr;
  }
  const auto handler = std::make_shared<DeferredHandler>(writer);
  WithModel(
      request->model, models, handler,
      [&backend, handler, request = *request](const ServedModel& model) {
        const uint32_t tokens_max = model.info.sequence_tokens_max;
        const bool strings = request.with_strings;
        backend.Tokenize(
            request.prompt, request.add_special,
            [handler, tokens_max, strings](const absl::StatusOr<client::TokenizeResult>& result) {
              if (!result.ok()) {
                handler->Respond(ErrorResponse(result.status()));
                return;
              }
              handler->Respond({.body = Dump({{"count", result->tokens.size()},
                                              {"max_model_len", tokens_max},
                                              {"tokens", result->tokens},
                                              {"token_strs", strings ? OrderedJson(result->pieces)
                                                                     : OrderedJson(nullptr)}})});
            });
      });
  return handler;
}

std::shared_ptr<RequestHandler> AnswerDetokenize(const std::string& body, Backend& backend,
                                                 ModelDirectory& models, ResponseWriter& writer) {
  const absl::StatusOr<DetokenizeRequest> request = ParseDetokenize(body);
  if (!request.ok()) {
    writer.Respond(ErrorResponse(request.status()));
    return nullptr;
  }
  const auto handler = std::make_shared<DeferredHandler>(writer);
  WithModel(
      request->model, models, handler, [&backend, handler, request = *request](const ServedModel&) {
        backend.Detokenize(request.tokens, [handler](const absl::StatusOr<std::string>& text) {
          handler->Respond(text.ok() ? HttpResponse{.body = Dump({{"prompt", *text}})}
                                     : ErrorResponse(text.status()));
        });
      });
  return handler;
}

}  // namespace lamina::gateway
