// SPDX-License-Identifier: Apache-2.0
//
// What a node answers that a coordinator has load layers.

#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "plan/policy_times.h"
#include "tests/unit/control/node_link_ends.h"

namespace lamina::control {
namespace {

// A coordinator that has a node load layers, and ends the stream when it has answered.
class LoadingCoordinator final : public v1::Cluster::Service {
 public:
  explicit LoadingCoordinator(bool measure) : measure_(measure) {}

  grpc::Status Attach(grpc::ServerContext*, ServerStream* stream) override {
    Welcome(*stream);
    v1::CoordinatorMessage order;
    order.mutable_load_layers()->mutable_stage()->set_layers(2);
    order.mutable_load_layers()->set_measure(measure_);
    stream->Write(order);
    v1::NodeMessage answer;
    while (stream->Read(&answer)) {
      if (answer.has_layers_loaded()) {
        loaded = answer.layers_loaded();
        break;
      }
    }
    return grpc::Status::OK;
  }

  v1::LayersLoaded loaded;

 private:
  const bool measure_;
};

// What a node answers that measures this where it is asked to.
v1::LayersLoaded LoadedBy(const absl::StatusOr<plan::PolicyTimes>& measured, bool measure) {
  LoadingCoordinator coordinator(measure);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  NodeLink link(absl::StrCat("127.0.0.1:", port), {.name = "c0"}, ClusterSecret());
  IdleHandler handler(link);
  handler.measured = measured;
  EXPECT_TRUE(link.Run(handler, [] {}).ok());
  server->Shutdown();
  return coordinator.loaded;
}

TEST(NodeLinkLayersTest, SaysWhatItHasMeasuredOfLayersThatItHasLoaded) {
  const plan::PolicyTimes times = {.local = {{.rows = 4, .slice_seconds = 2, .tail_seconds = 3}},
                                   .attention_local = 7};
  const v1::LayersLoaded measured = LoadedBy(times, /*measure=*/true);
  EXPECT_EQ(measured.code(), 0);
  ASSERT_EQ(measured.policy_times().local_size(), 1);
  EXPECT_EQ(measured.policy_times().local(0).rows(), 4u);
  EXPECT_EQ(measured.policy_times().local(0).tail_seconds(), 3);
  EXPECT_EQ(measured.policy_times().attention_local(), 7);
  EXPECT_FALSE(LoadedBy(times, /*measure=*/false).has_policy_times()) << "nobody asks";

  const v1::LayersLoaded failed = LoadedBy(absl::ResourceExhaustedError("no memory"), true);
  EXPECT_EQ(failed.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(failed.message(), "no memory");
  EXPECT_FALSE(failed.has_policy_times());
}

}  // namespace
}  // namespace lamina::control
