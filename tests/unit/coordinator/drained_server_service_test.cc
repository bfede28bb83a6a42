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

// If the engine's thread ended the server itself, this would wait forever.
TEST(DrainedServerTest, CallsThatNeedTheEngineEndWhileTheServerDoes) {
  const test_support::IdTokenizer tokenizer(10);
  EngineOptions options{.nodes = {{.name = "c0"}}, .layers = {{}}, .vocabulary = 10};
  Engine engine(options, tokenizer, RealClock());
  AskingService service(engine);
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::Cluster::NewStub(server->InProcessChannel({}));
  grpc::ClientContext context;
  const v1::GetStatusRequest request;
  v1::GetStatusResponse response;
  std::promise<grpc::Status> ended;
  stub->async()->GetStatus(&context, &request, &response,
                           [&ended](const grpc::Status& status) { ended.set_value(status); });
  service.started.get_future().wait();

  DrainedServer drained(engine, *server);
  drained.Stop();
  drained.Wait(std::chrono::milliseconds(1));

  EXPECT_FALSE(ended.get_future().get().ok());
}

}  // namespace
}  // namespace lamina::coordinator
