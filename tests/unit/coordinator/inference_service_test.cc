// SPDX-License-Identifier: Apache-2.0
#include "coordinator/inference_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "common/version.h"
#include "tests/support/id_tokenizer.h"

namespace lamina::coordinator {
namespace {

constexpr uint32_t kVocabulary = 100;

EngineOptions MakeOptions() {
  return {.nodes = {{.name = "c0", .holds_kv = true}},
          .layers = {{.query_heads = 1, .kv_heads = 1, .head_dim = 16}},
          .vocabulary = kVocabulary,
          .model_fingerprint = "model",
          .scheduler = {.rows_max = 4,
                        .step_tokens_max = 16,
                        .chunk_tokens = 8,
                        .scratch_tokens = 64,
                        .sequence_tokens_max = 64,
                        .running_max = 4,
                        .waiting_max = 4}};
}

// A node that takes part, and never does a step.
class IdleNode final : public NodePort {
 public:
  explicit IdleNode(Engine& engine) : engine_(engine) {}

  void LoadLayers(const core::Stage&) override {}
  void Configure(const control::EpochConfig& config) override {
    epoch_ = config.epoch;
    engine_.NodePrepared({.name = "c0", .port = this}, epoch_, {.region = "region"});
  }
  void Connect(const control::EpochPeers&) override {
    engine_.NodeReady({.name = "c0", .port = this}, epoch_);
  }
  void Leave(const std::string&) override {}
  void SendPlan(const core::StepPlan&) override {}
  void StartTrace(Nanos) override {}
  void CollectTrace(uint64_t) override {}
  void PingClock() override {}
  void Refuse(const std::string& reason) override { ADD_FAILURE() << reason; }
  void End() override {}

 private:
  Engine& engine_;
  uint64_t epoch_ = 0;
};

// The service over an engine with one node that is never done, within this process.
class InferenceServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_.NodeJoined({.identity = {.name = "c0",
                                     .capacity_bytes = 1 << 20,
                                     .bandwidth_bytes_per_second = 1e9,
                                     .model_fingerprint = "model"},
                        .version = std::string(kVersion)},
                       std::make_shared<IdleNode>(engine_));
    AwaitStatus([](const EngineStatus& status) { return status.state == "serving"; });
  }
  void TearDown() override { server_->Shutdown(); }

  template <typename Condition>
  void AwaitStatus(Condition condition) {
    while (!condition(engine_.GetStatus())) {
      std::this_thread::yield();
    }
  }

  uint64_t Failures(const grpc::Status& status) const {
    return engine_.metrics().failures(static_cast<absl::StatusCode>(status.error_code()));
  }

  static std::unique_ptr<grpc::Server> Serve(InferenceService& service) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service);
    return builder.BuildAndStart();
  }

  const test_support::IdTokenizer tokenizer_{kVocabulary};
  const model::ModelConfig config_{.vocabulary = kVocabulary};
  Engine engine_{MakeOptions(), tokenizer_, RealClock()};
  InferenceService service_{engine_, tokenizer_, config_, 64};
  const std::unique_ptr<grpc::Server> server_ = Serve(service_);
  const std::unique_ptr<v1::Inference::Stub> stub_ =
      v1::Inference::NewStub(server_->InProcessChannel({}));
};

TEST_F(InferenceServiceTest, AScoreEndsWhenItsClientGoes) {
  grpc::ClientContext context;
  v1::ScoreRequest request;
  request.set_text(" 1 2 3");
  v1::ScoreResponse response;
  std::promise<grpc::Status> ended;
  stub_->async()->Score(&context, &request, &response,
                        [&ended](const grpc::Status& status) { ended.set_value(status); });
  AwaitStatus([](const EngineStatus& status) { return status.scheduler.running == 1; });

  context.TryCancel();

  EXPECT_EQ(ended.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  AwaitStatus([](const EngineStatus& status) { return status.requests_failed == 1; });
  EXPECT_EQ(engine_.metrics().aborted, 1u);
}

TEST_F(InferenceServiceTest, CountsRequestsThatItRefusesItself) {
  v1::GenerateRequest without_prompt;
  v1::GenerateRequest with_form;  // This tokenizer's words are no texts, so that there is no form.
  with_form.set_text(" 1");
  with_form.mutable_sampling()->mutable_form()->set_regex("(");
  for (const v1::GenerateRequest& request : {without_prompt, with_form}) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    const auto stream = stub_->Generate(&context, request);
    EXPECT_FALSE(stream->Read(&response));
    const grpc::Status refused = stream->Finish();
    EXPECT_FALSE(refused.ok());
    EXPECT_EQ(Failures(refused), 1u) << refused.error_message();
  }
}

TEST_F(InferenceServiceTest, CountsScoresThatItRefusesItself) {
  grpc::ClientContext context;
  v1::ScoreRequest request;
  request.set_text("not of ids");
  v1::ScoreResponse response;

  const grpc::Status refused = stub_->Score(&context, request, &response);

  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Failures(refused), 1u);
}

}  // namespace
}  // namespace lamina::coordinator
