// SPDX-License-Identifier: Apache-2.0
#include "gateway/router.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log_event.h"
#include "common/random_hex.h"
#include "common/status_macros.h"
#include "common/trace_context.h"
#include "common/version.h"
#include "gateway/api_error.h"
#include "gateway/apis/answer_format.h"
#include "gateway/completion_handler.h"
#include "gateway/deferred_handler.h"
#include "gateway/page_endpoints.h"
#include "gateway/request_form.h"
#include "gateway/static_files.h"
#include "gateway/token_endpoints.h"

namespace lamina::gateway {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kModelPrefix[] = "/v1/models/";
constexpr char kJsonType[] = "application/json";
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

// "%2F" and the like. Broken escapes stay as they are.
std::string PercentDecode(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2]) && absl::SimpleHexAtoi(text.substr(i + 1, 2), &value)) {
      out.push_back(static_cast<char>(value));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson ModelJson(const std::string& name, const ServedModel& model, int64_t created) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "lamina"},
          {"root", model.info.id},
          {"parent", nullptr},
          {"max_model_len", model.info.sequence_tokens_max}};
}

// What makes an answer of the policy other than that of whole attention. The coordinator refuses
// one that it does not have.
std::string LossyWordOf(const client::ModelInfo& model, const client::GenerateOptions& options) {
  if (options.policy.empty() && options.kv.empty()) {
    return model.lossy;
  }
  const std::string& policy = options.policy.empty() ? model.policy : options.policy;
  const auto named =
      std::find_if(model.policies.begin(), model.policies.end(), [&](const client::Policy& known) {
        return known.name == policy &&
               (options.kv.empty() || known.kv.empty() || known.kv == options.kv);
      });
  return named == model.policies.end() ? "" : named->lossy;
}

constexpr size_t kAskedHeadersMax = 1024;
constexpr char kUsualHeaders[] =
    "authorization, x-api-key, content-type, x-request-id, x-lamina-policy, x-lamina-kv, "
    "traceparent";

// The headers that a page of another origin may send: all that it asks for, since SDKs have many of
// their own. What is no list of names is not repeated.
std::string AllowedHeaders(const std::string& asked) {
  constexpr absl::string_view kNameSigns = "!#$%&'*+-.^_`|~";
  const bool names = std::all_of(asked.begin(), asked.end(), [&](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains(kNameSigns, c) ||
           c == ',' || c == ' ';
  });
  return asked.empty() || asked.size() > kAskedHeadersMax || !names ? kUsualHeaders : asked;
}

constexpr char kMessages[] = "/v1/messages";
constexpr char kCountTokens[] = "/v1/messages/count_tokens";
constexpr char kResponses[] = "/v1/responses";

absl::StatusOr<CompletionRequest> ReadBody(const std::string& path, const std::string& body,
                                           const RequestLimits& limits) {
  LAMINA_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  if (path == kMessages || path == kCountTokens || path == kResponses) {
    LAMINA_ASSIGN_OR_RETURN(TranslatedRequest translated,
                            path == kResponses ? TranslateResponses(json)
                                               : TranslateMessages(json, path == kCountTokens));
    absl::StatusOr<CompletionRequest> request = ParseChatCompletion(translated.chat, limits);
    if (!request.ok()) {
      return translated.names.InClientsWords(request.status());
    }
    request->format = std::move(translated.format);
    request->names = std::move(translated.names);
    return request;
  }
  return absl::EndsWith(path, "chat/completions") ? ParseChatCompletion(json, limits)
                                                  : ParseCompletion(json, limits);
}

// An error in the shape of the path's API.
HttpResponse ErrorFor(const std::string& path, const absl::Status& status) {
  HttpResponse response = ErrorResponse(status);
  if (absl::StartsWith(path, kMessages)) {
    response.body = MessagesErrorBody(ToApiError(status));
  }
  return response;
}

// A header that names something of the cluster. The coordinator judges the name; bytes that are no
// text would not get there.
absl::Status CheckName(absl::string_view header, const std::string& name) {
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); })
             ? absl::OkStatus()
             : BadField(header, "invalid_value",
                        absl::StrCat("the header '", header,
                                     "' has bytes that are no printable ASCII; it names what the "
                                     "cluster prepares, see lamina status"));
}

std::shared_ptr<RequestHandler> Answer(ResponseWriter& writer, HttpResponse response) {
  writer.Respond(std::move(response));
  return nullptr;
}

}  // namespace

Router::Router(Backend& backend, SideWork& side_work, RouterOptions options)
    : backend_(backend),
      side_work_(side_work),
      options_(std::move(options)),
      models_(backend, options_.model_names, options_.shape),
      started_(absl::ToUnixSeconds(absl::Now())),
      routes_({{"/", {"GET", &Router::Page, true, true}},
               {"/markdown.js", {"GET", &Router::Page, true, true}},
               {"/page.css", {"GET", &Router::Page, true, true}},
               {"/page.js", {"GET", &Router::Page, true, true}},
               {"/health", {"GET", &Router::Health, true, true}},
               {"/version", {"GET", &Router::Version, true, true}},
               {"/openapi.json", {"GET", &Router::OpenApi, true, true}},
               {"/metrics", {"GET", &Router::Metrics, false, true}},
               {"/v1/lamina/status", {"GET", &Router::Status, false, true}},
               {"/v1/models", {"GET", &Router::Models}},
               {kModelPrefix, {"GET", &Router::Models}},
               {"/tokenize", {"POST", &Router::Tokenize}},
               {"/detokenize", {"POST", &Router::Detokenize}},
               {"/ping", {"GET", &Router::Health, true, true}},
               {"/tokenizer_info", {"GET", &Router::TokenizerInfo}},
               {"/v1/embeddings", {"POST", &Router::Embeddings}},
               {kResponses, {"POST", &Router::Completion}},
               {kMessages, {"POST", &Router::Completion}},
               {kCountTokens, {"POST", &Router::Completion}},
               {"/v1/completions", {"POST", &Router::Completion}},
               {"/v1/chat/completions", {"POST", &Router::Completion}}}) {}

const Router::Route* Router::Find(const std::string& path) const {
  const bool is_model = absl::StartsWith(path, kModelPrefix) && path != kModelPrefix;
  const auto found = routes_.find(is_model ? kModelPrefix : path);
  return found == routes_.end() || (path == kModelPrefix) ? nullptr : &found->second;
}

std::optional<HttpResponse> Router::Refuse(const HttpRequest& head) {
  const Route* route = Find(head.path);
  if (route == nullptr) {
    return ErrorFor(
        head.path,
        HttpError(404, "not_found", absl::StrCat("no such URL: ", head.method, " ", head.path)));
  }
  const bool preflight = head.method == "OPTIONS" && !options_.cors_origins.empty();
  const bool matches =
      head.method == route->method || (head.method == "HEAD" && route->method == "GET");
  if (preflight) {
    return HttpResponse{
        .status = 204,
        .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                    {"Access-Control-Allow-Headers", AllowedHeaders(head.asked_headers)},
                    {"Access-Control-Max-Age", "600"}}};
  }
  if (!matches) {
    HttpResponse response = ErrorFor(
        head.path,
        HttpError(405, "method_not_supported",
                  absl::StrCat(head.path, " takes ", route->method, ", not ", head.method)));
    response.headers.emplace_back("Allow", route->method == "GET" ? "GET, HEAD" : route->method);
    return response;
  }
  if (!route->open && !options_.keys.Allows(head.authorization)) {
    HttpResponse response =
        ErrorFor(head.path,
                 HttpError(401, "invalid_api_key",
                           head.authorization.empty()
                               ? "an API key is needed: send the header 'Authorization: Bearer KEY'"
                               : "the API key is not one of this server's"));
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (draining_ && !route->always) {
    return ErrorFor(head.path, absl::UnavailableError("the gateway is stopping; try another"));
  }
  if (route->method == "POST" && !absl::StartsWithIgnoreCase(head.content_type, kJsonType)) {
    return ErrorFor(head.path, HttpError(415, "unsupported_media_type",
                                         "send the header 'Content-Type: application/json'"));
  }
  return std::nullopt;
}

HttpResponse Router::ErrorOf(const std::string& path, const absl::Status& status) const {
  return ErrorFor(path, status);
}

std::vector<std::pair<std::string, std::string>> Router::HeadersFor(HttpRequest& head) {
  if (!IsRequestId(head.request_id)) {
    head.request_id = absl::StrCat("req-", RandomHex(24));
  }
  std::vector<std::pair<std::string, std::string>> headers = {{"x-request-id", head.request_id}};
  for (const std::string& origin : options_.cors_origins) {
    if (!head.origin.empty() && (origin == "*" || origin == head.origin)) {
      headers.emplace_back("Access-Control-Allow-Origin", origin);
      headers.emplace_back("Access-Control-Expose-Headers",
                           "x-request-id, x-lamina-lossy, retry-after");
      headers.emplace_back("Vary", "Origin");
      break;
    }
  }
  return headers;
}

std::string Router::RouteOf(const std::string& path) const {
  const Route* route = Find(path);
  return route == nullptr                       ? "other"
         : absl::StartsWith(path, kModelPrefix) ? absl::StrCat(kModelPrefix, "{model}")
                                                : path;
}

std::shared_ptr<RequestHandler> Router::Handle(HttpRequest request, ResponseWriter& writer) {
  return (this->*Find(request.path)->endpoint)(request, writer);
}

std::shared_ptr<RequestHandler> Router::Health(HttpRequest& request, ResponseWriter& writer) {
  if (request.query == "live") {  // Asks about this process alone.
    return Answer(writer, {.body = Dump({{"state", draining_ ? "stopping" : "live"}})});
  }
  if (draining_) {
    return Answer(writer, ErrorResponse(absl::UnavailableError("the gateway is stopping")));
  }
  const auto handler = std::make_shared<DeferredHandler>(writer);
  backend_.GetStatus([handler](const absl::StatusOr<client::ClusterStatus>& status) {
    if (!status.ok()) {
      handler->Respond(ErrorResponse(status.status()));
    } else if (!absl::StartsWith(status->state, "serving")) {
      handler->Respond(
          ErrorResponse(absl::UnavailableError(absl::StrCat("the cluster is ", status->state))));
    } else {
      handler->Respond({.body = Dump({{"state", status->state}})});
    }
  });
  return handler;
}

std::shared_ptr<RequestHandler> Router::Version(HttpRequest&, ResponseWriter& writer) {
  return Answer(writer, {.body = Dump({{"version", kVersion}})});
}

// With the model's own bound of token ids, once it is known.
std::shared_ptr<RequestHandler> Router::OpenApi(HttpRequest&, ResponseWriter& writer) {
  const auto handler = std::make_shared<DeferredHandler>(writer);
  models_.Get([handler](const absl::StatusOr<ServedModel>& model) {
    std::string body(StaticFile("openapi.json"));
    if (model.ok() && model->info.vocabulary > 0) {
      OrderedJson description = OrderedJson::parse(body, nullptr, /*allow_exceptions=*/false);
      description["components"]["schemas"]["TokenId"]["maximum"] = model->info.vocabulary - 1;
      body = Dump(description);
    }
    handler->Respond({.body = std::move(body)});
  });
  return handler;
}

// The gateway's own, and behind them the coordinator's of requests, where it answers.
std::shared_ptr<RequestHandler> Router::Metrics(HttpRequest&, ResponseWriter& writer) {
  const auto handler = std::make_shared<DeferredHandler>(writer);
  backend_.GetRequestMetrics([this, handler](const absl::StatusOr<std::string>& text) {
    handler->Respond({.content_type = kMetricsType,
                      .body = absl::StrCat(metrics_.Text(), text.ok() ? *text : "")});
  });
  return handler;
}

std::shared_ptr<RequestHandler> Router::Page(HttpRequest& request, ResponseWriter& writer) {
  return Answer(writer, PageFile(request.path));
}

std::shared_ptr<RequestHandler> Router::Status(HttpRequest&, ResponseWriter& writer) {
  return AnswerStatus(backend_, writer);
}

std::shared_ptr<RequestHandler> Router::Models(HttpRequest& request, ResponseWriter& writer) {
  const auto handler = std::make_shared<DeferredHandler>(writer);
  const bool one = absl::StartsWith(request.path, kModelPrefix);
  const std::string wanted =
      one ? PercentDecode(absl::string_view(request.path).substr(sizeof(kModelPrefix) - 1)) : "";
  models_.Get([handler, one, wanted, created = started_](const absl::StatusOr<ServedModel>& model) {
    if (!model.ok()) {
      handler->Respond(ErrorResponse(model.status()));
    } else if (one && !model->Has(wanted)) {
      handler->Respond(ErrorResponse(UnknownModel(wanted, absl::StrJoin(model->names, ", "))));
    } else if (one) {
      handler->Respond({.body = Dump(ModelJson(wanted, *model, created))});
    } else {
      OrderedJson data = OrderedJson::array();
      for (const std::string& name : model->names) {
        data.push_back(ModelJson(name, *model, created));
      }
      handler->Respond({.body = Dump({{"object", "list"}, {"data", std::move(data)}})});
    }
  });
  return handler;
}

std::shared_ptr<RequestHandler> Router::Tokenize(HttpRequest& request, ResponseWriter& writer) {
  return AnswerTokenize(std::move(request.body), {backend_, models_, side_work_}, writer);
}

std::shared_ptr<RequestHandler> Router::Detokenize(HttpRequest& request, ResponseWriter& writer) {
  return AnswerDetokenize(std::move(request.body), {backend_, models_, side_work_}, writer);
}

std::shared_ptr<RequestHandler> Router::Completion(HttpRequest& request, ResponseWriter& writer) {
  absl::Status named = CheckName("x-lamina-policy", request.policy);
  named.Update(CheckName("x-lamina-kv", request.kv));
  if (!named.ok()) {
    return Answer(writer, ErrorFor(request.path, named));
  }
  const size_t bytes = request.body.size();
  const auto handler = std::make_shared<DeferredHandler>(writer);
  const absl::Status begun = side_work_.Do(
      bytes,
      [path = request.path, limits = options_.limits, body = std::move(request.body)] {
        return ReadBody(path, body, limits);
      },
      [this, handler, bytes, path = request.path, followed_id = request.request_id,
       policy = request.policy, kv = request.kv, trace_parent = request.trace_parent,
       trace_state = request.trace_state, salt = options_.keys.SaltOf(request.authorization)](
          absl::StatusOr<CompletionRequest> parsed) {
        if (!parsed.ok()) {
          handler->Respond(ErrorFor(path, parsed.status()));
          return;
        }
        parsed->options.followed_id = followed_id;
        parsed->options.policy = policy;
        parsed->options.kv = kv;
        parsed->options.trace_parent = trace_parent;
        parsed->options.trace_state = trace_state;
        parsed->options.cache_salt = absl::StrCat(salt, parsed->options.cache_salt);
        Complete(std::make_shared<CompletionRequest>(*std::move(parsed)), bytes, path, handler);
      });
  if (!begun.ok()) {
    handler->Respond(ErrorFor(request.path, begun));
  }
  return handler;
}

// `request` is shared since functions are copied, and it may be large; it is used up. What was
// large to read takes long to fit to the model too: its schemas and arguments of the template are
// read there.
void Router::Complete(std::shared_ptr<CompletionRequest> request, size_t bytes,
                      const std::string& path, const std::shared_ptr<DeferredHandler>& handler) {
  models_.Get([this, handler, request, bytes, path](const absl::StatusOr<ServedModel>& model) {
    if (!model.ok()) {
      handler->Respond(ErrorFor(path, model.status()));
      return;
    }
    if (!model->Has(request->model)) {
      handler->Respond(
          ErrorFor(path, UnknownModel(request->model, absl::StrJoin(model->names, ", "))));
      return;
    }
    const auto served = std::make_shared<const ServedModel>(*model);
    const absl::Status begun = side_work_.Do(
        bytes, [served, request] { return FitToModel(served->info, served->shape, *request); },
        [this, handler, served, request, path](const absl::Status& fits) {
          if (!fits.ok()) {
            handler->Respond(ErrorFor(path, request->names.InClientsWords(fits)));
          } else if (path == kCountTokens) {
            CountTokens(*request, handler);
          } else {
            Generate(std::move(*request), served->info, path, handler);
          }
        });
    if (!begun.ok()) {
      handler->Respond(ErrorFor(path, begun));
    }
  });
}

void Router::Generate(CompletionRequest request, const client::ModelInfo& model,
                      const std::string& path, const std::shared_ptr<DeferredHandler>& handler) {
  const bool chat = request.chat;
  const CompletionHead head = {.chat = chat,
                               .id = absl::StrCat(chat ? "chatcmpl-" : "cmpl-", RandomHex(32)),
                               .model = request.model,
                               .created = absl::ToUnixSeconds(absl::Now()),
                               .lossy = LossyWordOf(model, request.options)};
  const auto log = [path, request_id = request.options.followed_id, id = head.id,
                    began = absl::Now()](const CompletionHandler::Report& report) {
    LogEvent(LogLevel::kInfo, "answered",
             {{"path", path},
              {"status", absl::StatusCodeToString(report.status.code())},
              {"request_id", request_id},
              {"id", id},
              {"prompt_tokens", report.tokens.prompt},
              {"completion_tokens", report.tokens.completion},
              {"ms", absl::ToInt64Milliseconds(absl::Now() - began)}});
  };
  handler->Continue([&](ResponseWriter& to) {
    const std::shared_ptr<AnswerFormat> format = request.format;
    auto completion = std::make_shared<CompletionHandler>(
        std::move(request), head, format,
        CompletionHandler::Services{
            .backend = backend_, .side_work = side_work_, .metrics = metrics_},
        to, log);
    completion->Start();
    return completion;
  });
}

void Router::CountTokens(const CompletionRequest& request,
                         const std::shared_ptr<DeferredHandler>& handler) {
  backend_.Tokenize(
      request.prompts[0], request.options.chat, /*add_special=*/false,
      [handler](const absl::StatusOr<client::TokenizeResult>& result) {
        handler->Respond(result.ok()
                             ? HttpResponse{.body = Dump({{"input_tokens", result->tokens.size()}})}
                             : ErrorFor(kCountTokens, result.status()));
      });
}

// As a tokenizer_config.json has it.
std::shared_ptr<RequestHandler> Router::TokenizerInfo(HttpRequest&, ResponseWriter& writer) {
  const auto handler = std::make_shared<DeferredHandler>(writer);
  models_.Get([handler](const absl::StatusOr<ServedModel>& model) {
    if (!model.ok()) {
      handler->Respond(ErrorResponse(model.status()));
      return;
    }
    const client::ModelInfo& info = model->info;
    const auto or_null = [](const std::string& text) {
      return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
    };
    handler->Respond({.body = Dump({{"bos_token", or_null(info.bos_token)},
                                    {"eos_token", or_null(info.eos_token)},
                                    {"chat_template", or_null(info.chat_template)},
                                    {"model_max_length", info.sequence_tokens_max},
                                    {"vocab_size", info.vocabulary}})});
  });
  return handler;
}

std::shared_ptr<RequestHandler> Router::Embeddings(HttpRequest&, ResponseWriter& writer) {
  return Answer(writer, ErrorResponse(HttpError(400, "unsupported_endpoint",
                                                "there are no embeddings: this server's model "
                                                "continues text; use a server of embeddings")));
}

}  // namespace lamina::gateway
