// SPDX-License-Identifier: Apache-2.0
#include "client/tracing.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "grpcpp/grpcpp.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::client {
namespace {

using telemetry::TraceEvent;
using telemetry::WorkKind;

// A coordinator whose node m0 sends its part at the third question. `gone` is a node that left.
class TracedCluster : public v1::Cluster::Service {
 public:
  grpc::Status StartTrace(grpc::ServerContext*, const v1::StartTraceRequest* request,
                          v1::StartTraceResponse*) override {
    if (request->seconds() > 60) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "seconds"};
    }
    return grpc::Status::OK;
  }
  grpc::Status CollectTrace(grpc::ServerContext*, const v1::CollectTraceRequest*,
                            v1::CollectTraceResponse* response) override {
    response->set_epoch(3);
    response->add_compute_nodes("c0");
    response->add_memory_nodes(node_gone ? "gone" : "m0");
    response->add_names("follow-me");
    v1::TracedStep* step = response->add_steps();
    step->set_step(7);
    step->add_requests(0);
    step->add_requests(9);  // Out of range: left out.
    response->add_requests()->set_request_id("follow-me");
    return grpc::Status::OK;
  }
  grpc::Status ReadTrace(grpc::ServerContext*, const v1::ReadTraceRequest* request,
                         v1::ReadTraceResponse* response) override {
    if (request->node() == "gone") {
      return {grpc::StatusCode::NOT_FOUND, "no node gone is there"};
    }
    if (request->node() == "m0" && ++asked < 3) {
      return {grpc::StatusCode::UNAVAILABLE, "has not come yet"};
    }
    const TraceEvent event = {.start = 5, .end = 9, .part = WorkKind::kAttend, .step = 7};
    for (const uint64_t word : event.ToWords()) {
      response->mutable_trace()->add_words(word);
    }
    response->mutable_trace()->add_words(1);  // It belongs to no whole event.
    response->set_clock_offset(4);
    return grpc::Status::OK;
  }

  bool node_gone = false;
  int asked = 0;
};

class TracingTest : public ::testing::Test {
 protected:
  TracingTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&cluster_);
    server_ = builder.BuildAndStart();
    options_.server = "127.0.0.1:" + std::to_string(port);
  }

  TracedCluster cluster_;
  std::unique_ptr<grpc::Server> server_;
  ConnectOptions options_;
  Cancellation cancellation_;
};

TEST_F(TracingTest, WaitsForPartsThatHaveNotCome) {
  const auto timeline = RecordTimeline(options_, Millis(1), cancellation_);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_EQ(cluster_.asked, 3);
  EXPECT_EQ(timeline->epoch, 3u);
  ASSERT_EQ(timeline->nodes.size(), 2u);
  EXPECT_EQ(timeline->nodes[0].name, "c0");
  EXPECT_FALSE(timeline->nodes[0].is_memory);
  EXPECT_TRUE(timeline->nodes[1].is_memory);
  ASSERT_EQ(timeline->nodes[1].events.size(), 1u);
  EXPECT_EQ(timeline->nodes[1].events[0].end, 9);
  EXPECT_EQ(timeline->nodes[1].clock_offset, 4);
  EXPECT_EQ(timeline->steps[0].requests, std::vector<std::string>{"follow-me"});
  EXPECT_EQ(timeline->requests[0].request_id, "follow-me");
}

TEST_F(TracingTest, ANodeThatLeftIsAnErrorThatNamesIt) {
  cluster_.node_gone = true;
  const auto timeline = RecordTimeline(options_, Millis(1), cancellation_);
  EXPECT_TRUE(absl::IsNotFound(timeline.status()));
  EXPECT_NE(timeline.status().message().find("gone"), std::string::npos);
}

TEST_F(TracingTest, TheServerRefusesALengthThatIsTooLong) {
  EXPECT_TRUE(
      absl::IsInvalidArgument(RecordTimeline(options_, Seconds(61), cancellation_).status()));
}

TEST_F(TracingTest, CancellingEndsTheRecordingAndKeepsWhatThereIs) {
  cancellation_.Cancel();
  EXPECT_TRUE(RecordTimeline(options_, Seconds(60), cancellation_).ok());
}

TEST_F(TracingTest, WithoutACoordinatorItIsUnavailable) {
  server_->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(RecordTimeline(options_, Millis(1), cancellation_).status()));
}

}  // namespace
}  // namespace lamina::client
