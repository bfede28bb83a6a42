// SPDX-License-Identifier: Apache-2.0
#include "coordinator/drained_server_service.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "lamina/v1/cluster.grpc.pb.h"
#include "tests/support/id_tokenizer.h"

namespace lamina::coordinator {
namespace {

// Asks the engine when the server ends: when its calls are cancelled.
class AskAtTheEnd final : public grpc::ServerUnaryReactor {
 public:
  AskAtTheEnd(Engine& engine, std::promise<void>& started) : engine_(engine), started_(started) {}
  void OnStarted() { started_.set_value(); }
  void OnCancel() override {
    engine_.GetStatus();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  Engine& engine_;
  std::promise<void>& started_;
};

class AskingService final : public v1::Cluster::CallbackService {
 public:
  explicit AskingService(Engine& engine) : engine_(engine) {}
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext*, const v1::GetStatusRequest*,
                                      v1::GetStatusResponse*) override {
    auto* reactor = new AskAtTheEnd(engine_, started);
    reactor->OnStarted();
    return reactor;
  }
  std::promise<void> started;

 private:
  Engine& engine_;
};

// A call is open.
class DrainedServerTest : public ::testing::Test {
 protected:
  DrainedServerTest() : service_(engine_) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Cluster::NewStub(server_->InProcessChannel({}));
    stub_->async()->GetStatus(&context_, &request_, &response_,
                              [this](const grpc::Status& status) { promise_.set_value(status); });
    service_.started.get_future().wait();
  }

  const test_support::IdTokenizer tokenizer_{10};
  Engine engine_{EngineOptions{.nodes = {{.name = "c0"}}, .layers = {{}}, .vocabulary = 10},
                 tokenizer_, RealClock()};
  AskingService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Cluster::Stub> stub_;
  grpc::ClientContext context_;
  const v1::GetStatusRequest request_;
  v1::GetStatusResponse response_;
  std::promise<grpc::Status> promise_;
  std::future<grpc::Status> ended_ = promise_.get_future();
};

// If the engine's thread ended the server itself, this would wait forever.
TEST_F(DrainedServerTest, CallsThatNeedTheEngineEndWhileTheServerDoes) {
  DrainedServer drained(engine_, *server_);
  drained.Stop();
  drained.Wait(std::chrono::milliseconds(1));

  EXPECT_FALSE(ended_.get().ok());
}

TEST_F(DrainedServerTest, AServerThatNobodyHasWaitedForEndsWithItsOpenCalls) {
  { const DrainedServer drained(engine_, *server_); }

  EXPECT_EQ(ended_.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  context_.TryCancel();  // The library's own end would wait for the call.
  ended_.wait();
}

}  // namespace
}  // namespace lamina::coordinator
