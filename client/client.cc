// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/convert_internal.h"
#include "client/generation_internal.h"
#include "client/open_calls.h"
#include "client/scoring_internal.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "control/keepalive_service.h"
#include "control/reconnect_service.h"
#include "control/tls_service.h"
#include "grpcpp/grpcpp.h"
#include "lamina/v1/cluster.grpc.pb.h"
#include "lamina/v1/inference.grpc.pb.h"

namespace lamina::client {
namespace {

using internal::FromGrpc;
using internal::FromProto;

constexpr int kMessageBytesMax = 64 << 20;
// A coordinator that comes back is found within about a second.
constexpr int kReconnectMillisMax = 1000;

std::chrono::system_clock::time_point After(Nanos wait) {
  return std::chrono::system_clock::now() + std::chrono::nanoseconds(wait);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server, const TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  control::SetReconnect(arguments);
  control::SetKeepalive(control::Keepalive(), arguments);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisMax);
  return grpc::CreateCustomChannel(server, control::ChannelCredentials(tls), arguments);
}

// Explains why the channel is not ready, by a call that fails at once with the library's reason.
absl::Status ExplainFailure(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& server, const TlsFiles& tls) {
  LAMINA_RETURN_IF_ERROR(ExplainTls(server, tls));
  grpc::ClientContext context;
  context.set_deadline(After(Seconds(1)));
  v1::ListModelsResponse response;
  const grpc::Status status =
      v1::Inference::NewStub(channel)->ListModels(&context, v1::ListModelsRequest(), &response);
  if (absl::StrContains(status.error_message(), "refused") ||
      absl::StrContains(status.error_message(), "No such file")) {
    return absl::UnavailableError(
        absl::StrCat("server not running at ", server, "; start it with deploy/cluster.sh up"));
  }
  if (absl::StrContains(status.error_message(), "http1.x") ||
      absl::StrContains(status.error_message(), "HTTP/1")) {
    return absl::UnavailableError(
        absl::StrCat("what listens at ", server,
                     " speaks HTTP, as the gateway does; --server "
                     "takes the coordinator's address (coordinator.listen, port 7400 by default)"));
  }
  if (absl::StrContains(status.error_message(), "DNS resolution") ||
      absl::StrContains(status.error_message(), "C-ares") ||
      absl::StrContains(status.error_message(), "getaddrinfo")) {
    return absl::UnavailableError(
        absl::StrCat("the host of ", server, " is not known here; check --server HOST:PORT"));
  }
  return absl::UnavailableError(absl::StrCat("cannot reach the server at ", server, ": ",
                                             status.error_message(), "; check --server HOST:PORT"));
}

// Hands chunks from the library's threads to the thread that asked.
class ChunkQueue {
 public:
  void Push(const Chunk& chunk) {
    const absl::MutexLock lock(&mu_);
    chunks_.push_back(chunk);
  }
  void Finish(const absl::Status& status) {
    const absl::MutexLock lock(&mu_);
    status_ = status;
    done_ = true;
  }
  // Returns false at the end.
  bool Pop(Chunk& chunk) {
    const absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &ChunkQueue::HasNews));
    if (chunks_.empty()) {
      return false;
    }
    chunk = std::move(chunks_.front());
    chunks_.pop_front();
    return true;
  }
  absl::Status status() const {
    const absl::MutexLock lock(&mu_);
    return status_;
  }

 private:
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return done_ || !chunks_.empty(); }

  mutable absl::Mutex mu_;
  std::deque<Chunk> chunks_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

struct Client::Impl {
  Impl(const std::shared_ptr<grpc::Channel>& channel, const ConnectOptions& options)
      : call_deadline(options.call_deadline),
        waiting(options.on_wait),
        inference(v1::Inference::NewStub(channel)),
        cluster(v1::Cluster::NewStub(channel)) {}

  // One call with one answer.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(Stub& stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, Nanos deadline) {
    grpc::ClientContext context;
    context.set_deadline(After(deadline));
    Response response;
    const grpc::Status status = (stub.*method)(&context, request, &response);
    if (!status.ok()) {
      return FromGrpc(status);
    }
    return response;
  }

  const Nanos call_deadline;
  internal::WaitingAnswers waiting;
  const std::unique_ptr<v1::Inference::Stub> inference;
  const std::unique_ptr<v1::Cluster::Stub> cluster;

  const std::shared_ptr<OpenCalls> open_calls = std::make_shared<OpenCalls>();
};

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNotFinished:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() { impl_->open_calls->AwaitNone(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ConnectOptions& options) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(options.server, options.tls);
  const auto deadline = After(options.connect_deadline);
  for (;;) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) {
      return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(channel, options)));
    }
    // The first failure is final: a caller that wants to wait for a server calls again.
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      return ExplainFailure(channel, options.server, options.tls);
    }
    if (!channel->WaitForStateChange(state, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("no answer from ", options.server, " within ",
                                                      ToSeconds(options.connect_deadline),
                                                      " s; check --server HOST:PORT"));
    }
  }
}

void Client::StartGenerate(const GenerateOptions& options, ChunkFunction on_chunk,
                           DoneFunction on_done, const Cancellation& cancellation) {
  impl_->open_calls->Add(1);
  const auto finish = [open_calls = impl_->open_calls,
                       on_done = std::move(on_done)](const absl::Status& status) {
    on_done(status);
    open_calls->Add(-1);
  };
  internal::StartGeneration(*impl_->inference, impl_->waiting, options, std::move(on_chunk), finish,
                            cancellation);
}

absl::Status Client::Generate(const GenerateOptions& options, const ChunkFunction& on_chunk,
                              const Cancellation& cancellation) {
  const auto queue = std::make_shared<ChunkQueue>();
  StartGenerate(
      options, [queue](const Chunk& chunk) { queue->Push(chunk); },
      [queue](const absl::Status& status) { queue->Finish(status); }, cancellation);
  Chunk chunk;
  while (queue->Pop(chunk)) {
    on_chunk(chunk);
  }
  return queue->status();
}

absl::StatusOr<ScoreResult> Client::Score(const Prompt& prompt, const ScoreProgress& on_progress,
                                          const ScoreOptions& options) {
  return internal::RunScore(*impl_->inference, impl_->waiting, internal::ToProto(prompt, options),
                            on_progress);
}

absl::StatusOr<TokenizeResult> Client::Tokenize(const Prompt& prompt, bool add_special) {
  v1::TokenizeRequest request;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    request.set_text(*text);
  } else {
    const auto* messages = std::get_if<std::vector<ChatMessage>>(&prompt);
    LAMINA_CHECK(messages != nullptr);
    internal::FillChat(*messages, ChatOptions(), *request.mutable_chat());
  }
  request.set_add_special(add_special);
  LAMINA_ASSIGN_OR_RETURN(const v1::TokenizeResponse response,
                          impl_->Call(*impl_->inference, &v1::Inference::Stub::Tokenize, request,
                                      impl_->call_deadline));
  return TokenizeResult{.tokens = {response.tokens().begin(), response.tokens().end()},
                        .pieces = {response.pieces().begin(), response.pieces().end()}};
}

absl::StatusOr<std::string> Client::Detokenize(const std::vector<TokenId>& tokens,
                                               bool skip_special) {
  v1::DetokenizeRequest request;
  request.mutable_tokens()->Add(tokens.begin(), tokens.end());
  request.set_skip_special(skip_special);
  LAMINA_ASSIGN_OR_RETURN(const v1::DetokenizeResponse response,
                          impl_->Call(*impl_->inference, &v1::Inference::Stub::Detokenize, request,
                                      impl_->call_deadline));
  return response.text();
}

absl::Status Client::Cancel(const std::string& request_id) {
  v1::CancelRequest request;
  request.set_request_id(request_id);
  return impl_->Call(*impl_->inference, &v1::Inference::Stub::Cancel, request, impl_->call_deadline)
      .status();
}

absl::StatusOr<std::vector<ModelInfo>> Client::ListModels() {
  LAMINA_ASSIGN_OR_RETURN(const v1::ListModelsResponse response,
                          impl_->Call(*impl_->inference, &v1::Inference::Stub::ListModels,
                                      v1::ListModelsRequest(), impl_->call_deadline));
  std::vector<ModelInfo> models;
  for (const v1::Model& model : response.models()) {
    models.push_back(FromProto(model));
  }
  return models;
}

absl::StatusOr<ClusterStatus> Client::Status() {
  LAMINA_ASSIGN_OR_RETURN(const v1::GetStatusResponse response,
                          impl_->Call(*impl_->cluster, &v1::Cluster::Stub::GetStatus,
                                      v1::GetStatusRequest(), impl_->call_deadline));
  return FromProto(response);
}

}  // namespace lamina::client
