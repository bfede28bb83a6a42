// SPDX-License-Identifier: Apache-2.0
#include "gateway/backend_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "client/convert_internal.h"
#include "client/open_calls.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/trace_context.h"
#include "control/reconnect_service.h"
#include "control/tls_service.h"
#include "gateway/resuming_generation.h"
#include "gateway/resuming_score.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"
#include "lamina/v1/cluster.grpc.pb.h"
#include "lamina/v1/inference.grpc.pb.h"

namespace lamina::gateway {
namespace {

using client::internal::FromGrpc;
using client::internal::FromProto;

constexpr int kMessageBytesMax = 64 << 20;
constexpr int kReconnectMillisMax = 1000;
constexpr auto kCallSeconds = std::chrono::seconds(30);
// Prometheus gives up a scrape after 10 s by default.
constexpr auto kMetricsSeconds = std::chrono::seconds(3);

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& server, const TlsFiles& tls,
                                           const control::Keepalive& keepalive) {
  grpc::ChannelArguments arguments;
  control::SetReconnect(arguments);
  control::SetKeepalive(keepalive, arguments);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisMax);
  return grpc::CreateCustomChannel(server, control::ChannelCredentials(tls), arguments);
}

// How the library begins what it says itself of a server that is not there, or has gone. The
// coordinator's own words may have these anywhere else: it says why a node is not reachable.
constexpr absl::string_view kLibrarysWords[] = {"failed to connect to all addresses",
                                                "connections to all backends failing",
                                                "no reachable subchannels",
                                                "empty address list",
                                                "DNS resolution failed",
                                                "Failed to connect to remote host",
                                                "Connection reset by peer",
                                                "Connection refused",
                                                "Connection timed out",
                                                "Broken pipe",
                                                "Socket closed",
                                                "Transport closed",
                                                "Endpoint closing",
                                                "Endpoint read failed",
                                                "GOAWAY",
                                                "recvmsg",
                                                "sendmsg"};

// What the library says of a coordinator that is not there is of no use to an HTTP client.
absl::Status Explain(const grpc::Status& status) {
  absl::Status result = FromGrpc(status);
  const auto begins = [&result](absl::string_view words) {
    return absl::StartsWith(result.message(), words);
  };
  if (absl::IsUnavailable(result) &&
      std::any_of(std::begin(kLibrarysWords), std::end(kLibrarysWords), begins)) {
    return absl::UnavailableError("the coordinator cannot be reached; try again later");
  }
  return result;
}

// How a call with a stream has ended.
StreamEnd EndOf(const grpc::ClientContext& context, const grpc::Status& status,
                std::string journaled_id) {
  // A coordinator that ends a stream says which request it was of.
  const bool broke_off = status.error_code() == grpc::StatusCode::UNAVAILABLE &&
                         context.GetServerTrailingMetadata().count(kRequestIdHeader) == 0;
  return {
      .status = Explain(status), .broke_off = broke_off, .journaled_id = std::move(journaled_id)};
}

// By which one may attach to the request; empty: one may not.
std::string JournaledId(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerInitialMetadata();
  const auto id = metadata.find(kJournaledHeader);
  return id == metadata.end() ? std::string() : std::string(id->second.data(), id->second.size());
}

// One call with a stream of an answer. The hold keeps it alive at the library while no read is
// under way; it is given back when the stream has ended, or with Cancel().
//
// Threading: functions On...() in threads of the library, all else in the gateway's.
template <typename Request>
class GrpcStream final : public grpc::ClientReadReactor<v1::GenerateResponse>,
                         public Generation,
                         public std::enable_shared_from_this<GrpcStream<Request>> {
 public:
  using Method = void (v1::Inference::Stub::async::*)(
      grpc::ClientContext*, const Request*, grpc::ClientReadReactor<v1::GenerateResponse>*);

  GrpcStream(Request request, client::ChunkFunction on_chunk, EndFunction on_end,
             const PostFunction& post, std::shared_ptr<client::OpenCalls> open_calls)
      : request_(std::move(request)),
        on_chunk_(std::move(on_chunk)),
        on_end_(std::move(on_end)),
        post_(post),
        open_calls_(std::move(open_calls)) {}

  grpc::ClientContext& context() { return context_; }

  void Start(v1::Inference::Stub& stub, Method method) {
    self_ = this->shared_from_this();
    open_calls_->Add(1);
    (stub.async()->*method)(&context_, &request_, this);
    this->AddHold();
    this->StartCall();
  }

  void Next() override {
    LAMINA_CHECK(!reading_);
    reading_ = true;
    this->StartRead(&response_);
  }

  void Cancel() override {
    if (cancelled_) {
      return;
    }
    cancelled_ = true;
    on_chunk_ = nullptr;
    on_end_ = nullptr;
    context_.TryCancel();
    if (!reading_) {
      LetGo();
    }
  }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) {
      journaled_id_ = JournaledId(context_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      this->RemoveHold();
      return;
    }
    // `reading_` stays true until the chunk is delivered, so that nobody else lets go meanwhile.
    post_([self = self_, chunk = FromProto(response_)] { self->Deliver(chunk); });
  }

  void Deliver(const client::Chunk& chunk) {
    reading_ = false;
    if (cancelled_) {
      LetGo();
    } else {
      on_chunk_(chunk);
    }
  }

  void LetGo() {
    reading_ = true;
    this->RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<client::OpenCalls> open_calls = open_calls_;
    // The last owner is the gateway's thread: the context's channel must not go in the library's.
    post_([self = std::exchange(self_, nullptr), end = EndOf(context_, status, journaled_id_)] {
      if (const EndFunction on_end = std::exchange(self->on_end_, nullptr); on_end != nullptr) {
        on_end(end);
      }
    });
    open_calls->Add(-1);
  }

  const Request request_;
  client::ChunkFunction on_chunk_;
  EndFunction on_end_;
  const PostFunction& post_;
  const std::shared_ptr<client::OpenCalls> open_calls_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  std::string journaled_id_;
  bool reading_ = false;
  bool cancelled_ = false;
  std::shared_ptr<GrpcStream> self_;  // Until OnDone.
};

// One call with a stream that ends with the scores of a prompt.
//
// Threading: functions On...() in threads of the library, all else in the gateway's.
template <typename Request>
class GrpcScoreStream final : public grpc::ClientReadReactor<v1::ScoreUpdate>,
                              public std::enable_shared_from_this<GrpcScoreStream<Request>> {
 public:
  using Method = void (v1::Inference::Stub::async::*)(grpc::ClientContext*, const Request*,
                                                      grpc::ClientReadReactor<v1::ScoreUpdate>*);

  GrpcScoreStream(Request request, Nanos wait_max, ScoreEndFunction on_end,
                  const PostFunction& post, std::shared_ptr<client::OpenCalls> open_calls)
      : request_(std::move(request)),
        on_end_(std::move(on_end)),
        post_(post),
        open_calls_(std::move(open_calls)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(wait_max));
  }

  void Start(v1::Inference::Stub& stub, Method method) {
    self_ = this->shared_from_this();
    open_calls_->Add(1);
    (stub.async()->*method)(&context_, &request_, this);
    this->StartRead(&update_);
    this->StartCall();
  }

  void Cancel() {
    on_end_ = nullptr;
    context_.TryCancel();
  }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) {
      end_.stream.journaled_id = JournaledId(context_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      return;
    }
    end_.went_on = true;
    if (update_.has_result()) {
      end_.result = FromProto(update_.result());
    }
    this->StartRead(&update_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<client::OpenCalls> open_calls = open_calls_;
    end_.stream = EndOf(context_, status, std::move(end_.stream.journaled_id));
    v1::ScoreUpdate().Swap(&update_);  // A large one is freed here.
    // The last owner is the gateway's thread: the context's channel must not go in the library's.
    post_([self = std::exchange(self_, nullptr)] {
      if (const ScoreEndFunction on_end = std::exchange(self->on_end_, nullptr);
          on_end != nullptr) {
        on_end(std::move(self->end_));
      }
    });
    open_calls->Add(-1);
  }

  const Request request_;
  ScoreEndFunction on_end_;  // The gateway's thread; null once called, or cancelled.
  const PostFunction& post_;
  const std::shared_ptr<client::OpenCalls> open_calls_;
  grpc::ClientContext context_;
  v1::ScoreUpdate update_;
  ScoreEnd end_;
  std::shared_ptr<GrpcScoreStream> self_;  // Until OnDone.
};

template <typename Request, typename Response>
struct UnaryCall {
  grpc::ClientContext context;
  Request request;
  Response response;
};

class GrpcBackend final : public Backend, private AnswerStreams, private ScoreStreams {
 public:
  GrpcBackend(const std::string& server, PostFunction post, const TlsFiles& tls,
              const control::Keepalive& keepalive)
      : post_(std::move(post)),
        channel_(MakeChannel(server, tls, keepalive)),
        inference_(v1::Inference::NewStub(channel_)),
        cluster_(v1::Cluster::NewStub(channel_)) {}
  ~GrpcBackend() override { open_calls_->AwaitNone(); }
  GrpcBackend(const GrpcBackend&) = delete;
  GrpcBackend& operator=(const GrpcBackend&) = delete;

  std::shared_ptr<Generation> Generate(const client::GenerateOptions& options,
                                       client::ChunkFunction on_chunk,
                                       client::DoneFunction on_done) override {
    AnswerStreams& streams = *this;
    auto generation = std::make_shared<ResumingGeneration>(
        streams, RealClock(), options.n.value_or(1), std::move(on_chunk), std::move(on_done));
    generation->Start(options);
    return generation;
  }

  CancelFunction Score(const client::Prompt& prompt, const client::ScoreOptions& options,
                       AnswerFunction<client::ScoreResult> done) override {
    ScoreStreams& streams = *this;
    const auto score = std::make_shared<ResumingScore>(streams, RealClock(), std::move(done));
    score->Start(prompt, options);
    // Its stream keeps it.
    return [listens = std::weak_ptr<ResumingScore>(score)] {
      if (const std::shared_ptr<ResumingScore> alive = listens.lock(); alive != nullptr) {
        alive->Cancel();
      }
    };
  }

  void Tokenize(const client::Prompt& prompt, const client::ChatOptions& chat, bool add_special,
                AnswerFunction<client::TokenizeResult> done) override {
    v1::TokenizeRequest request;
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      request.set_text(*text);
    } else {
      const auto* messages = std::get_if<std::vector<client::ChatMessage>>(&prompt);
      LAMINA_CHECK(messages != nullptr);
      client::internal::FillChat(*messages, chat, *request.mutable_chat());
    }
    request.set_add_special(add_special);
    Call<v1::TokenizeResponse>(
        *inference_->async(), &v1::Inference::Stub::async::Tokenize, request, kCallSeconds,
        std::move(done), [](const v1::TokenizeResponse& response) {
          return client::TokenizeResult{
              .tokens = {response.tokens().begin(), response.tokens().end()},
              .pieces = {response.pieces().begin(), response.pieces().end()}};
        });
  }

  void Detokenize(const std::vector<TokenId>& tokens, AnswerFunction<std::string> done) override {
    v1::DetokenizeRequest request;
    request.mutable_tokens()->Add(tokens.begin(), tokens.end());
    Call<v1::DetokenizeResponse>(
        *inference_->async(), &v1::Inference::Stub::async::Detokenize, request, kCallSeconds,
        std::move(done), [](const v1::DetokenizeResponse& response) { return response.text(); });
  }

  void ListModels(AnswerFunction<std::vector<client::ModelInfo>> done) override {
    Call<v1::ListModelsResponse>(*inference_->async(), &v1::Inference::Stub::async::ListModels,
                                 v1::ListModelsRequest(), kCallSeconds, std::move(done),
                                 [](const v1::ListModelsResponse& response) {
                                   std::vector<client::ModelInfo> models;
                                   for (const v1::Model& model : response.models()) {
                                     models.push_back(FromProto(model));
                                   }
                                   return models;
                                 });
  }

  void GetStatus(AnswerFunction<client::ClusterStatus> done) override {
    Call<v1::GetStatusResponse>(
        *cluster_->async(), &v1::Cluster::Stub::async::GetStatus, v1::GetStatusRequest(),
        kCallSeconds, std::move(done),
        [](const v1::GetStatusResponse& response) { return FromProto(response); });
  }

  void GetRequestMetrics(AnswerFunction<std::string> done) override {
    Call<v1::GetRequestMetricsResponse>(
        *cluster_->async(), &v1::Cluster::Stub::async::GetRequestMetrics,
        v1::GetRequestMetricsRequest(), kMetricsSeconds, std::move(done),
        [](const v1::GetRequestMetricsResponse& response) { return response.text(); });
  }

 private:
  std::shared_ptr<Generation> Begin(const client::GenerateOptions& options,
                                    client::ChunkFunction on_chunk, EndFunction on_end) override {
    auto call = std::make_shared<GrpcStream<v1::GenerateRequest>>(
        client::internal::ToProto(options), std::move(on_chunk), std::move(on_end), post_,
        open_calls_);
    client::internal::FillMetadata(options, call->context());
    call->Start(*inference_, &v1::Inference::Stub::async::Generate);
    return call;
  }

  std::shared_ptr<Generation> Attach(const AnswerPlace& place, client::ChunkFunction on_chunk,
                                     EndFunction on_end) override {
    auto call = std::make_shared<GrpcStream<v1::AttachRequest>>(
        client::internal::ToProto(place), std::move(on_chunk), std::move(on_end), post_,
        open_calls_);
    call->Start(*inference_, &v1::Inference::Stub::async::Attach);
    return call;
  }

  CancelFunction BeginScore(const client::Prompt& prompt, const client::ScoreOptions& options,
                            Nanos wait_max, ScoreEndFunction on_end) override {
    return StartScore(client::internal::ToProto(prompt, options),
                      &v1::Inference::Stub::async::ScoreStream, wait_max, std::move(on_end));
  }

  CancelFunction AttachScore(const AnswerPlace& place, Nanos wait_max,
                             ScoreEndFunction on_end) override {
    return StartScore(client::internal::ToProto(place), &v1::Inference::Stub::async::AttachScore,
                      wait_max, std::move(on_end));
  }

  template <typename Request>
  CancelFunction StartScore(Request request, typename GrpcScoreStream<Request>::Method method,
                            Nanos wait_max, ScoreEndFunction on_end) {
    auto call = std::make_shared<GrpcScoreStream<Request>>(std::move(request), wait_max,
                                                           std::move(on_end), post_, open_calls_);
    call->Start(*inference_, method);
    return [call] { call->Cancel(); };
  }

  void After(Nanos wait, std::function<void()> work) override {
    struct Waiting {
      std::function<void()> work;
      grpc::Alarm alarm;
    };
    // An alarm keeps what it calls, and so must not be kept by it.
    auto* const waiting = new Waiting;
    waiting->work = std::move(work);
    open_calls_->Add(1);
    waiting->alarm.Set(std::chrono::system_clock::now() + std::chrono::nanoseconds(wait),
                       [this, open_calls = open_calls_, waiting](bool) {
                         post_([owned = std::shared_ptr<Waiting>(waiting)] { owned->work(); });
                         open_calls->Add(-1);
                       });
  }

  // One call with one answer.
  template <typename Response, typename Stub, typename Request, typename Answer, typename Convert>
  void Call(Stub& stub,
            void (Stub::*method)(grpc::ClientContext*, const Request*, Response*,
                                 std::function<void(grpc::Status)>),
            const Request& request, std::chrono::seconds deadline, AnswerFunction<Answer> done,
            Convert convert) {
    auto call = std::make_shared<UnaryCall<Request, Response>>();
    call->request = request;
    call->context.set_deadline(std::chrono::system_clock::now() + deadline);
    auto* raw = call.get();
    open_calls_->Add(1);
    (stub.*method)(&raw->context, &raw->request, &raw->response,
                   [this, open_calls = open_calls_, call = std::move(call), done = std::move(done),
                    convert](const grpc::Status& status) mutable {
                     auto answer = status.ok() ? absl::StatusOr<Answer>(convert(call->response))
                                               : absl::StatusOr<Answer>(Explain(status));
                     Response().Swap(&call->response);  // A large one is freed here.
                     // Moved: the context's channel must not go in this thread of the library's.
                     post_([call = std::move(call), done = std::move(done),
                            answer = std::move(answer)]() mutable { done(std::move(answer)); });
                     open_calls->Add(-1);
                   });
  }

  const PostFunction post_;
  const std::shared_ptr<client::OpenCalls> open_calls_ = std::make_shared<client::OpenCalls>();
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> inference_;
  const std::unique_ptr<v1::Cluster::Stub> cluster_;
};

}  // namespace

std::unique_ptr<Backend> MakeGrpcBackend(const std::string& server, PostFunction post,
                                         const TlsFiles& tls, const control::Keepalive& keepalive) {
  return std::make_unique<GrpcBackend>(server, std::move(post), tls, keepalive);
}

}  // namespace lamina::gateway
