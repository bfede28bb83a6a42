// SPDX-License-Identifier: Apache-2.0
#include "control/node_link_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::control {
namespace {

// Takes part in nothing, and stops the link when its stream has ended.
class IdleHandler final : public NodeHandler {
 public:
  explicit IdleHandler(NodeLink& link) : link_(link) {}

  absl::Status LoadLayers(const core::Stage&) override { return absl::OkStatus(); }
  absl::StatusOr<PreparedNode> Configure(const EpochConfig&) override { return PreparedNode(); }
  absl::Status Connect(const EpochPeers&) override { return absl::OkStatus(); }
  void TakePlan(core::StepPlan) override {}
  void LeaveEpoch() override {
    attached_at_the_end = link_.attached();
    link_.Stop();
  }
  NodeCounters Counters() const override { return {}; }
  TraceRing& ring() override { return ring_; }

  bool attached_at_the_end = true;

 private:
  NodeLink& link_;
  TraceRing ring_;
};

// A coordinator that ends each stream when it is told to.
class EndingCoordinator final : public v1::Cluster::Service {
 public:
  grpc::Status Attach(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::NodeMessage>*) override {
    end.get_future().wait();
    return grpc::Status::OK;
  }
  std::promise<void> end;
};

TEST(NodeLinkTest, IsAttachedWhileItsStreamIsOpen) {
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/node_link_test.sock");
  EndingCoordinator coordinator;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  NodeLink link(address, {.name = "c0"});
  EXPECT_FALSE(link.attached());
  IdleHandler handler(link);
  bool attached = false;

  const absl::Status status = link.Run(handler, [&] {
    attached = link.attached();
    coordinator.end.set_value();
  });

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(attached);
  EXPECT_FALSE(handler.attached_at_the_end);
  server->Shutdown();
}

}  // namespace
}  // namespace lamina::control
