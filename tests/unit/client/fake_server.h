// SPDX-License-Identifier: Apache-2.0
//
// FakeServer: a coordinator that counts instead of generating, on a free port of this host.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/cluster_secret.h"
#include "grpcpp/grpcpp.h"
#include "lamina/v1/cluster.grpc.pb.h"
#include "lamina/v1/inference.grpc.pb.h"

namespace lamina::client {

// Answers each choice with max_tokens tokens 0, 1, 2, ..., then LENGTH. The prompt text "fail N"
// ends with status code N after one token, "fail N WORDS" with these words; "hang" sends one token
// and waits for the client to cancel, and so does the score of that text; that of "late" takes half
// a second. With `runs_max` every prompt hangs, and the first so many alone send their token.
// "break N" breaks off behind N tokens of each choice, as if the server had died, which journals
// requests if `journals`; Attach goes on with it, after so many calls that the server is `away`
// for. The score of the text "break" breaks off likewise, and AttachScore goes on with it.
class FakeInference : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    {
      const absl::MutexLock lock(&mu_);
      last_request_ = *request;
      const auto parent = context->client_metadata().find("traceparent");
      last_trace_parent_ = parent == context->client_metadata().end()
                               ? ""
                               : std::string(parent->second.data(), parent->second.size());
    }
    if (refuses_with != grpc::StatusCode::OK) {
      return {refuses_with, "as asked"};
    }
    v1::GenerateResponse response;
    response.set_request_id("r1");
    if (request->text().rfind("fail ", 0) == 0) {
      response.add_tokens()->set_token(0);
      writer->Write(response);
      context->AddTrailingMetadata("x-request-id", "followed");
      const size_t words = request->text().find(' ', 5);
      return {static_cast<grpc::StatusCode>(std::stoi(request->text().substr(5))),
              words == std::string::npos ? "as asked" : request->text().substr(words + 1)};
    }
    if (journals) {
      context->AddInitialMetadata("lamina-journaled", "r1");
    }
    if (request->text().rfind("break ", 0) == 0) {
      const auto tokens = static_cast<uint32_t>(std::stoi(request->text().substr(6)));
      for (uint32_t index = 0; index < std::max(1u, request->n()); ++index) {
        WriteChoice(*request, index, {.end = tokens}, *writer);
      }
      return {grpc::StatusCode::UNAVAILABLE, "Socket closed"};
    }
    if (request->text() == "hang" || runs_max >= 0) {
      if (runs_max < 0 || running++ < runs_max) {
        response.add_tokens()->set_token(0);
        writer->Write(response);
      }
      return AwaitCancel(*context);
    }
    for (uint32_t index = 0; index < std::max(1u, request->n()); ++index) {
      WriteChoice(*request, index, {}, *writer);
    }
    return grpc::Status::OK;
  }

  grpc::Status Attach(grpc::ServerContext*, const v1::AttachRequest* request,
                      grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    ++attached;
    const absl::MutexLock lock(&mu_);
    last_attach_ = *request;
    if (away-- > 0) {
      return {grpc::StatusCode::UNAVAILABLE, "failed to connect to all addresses"};
    }
    WriteChoice(last_request_, 0, {.begin = request->index()}, *writer);
    for (int i = 0; i < request->further_size(); ++i) {
      WriteChoice(last_request_, static_cast<uint32_t>(i) + 1,
                  {.begin = request->further(i).index()}, *writer);
    }
    return grpc::Status::OK;
  }

  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                     v1::ScoreResponse* response) override {
    {
      const absl::MutexLock lock(&mu_);
      last_score_ = *request;
    }
    if (request->text() == "hang") {
      ++hanging;
      return AwaitCancel(*context);
    }
    if (request->text() == "late") {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    *response->mutable_tokens() = request->tokens().ids();
    for (int i = 1; i < request->tokens().ids_size(); ++i) {
      response->add_logprobs(-1.0f);
      if (request->has_logprobs()) {
        v1::TokenRank* rank = response->add_ranks();
        rank->set_rank(request->logprobs() + 1);
        for (uint32_t top = 0; top < request->logprobs(); ++top) {
          rank->add_top()->set_text("x");
        }
      }
    }
    response->set_perplexity(2.5);
    return grpc::Status::OK;
  }

  grpc::Status ScoreStream(grpc::ServerContext* context, const v1::ScoreRequest* request,
                           grpc::ServerWriter<v1::ScoreUpdate>* writer) override {
    if (journals) {
      context->AddInitialMetadata("lamina-journaled", "s1");
    }
    if (request->text() == "break") {
      writer->SendInitialMetadata();
      return {grpc::StatusCode::UNAVAILABLE, "Socket closed"};
    }
    if (const int tokens = request->tokens().ids_size(); tokens > 3) {
      v1::ScoreUpdate update;
      update.set_tokens(static_cast<uint32_t>(tokens));
      update.set_tokens_done(3);
      writer->Write(update);
    }
    v1::ScoreUpdate last;
    const grpc::Status status = Score(context, request, last.mutable_result());
    if (status.ok()) {
      writer->Write(last);
    }
    return status;
  }

  grpc::Status AttachScore(grpc::ServerContext*, const v1::AttachRequest* request,
                           grpc::ServerWriter<v1::ScoreUpdate>* writer) override {
    ++attached;
    {
      const absl::MutexLock lock(&mu_);
      last_attach_ = *request;
    }
    if (away-- > 0) {
      return {grpc::StatusCode::UNAVAILABLE, "failed to connect to all addresses"};
    }
    v1::ScoreUpdate last;
    last.mutable_result()->set_perplexity(2.5);
    writer->Write(last);
    return grpc::Status::OK;
  }

  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    for (const char c :
         request->has_chat() ? request->chat().messages(0).content() : request->text()) {
      response->add_tokens(c);
      response->add_pieces(std::string(1, c));
    }
    return grpc::Status::OK;
  }

  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    for (const int32_t token : request->tokens()) {
      response->mutable_text()->push_back(static_cast<char>(token));
    }
    return grpc::Status::OK;
  }

  // Only "r1" runs.
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                      v1::CancelResponse*) override {
    if (request->request_id() == "r1") {
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::NOT_FOUND, "no request " + request->request_id()};
  }

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    v1::Model* model = response->add_models();
    model->set_id("fake");
    model->set_vocabulary(100);
    return grpc::Status::OK;
  }

  std::atomic<grpc::StatusCode> refuses_with = grpc::StatusCode::OK;  // Every Generate call.

  std::atomic<bool> journals = false;
  std::atomic<int> away = 0;
  std::atomic<int> attached = 0;  // Calls of Attach and AttachScore so far.

  std::atomic<int> runs_max = -1;
  std::atomic<int> running = 0;  // Calls of Generate so far, with `runs_max`.

  v1::GenerateRequest last_request() {
    const absl::MutexLock lock(&mu_);
    return last_request_;
  }
  v1::AttachRequest last_attach() {
    const absl::MutexLock lock(&mu_);
    return last_attach_;
  }
  std::string last_trace_parent() {
    const absl::MutexLock lock(&mu_);
    return last_trace_parent_;
  }
  v1::ScoreRequest last_score() {
    const absl::MutexLock lock(&mu_);
    return last_score_;
  }

  std::atomic<int> cancelled = 0;
  std::atomic<int> hanging = 0;  // Scores.

 private:
  grpc::Status AwaitCancel(const grpc::ServerContext& context) {
    while (!context.IsCancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ++cancelled;
    return grpc::Status::CANCELLED;
  }

  absl::Mutex mu_;
  v1::GenerateRequest last_request_ ABSL_GUARDED_BY(mu_);
  v1::AttachRequest last_attach_ ABSL_GUARDED_BY(mu_);
  std::string last_trace_parent_ ABSL_GUARDED_BY(mu_);  // Empty: the last request had none.
  v1::ScoreRequest last_score_ ABSL_GUARDED_BY(mu_);

  // Which of a choice's tokens.
  struct Part {
    uint32_t begin = 0;
    uint32_t end = UINT32_MAX;  // Not above max_tokens.
  };

  static void WriteChoice(const v1::GenerateRequest& request, uint32_t index, const Part& part,
                          grpc::ServerWriter<v1::GenerateResponse>& writer) {
    for (uint32_t i = part.begin; i < std::min(part.end, request.max_tokens()); ++i) {
      v1::GenerateResponse response;
      response.set_request_id("r1");
      response.set_index(index);
      response.set_text(absl::StrCat(i, " "));
      response.add_tokens()->set_token(static_cast<int32_t>(i));
      if (i + 1 == request.max_tokens()) {
        response.set_finish_reason(v1::FINISH_REASON_LENGTH);
        response.mutable_usage()->set_completion_tokens(request.max_tokens());
        response.mutable_usage()->set_seed(request.sampling().seed());
      }
      writer.Write(response);
    }
  }
};

class FakeCluster : public v1::Cluster::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    if (calls >= answers_max) {
      return {grpc::StatusCode::UNAVAILABLE, "it does not answer"};
    }
    response->set_state(calls < waits ? "waiting for m0" : "serving");
    response->set_epoch(3);
    response->set_running(running);
    response->set_waiting(waiting);
    v1::Node* node = response->add_nodes();
    node->set_name("m0");
    node->set_role("memory");
    node->set_slots_total(1000);
    node->set_bytes_sent(100 * ++calls);
    return grpc::Status::OK;
  }

  // Says which node the change is of, whatever its proof.
  grpc::Status ChangeMembers(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::MemberAnswer, v1::MemberChange>* stream) override {
    v1::MemberAnswer answer;
    answer.mutable_challenge()->set_nonce(std::string(ClusterSecret::kNonceBytes, 'n'));
    v1::MemberChange change;
    if (!stream->Write(answer) || !stream->Read(&change)) {
      return {grpc::StatusCode::CANCELLED, "the caller is gone"};
    }
    answer.set_done(change.node());
    stream->Write(answer);
    return grpc::Status::OK;
  }

  std::atomic<uint64_t> calls = 0;
  std::atomic<uint64_t> answers_max = UINT64_MAX;
  std::atomic<uint64_t> waits = 0;  // The first so many answers are those of one that waits.
  std::atomic<uint32_t> running = 0;
  std::atomic<uint32_t> waiting = 0;
};

class FakeServer {
 public:
  FakeServer() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&inference);
    builder.RegisterService(&cluster);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeServer() { Stop(); }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  void Stop() {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());
      server_.reset();
    }
  }
  const std::string& address() const { return address_; }

  FakeInference inference;
  FakeCluster cluster;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace lamina::client
