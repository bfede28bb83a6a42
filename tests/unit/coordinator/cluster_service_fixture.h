// SPDX-License-Identifier: Apache-2.0
//
// ClusterServiceTest: the service over an engine of two nodes, within this process. The test plays
// the nodes, and whoever asks for status.

#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "control/node_proof_service.h"
#include "coordinator/cluster_service.h"
#include "tests/support/id_tokenizer.h"
#include "tests/unit/coordinator/node_client.h"
#include "tests/unit/coordinator/small_limits.h"

namespace lamina::coordinator {

inline constexpr uint32_t kVocabulary = 100;

inline EngineOptions MakeOptions() {
  return {.nodes = {{.name = "c0"}, {.name = "m0", .is_memory = true}},
          .layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16}},
          .vocabulary = kVocabulary,
          .model_fingerprint = "model",
          .transports = {"fake://one", "fake://other"},
          .scheduler = SmallLimits()};
}

class ClockByHand final : public Clock {
 public:
  Nanos Now() const override { return now; }
  std::atomic<Nanos> now = 0;
};

// The tokens of one request.
class Tokens final : public RequestSink {
 public:
  void OnAccepted(const std::string&) override {}
  void OnOutput(ChoiceOutput output) override {
    for (const plan::SampledToken& token : output.tokens) {
      tokens_.push_back(token.token);
    }
  }
  void OnProgress(uint32_t) override {}
  void OnScores(std::vector<float>, std::vector<plan::TokenRank>) override {}
  void OnDone(const absl::Status& status) override { done_.set_value(status); }

  absl::Status Await() { return done_.get_future().get(); }
  const std::vector<TokenId>& tokens() const { return tokens_; }

 private:
  std::vector<TokenId> tokens_;
  std::promise<absl::Status> done_;
};

class ClusterServiceTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const auto& node : nodes_) {
      node->Cancel();
    }
    nodes_.clear();
    server_->Shutdown();
  }

  std::unique_ptr<grpc::Server> Serve() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    return builder.BuildAndStart();
  }

  NodeClient& Attach(const std::string& name) {
    nodes_.push_back(std::make_unique<NodeClient>(*stub_, name));
    return *nodes_.back();
  }

  v1::GetStatusResponse Status() {
    grpc::ClientContext context;
    v1::GetStatusResponse response;
    EXPECT_TRUE(stub_->GetStatus(&context, {}, &response).ok());
    return response;
  }
  // The first status of which that holds.
  v1::GetStatusResponse AwaitStatus(
      const std::function<bool(const v1::GetStatusResponse&)>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + NodeClient::kLong;
    v1::GetStatusResponse status = Status();
    while (!holds(status) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
      status = Status();
    }
    EXPECT_TRUE(holds(status)) << status.DebugString();
    return status;
  }
  v1::GetStatusResponse AwaitState(const std::string& state) {
    return AwaitStatus(
        [&](const v1::GetStatusResponse& status) { return status.state() == state; });
  }
  static v1::Node NodeOf(const v1::GetStatusResponse& status, const std::string& name) {
    for (const v1::Node& node : status.nodes()) {
      if (node.name() == name) {
        return node;
      }
    }
    return {};
  }

  // Both nodes take part in the first epoch.
  std::pair<NodeClient*, NodeClient*> Form() {
    NodeClient& compute = Attach("c0");
    compute.Join();
    NodeClient& memory = Attach("m0");
    memory.Join();
    for (NodeClient* const node : {&compute, &memory}) {
      node->Prepare();
    }
    for (NodeClient* const node : {&compute, &memory}) {
      node->Connect();
    }
    AwaitState("serving");
    return {&compute, &memory};
  }

  // A change of members, after it was changed.
  grpc::Status Change(v1::MemberChangeKind kind, const std::string& node, std::string& done,
                      const std::function<void(v1::MemberChange&)>& change = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + NodeClient::kLong);
    const auto stream = stub_->ChangeMembers(&context);
    v1::MemberAnswer answer;
    EXPECT_TRUE(stream->Read(&answer));
    v1::MemberChange message;
    message.set_kind(kind);
    message.set_node(node);
    EXPECT_TRUE(control::ProveChange(ClusterSecret(), answer.challenge(), message).ok());
    if (change) {
      change(message);
    }
    stream->Write(message);
    done = stream->Read(&answer) ? answer.done() : "";
    return stream->Finish();
  }

  grpc::Status ReadTrace(const std::string& node, v1::ReadTraceResponse& response) {
    grpc::ClientContext context;
    v1::ReadTraceRequest request;
    request.set_node(node);
    return stub_->ReadTrace(&context, request, &response);
  }

  const test_support::IdTokenizer tokenizer_{kVocabulary};
  Engine engine_{MakeOptions(), tokenizer_, RealClock()};
  ClockByHand late_clock_;
  int late_ = 0;  // Nodes whose words were found late.
  LateStreams streams_{[this](const std::string&) {
                         ++late_;
                         return std::nullopt;
                       },
                       [](const NodeWord&) {}, late_clock_};
  ClusterService service_{engine_, streams_, {.own = "own", .served = "served"}, RealClock(), {}};
  const std::unique_ptr<grpc::Server> server_ = Serve();
  const std::unique_ptr<v1::Cluster::Stub> stub_ =
      v1::Cluster::NewStub(server_->InProcessChannel({}));
  std::vector<std::unique_ptr<NodeClient>> nodes_;
};

}  // namespace lamina::coordinator
