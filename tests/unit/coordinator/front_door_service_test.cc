// SPDX-License-Identifier: Apache-2.0
#include "coordinator/front_door_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

class AnsweringService final : public v1::Cluster::CallbackService {
 public:
  grpc::ServerUnaryReactor* ReadTrace(grpc::CallbackServerContext* context,
                                      const v1::ReadTraceRequest*,
                                      v1::ReadTraceResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

class FrontDoorTest : public ::testing::Test {
 protected:
  FrontDoorTest() : door_(FrontDoor::Open("127.0.0.1:0").value()) {
    grpc::ServerBuilder builder;
    door_->AddTo(builder, /*streams_max=*/16, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    door_->Start();
    stub_ = v1::Cluster::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", door_->port()),
                                                     grpc::InsecureChannelCredentials()));
  }
  ~FrontDoorTest() override {
    door_->Stop();
    server_->Shutdown();
    server_->Wait();
  }

  grpc::Status Call(grpc_compression_algorithm compression) {
    grpc::ClientContext context;
    context.set_compression_algorithm(compression);
    v1::ReadTraceRequest request;
    request.set_node(std::string(1 << 20, 'a'));  // It becomes some kilobytes.
    v1::ReadTraceResponse response;
    return stub_->ReadTrace(&context, request, &response);
  }

 private:
  AnsweringService service_;
  const std::unique_ptr<FrontDoor> door_;  // Outlives the server.
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Cluster::Stub> stub_;
};

TEST_F(FrontDoorTest, NoMessageIsDecompressed) {
  for (const grpc_compression_algorithm compression : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const grpc::Status refused = Call(compression);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNIMPLEMENTED) << refused.error_message();
    EXPECT_THAT(refused.error_message(), HasSubstr("ompression"));
  }

  const grpc::Status plain = Call(GRPC_COMPRESS_NONE);
  EXPECT_TRUE(plain.ok()) << plain.error_message();
}

}  // namespace
}  // namespace lamina::coordinator
