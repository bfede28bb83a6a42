// SPDX-License-Identifier: Apache-2.0
//
// What the cluster's service tells of nodes, the timelines that it collects from them, and changes
// of members.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/coordinator_metrics.h"
#include "tests/unit/coordinator/cluster_service_fixture.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- What nodes say of themselves ---

TEST_F(ClusterServiceTest, StatusAndLinksOfNodesAreShown) {
  NodeClient& compute = *Form().first;
  v1::NodeMessage message;
  v1::NodeLinks& links = *message.mutable_links();
  links.set_epoch(1);
  v1::NodeLink& link = *links.add_links();
  link.set_peer("m0\n");
  link.set_path("fake");
  link.set_latency_seconds(1e-5);
  link.set_bytes_per_second(2e9);
  ASSERT_TRUE(compute.Write(message));
  link.set_peer("m0");
  ASSERT_TRUE(compute.Write(message));
  v1::NodeStatus& counts = *message.mutable_status();
  counts.set_busy_share(0.5);
  counts.set_bytes_sent(7);
  counts.set_bytes_received(8);
  counts.set_refused_messages(1);
  counts.set_units(9);
  counts.set_kv_bytes_read(10);
  counts.set_busy_seconds(11.5);
  ASSERT_TRUE(compute.Write(message));

  const v1::GetStatusResponse status = AwaitStatus([](const v1::GetStatusResponse& response) {
    return NodeOf(response, "c0").busy_share() == 0.5;
  });
  const v1::Node node = NodeOf(status, "c0");
  EXPECT_EQ(node.bytes_sent(), 7u);
  EXPECT_EQ(node.bytes_received(), 8u);
  EXPECT_EQ(node.refused_messages(), 1u);
  EXPECT_EQ(node.units(), 9u);
  EXPECT_EQ(node.kv_bytes_read(), 10u);
  EXPECT_EQ(node.busy_seconds(), 11.5);
  ASSERT_GE(status.links_size(), 1);
  const v1::Link& shown = status.links(status.links_size() - 1);
  EXPECT_EQ(shown.from(), "c0");
  EXPECT_EQ(shown.to(), "m0");
  EXPECT_EQ(shown.path(), "fake");
  EXPECT_EQ(shown.latency_seconds(), 1e-5);
  EXPECT_EQ(shown.bytes_per_second(), 2e9);
  for (const v1::Link& each : status.links()) {
    EXPECT_THAT(each.to(), ::testing::Not(HasSubstr("\n"))) << "texts of peers are one line";
  }
}

TEST_F(ClusterServiceTest, FiguresThatCannotBeAreShownAsNotMeasured) {
  NodeClient& compute = *Form().first;
  v1::NodeMessage message;
  message.mutable_links()->set_epoch(1);
  v1::NodeLink& link = *message.mutable_links()->add_links();
  link.set_peer("m0");
  link.set_path("fake");
  link.set_latency_seconds(-1e-5);
  link.set_bytes_per_second(std::numeric_limits<double>::infinity());
  ASSERT_TRUE(compute.Write(message));
  v1::NodeStatus& counts = *message.mutable_status();
  counts.set_busy_share(std::numeric_limits<double>::quiet_NaN());
  counts.set_busy_seconds(std::numeric_limits<double>::quiet_NaN());
  counts.set_units(9);
  ASSERT_TRUE(compute.Write(message));

  const v1::GetStatusResponse status = AwaitStatus(
      [](const v1::GetStatusResponse& response) { return NodeOf(response, "c0").units() == 9; });
  EXPECT_EQ(NodeOf(status, "c0").busy_share(), 0);
  EXPECT_EQ(NodeOf(status, "c0").busy_seconds(), 0);
  ASSERT_GE(status.links_size(), 1);
  const v1::Link& shown = status.links(status.links_size() - 1);
  EXPECT_EQ(shown.to(), "m0");
  EXPECT_EQ(shown.latency_seconds(), 0);
  EXPECT_EQ(shown.bytes_per_second(), 0);
  EXPECT_EQ(status.state(), "serving");
}

// More askers than gRPC has threads: with all of them waiting, nobody's pings would be answered,
// and clients and nodes would take the coordinator for gone.
TEST_F(ClusterServiceTest, WhoAsksForStatusHoldsNobodyUpWhileTheEngineIsBusy) {
  constexpr int kAskers = 40;
  std::promise<void> busy;
  std::promise<void> released;
  engine_.StartTrace(Seconds(1), [&] {
    busy.set_value();
    released.get_future().wait();
  });
  busy.get_future().wait();
  std::vector<std::thread> askers;
  std::atomic<int> asked = 0;
  std::atomic<int> answered = 0;
  for (int i = 0; i < kAskers; ++i) {
    askers.emplace_back([&, of_metrics = i % 2 == 0] {
      grpc::ClientContext context;
      v1::GetRequestMetricsResponse metrics;
      v1::GetStatusResponse status;
      ++asked;
      const grpc::Status end = of_metrics ? stub_->GetRequestMetrics(&context, {}, &metrics)
                                          : stub_->GetStatus(&context, {}, &status);
      answered += end.ok() ? 1 : 0;
    });
  }
  while (asked < kAskers) {
    std::this_thread::yield();
  }

  // What needs no engine is answered meanwhile, again and again, since they are on their way.
  v1::StartTraceRequest wrong;
  wrong.set_seconds(-1);
  const auto deadline = std::chrono::system_clock::now() + NodeClient::kLong;
  auto code = grpc::StatusCode::INVALID_ARGUMENT;
  for (int i = 0; i < 200 && code == grpc::StatusCode::INVALID_ARGUMENT; ++i) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::StartTraceResponse response;
    code = stub_->StartTrace(&context, wrong, &response).error_code();
  }
  EXPECT_EQ(code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(answered, 0);

  released.set_value();
  for (std::thread& asker : askers) {
    asker.join();
  }
  EXPECT_EQ(answered, kAskers);
}

TEST_F(ClusterServiceTest, RequestMetricsBearTheServedName) {
  grpc::ClientContext context;
  v1::GetRequestMetricsResponse response;

  ASSERT_TRUE(stub_->GetRequestMetrics(&context, {}, &response).ok());

  EXPECT_THAT(response.text(), HasSubstr("model_name=\"served\""));
}

TEST_F(ClusterServiceTest, FailedRequestsAreCountedByWhateverCodeTheyEndWith) {
  engine_.NoteRefused("a", absl::DataLossError("damaged"));
  engine_.NoteRefused("b", absl::DeadlineExceededError("late"));
  engine_.NoteRefused("c", absl::DeadlineExceededError("late"));

  const std::string page = MetricsText(engine_, "served", RealClock(), 0);

  EXPECT_THAT(page, HasSubstr("lamina_requests_failed_total{code=\"data_loss\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("lamina_requests_failed_total{code=\"deadline_exceeded\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("lamina_requests_failed_total{code=\"invalid_argument\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("lamina_requests_failed_total{code=\"unauthenticated\"} 0\n"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("code=\"ok\"")));
}

// Shown as 0 they would grow by all of a node's life when it comes back.
TEST_F(ClusterServiceTest, CountersOfANodeThatHasNotToldThemAreNotOnThePage) {
  NodeClient& memory = *Form().second;
  const char* const kSent = "lamina_node_sent_bytes_total{node=\"m0\"";
  const char* const kBandwidth = "lamina_node_read_bandwidth_bytes_per_second{node=\"m0\"";
  const std::string early = MetricsText(engine_, "served", RealClock(), 0);
  EXPECT_THAT(early, HasSubstr("lamina_node_ready{node=\"m0\""));
  EXPECT_THAT(early, ::testing::Not(HasSubstr(kSent)));
  EXPECT_THAT(early, ::testing::Not(HasSubstr(kBandwidth)));

  v1::NodeMessage message;
  message.mutable_status()->set_bytes_sent(7);
  ASSERT_TRUE(memory.Write(message));
  AwaitStatus([](const v1::GetStatusResponse& response) {
    return NodeOf(response, "m0").bytes_sent() == 7;
  });

  const std::string page = MetricsText(engine_, "served", RealClock(), 0);
  EXPECT_THAT(page, HasSubstr(kSent));
  EXPECT_THAT(page, HasSubstr(kBandwidth));
}

// --- Timelines ---

TEST_F(ClusterServiceTest, ATimelineHasALengthOfUpToAMinute) {
  for (const double seconds :
       {0.0, -1.0, 60.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    grpc::ClientContext context;
    v1::StartTraceRequest request;
    request.set_seconds(seconds);
    v1::StartTraceResponse response;

    const grpc::Status status = stub_->StartTrace(&context, request, &response);

    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << seconds;
    EXPECT_THAT(status.error_message(), HasSubstr("(0, 60]"));
  }
}

TEST_F(ClusterServiceTest, ATimelineIsOrderedCollectedAndRead) {
  NodeClient& compute = *Form().first;
  grpc::ClientContext starting;
  v1::StartTraceRequest length;
  length.set_seconds(0.5);
  v1::StartTraceResponse started;
  ASSERT_TRUE(stub_->StartTrace(&starting, length, &started).ok());
  EXPECT_EQ(compute.Read(v1::CoordinatorMessage::kTrace).trace().record_nanos(), 500'000'000);
  const v1::CoordinatorMessage ping = compute.Read(v1::CoordinatorMessage::kPing);
  EXPECT_GT(ping.ping().sent(), 0);

  // The node's clock is a million seconds ahead.
  constexpr int64_t kAhead = 1'000'000'000'000'000;
  v1::NodeMessage message;
  message.mutable_pong()->set_ping_sent(ping.ping().sent());
  message.mutable_pong()->set_received(ping.ping().sent() + kAhead);
  message.mutable_pong()->set_sent(ping.ping().sent() + kAhead);
  ASSERT_TRUE(compute.Write(message));
  compute.Read(v1::CoordinatorMessage::kPing);  // The clock is asked again.

  grpc::ClientContext collecting;
  v1::CollectTraceResponse collected;
  ASSERT_TRUE(stub_->CollectTrace(&collecting, {}, &collected).ok());
  EXPECT_EQ(collected.epoch(), 1u);
  EXPECT_THAT(collected.compute_nodes(), ElementsAre("c0"));
  EXPECT_THAT(collected.memory_nodes(), ElementsAre("m0"));
  const uint64_t id = compute.Read(v1::CoordinatorMessage::kTrace).trace().collect_id();
  EXPECT_NE(id, 0u);
  v1::ReadTraceResponse trace;
  EXPECT_EQ(ReadTrace("c0", trace).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadTrace("c9", trace).error_code(), grpc::StatusCode::NOT_FOUND);

  message.mutable_trace()->set_id(id);
  for (const uint64_t word : {1, 2, 3, 4}) {
    message.mutable_trace()->add_words(word);
  }
  message.mutable_trace()->set_dropped(5);
  ASSERT_TRUE(compute.Write(message));

  const auto deadline = std::chrono::steady_clock::now() + NodeClient::kLong;
  grpc::Status read = ReadTrace("c0", trace);
  while (read.error_code() == grpc::StatusCode::UNAVAILABLE &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    read = ReadTrace("c0", trace);
  }
  ASSERT_TRUE(read.ok()) << read.error_message();
  EXPECT_EQ(trace.trace().id(), id);
  EXPECT_EQ(trace.trace().dropped(), 5u);
  EXPECT_THAT(trace.trace().words(), ElementsAre(1, 2, 3, 4));
  EXPECT_LE(std::abs(trace.clock_offset() - kAhead), trace.clock_error() + 1) << "but for rounding";
}

// --- Members ---

TEST_F(ClusterServiceTest, AMemoryNodeIsAddedByWhoProvesTheSecret) {
  Form();
  std::string done;

  const grpc::Status added = Change(v1::MEMBER_CHANGE_KIND_ADD, "m1", done);

  EXPECT_TRUE(added.ok()) << added.error_message();
  EXPECT_THAT(done, HasSubstr("m1"));
  EXPECT_EQ(NodeOf(Status(), "m1").state(), "absent");
}

TEST_F(ClusterServiceTest, ChangesOfMembersAreRefusedWithTheirReason) {
  Form();
  std::string done;

  EXPECT_EQ(Change(v1::MEMBER_CHANGE_KIND_ADD, "m1", done,
                   [](v1::MemberChange& change) { change.set_node("m2"); })
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Change(v1::MEMBER_CHANGE_KIND_UNSPECIFIED, "m1", done).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Change(v1::MEMBER_CHANGE_KIND_DRAIN, "m7", done).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Change(v1::MEMBER_CHANGE_KIND_ADD, "c0", done).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Change(v1::MEMBER_CHANGE_KIND_DRAIN, "m0", done).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Status().nodes_size(), 2);
}

}  // namespace
}  // namespace lamina::coordinator
