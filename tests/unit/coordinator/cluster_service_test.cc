// SPDX-License-Identifier: Apache-2.0
//
// Control streams of nodes over loopback within this process: who is welcome, in which order both
// sides speak, and how a node's end and its faults are answered.

#include "coordinator/cluster_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/version.h"
#include "tests/unit/coordinator/cluster_service_fixture.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- Who is welcome ---

TEST_F(ClusterServiceTest, AStreamBeginsWithAChallengeAndAProofIsAnsweredByOne) {
  NodeClient& node = Attach("c0");
  const v1::CoordinatorMessage challenge = node.Read(v1::CoordinatorMessage::kChallenge);
  EXPECT_EQ(challenge.challenge().nonce().size(), ClusterSecret::kNonceBytes);
  EXPECT_FALSE(challenge.challenge().has_secret());
  const v1::NodeMessage hello = node.HelloFor(challenge.challenge());

  ASSERT_TRUE(node.Write(hello));

  const v1::CoordinatorMessage welcome = node.Read(v1::CoordinatorMessage::kWelcome);
  EXPECT_TRUE(control::CheckWelcome(ClusterSecret(), challenge.challenge(), hello.hello(),
                                    welcome.welcome())
                  .ok());
  const v1::Node joined = NodeOf(AwaitState("waiting for m0"), "c0");
  EXPECT_EQ(joined.state(), "joined");
  EXPECT_EQ(joined.role(), "compute");
  EXPECT_EQ(joined.device(), "cpu");
  EXPECT_EQ(joined.pid(), 4711);
}

// Each with its code, by which the node knows whether to try again; then the stream ends.
struct WrongHello {
  const char* name;
  std::function<void(v1::Hello&)> change;
  absl::StatusCode code;
  const char* says;
};

class WrongHelloTest : public ClusterServiceTest,
                       public ::testing::WithParamInterface<WrongHello> {};

TEST_P(WrongHelloTest, IsRefused) {
  NodeClient& node = Attach("c0");

  node.Greet(GetParam().change);

  v1::CoordinatorMessage message;
  ASSERT_TRUE(node.ReadTo(v1::CoordinatorMessage::kRefused, message));
  EXPECT_THAT(message.refused().reason(), HasSubstr(GetParam().says));
  EXPECT_EQ(message.refused().code(), static_cast<int>(GetParam().code));
  EXPECT_TRUE(node.Ended());
  EXPECT_TRUE(node.Finish().ok());
  EXPECT_EQ(NodeOf(Status(), "c0").state(), "absent");
}

std::vector<WrongHello> WrongHellos() {
  return {{"Proof", [](v1::Hello& hello) { hello.set_proof(std::string(32, 'x')); },
           absl::StatusCode::kPermissionDenied, "c0"},
          {"NameOfTheProof", [](v1::Hello& hello) { hello.set_name("m0"); },
           absl::StatusCode::kPermissionDenied, "m0"},
          {"LongText", [](v1::Hello& hello) { hello.set_device(std::string(1001, 'x')); },
           absl::StatusCode::kInvalidArgument, "the device of a Hello has 1001 bytes"},
          {"ControlCharacters", [](v1::Hello& hello) { hello.set_kernels("a\nb"); },
           absl::StatusCode::kInvalidArgument, "the kernels of a Hello"},
          {"Rate",
           [](v1::Hello& hello) {
             hello.set_bandwidth_bytes_per_second(std::numeric_limits<double>::quiet_NaN());
           },
           absl::StatusCode::kInvalidArgument, "a Hello with bandwidth_bytes_per_second nan"},
          {"Version", [](v1::Hello& hello) { hello.set_version("0.0"); },
           absl::StatusCode::kFailedPrecondition, "0.0"},
          {"Model", [](v1::Hello& hello) { hello.set_model_fingerprint("another"); },
           absl::StatusCode::kFailedPrecondition, "model"}};
}

INSTANTIATE_TEST_SUITE_P(Hellos, WrongHelloTest, ::testing::ValuesIn(WrongHellos()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(ClusterServiceTest, ANameThatTheClusterDoesNotHaveIsRefused) {
  NodeClient& node = Attach("c7");

  node.Join();  // It has proved what it is; the engine knows no such node.

  const v1::CoordinatorMessage refused = node.Read(v1::CoordinatorMessage::kRefused);
  EXPECT_THAT(refused.refused().reason(), HasSubstr("c7"));
  EXPECT_TRUE(node.Ended());
}

TEST_F(ClusterServiceTest, ASecondNodeOfALiveNameMayTryAgain) {
  NodeClient& first = Attach("c0");
  first.Join();
  AwaitState("waiting for m0");
  NodeClient& second = Attach("c0");

  second.Join();

  const v1::CoordinatorMessage refused = second.Read(v1::CoordinatorMessage::kRefused);
  EXPECT_EQ(refused.refused().code(), static_cast<int>(absl::StatusCode::kAlreadyExists));
  EXPECT_TRUE(second.Ended());
  EXPECT_EQ(NodeOf(Status(), "c0").state(), "joined") << "the first one stays";
}

TEST_F(ClusterServiceTest, ASecondHelloChangesNothing) {
  NodeClient& node = Attach("c0");
  const v1::CoordinatorMessage challenge = node.Read(v1::CoordinatorMessage::kChallenge);
  v1::NodeMessage hello = node.HelloFor(challenge.challenge());
  ASSERT_TRUE(node.Write(hello));
  node.Read(v1::CoordinatorMessage::kWelcome);
  hello.mutable_hello()->set_name("m0");
  hello.mutable_hello()->set_role(v1::ROLE_MEMORY);

  ASSERT_TRUE(node.Write(hello));
  v1::NodeMessage status;
  status.mutable_status()->set_busy_share(0.25);
  ASSERT_TRUE(node.Write(status));

  const v1::GetStatusResponse seen = AwaitStatus([](const v1::GetStatusResponse& response) {
    return NodeOf(response, "c0").busy_share() == 0.25;
  });
  EXPECT_EQ(NodeOf(seen, "m0").state(), "absent");
}

TEST_F(ClusterServiceTest, WhatIsSaidBeforeTheHelloIsNotHeard) {
  NodeClient& node = Attach("c0");
  v1::NodeMessage message;
  message.mutable_prepared()->set_epoch(1);
  ASSERT_TRUE(node.Write(message));
  message.mutable_ready()->set_epoch(1);
  ASSERT_TRUE(node.Write(message));
  message.mutable_status()->set_busy_share(0.5);
  ASSERT_TRUE(node.Write(message));
  message.mutable_fault()->set_message("of nobody");
  ASSERT_TRUE(node.Write(message));
  message.mutable_leaving();
  ASSERT_TRUE(node.Write(message));
  ASSERT_TRUE(node.Write({}));

  node.Join();

  const v1::Node joined = NodeOf(AwaitState("waiting for m0"), "c0");
  EXPECT_EQ(joined.state(), "joined");
  EXPECT_EQ(joined.busy_share(), 0);
  late_clock_.now = 2 * LateStreams::kLate;
  streams_.Look();
  EXPECT_EQ(late_, 0) << "nothing is kept of what it has said";
}

TEST_F(ClusterServiceTest, StreamsWithoutAProofHaveFewPlaces) {
  for (int i = 0; i < JoinGate::kUnprovedMax; ++i) {
    Attach("c0").Read(v1::CoordinatorMessage::kChallenge);
  }

  NodeClient turned_away(*stub_, "c0");
  EXPECT_TRUE(turned_away.Ended());
  const grpc::Status status = turned_away.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("32 streams"));

  nodes_.front()->Cancel();
  const auto deadline = std::chrono::steady_clock::now() + NodeClient::kLong;
  bool has_place = false;
  while (!has_place && std::chrono::steady_clock::now() < deadline) {
    NodeClient next(*stub_, "c0");
    v1::CoordinatorMessage message;
    has_place = next.ReadTo(v1::CoordinatorMessage::kChallenge, message);
    next.Cancel();
  }
  EXPECT_TRUE(has_place) << "a stream that ends gives its place back";
}

TEST_F(ClusterServiceTest, AProofGivesThePlaceBack) {
  Attach("c0").Join();
  for (int i = 0; i < JoinGate::kUnprovedMax; ++i) {
    Attach("m0").Read(v1::CoordinatorMessage::kChallenge);
  }
}

// --- An epoch ---

TEST_F(ClusterServiceTest, AnEpochBeginsInTheOrderOfTheProtocol) {
  NodeClient& compute = Attach("c0");
  compute.Join();
  NodeClient& memory = Attach("m0");
  memory.Join();

  const v1::Configure configure = compute.Prepare();
  EXPECT_EQ(configure.epoch(), 1u);
  EXPECT_THAT(configure.compute_nodes(), ElementsAre("c0"));
  EXPECT_THAT(configure.memory_nodes(), ElementsAre("m0"));
  EXPECT_EQ(configure.transport(), "fake://one");
  EXPECT_EQ(memory.Prepare().epoch(), 1u);

  const v1::Connect connect = compute.Connect();
  EXPECT_EQ(connect.epoch(), 1u);
  EXPECT_THAT(connect.compute_regions(), ElementsAre("region of c0"));
  EXPECT_THAT(connect.memory_regions(), ElementsAre("region of m0"));
  EXPECT_NE(Status().state(), "serving") << "one is not ready";
  memory.Connect();

  const v1::GetStatusResponse status = AwaitState("serving");
  EXPECT_EQ(status.epoch(), 1u);
  EXPECT_EQ(status.model(), "own");
  EXPECT_EQ(status.version(), kVersion);
  EXPECT_EQ(NodeOf(status, "m0").state(), "ready");
  EXPECT_EQ(NodeOf(status, "m0").windows(), "host memory");
}

TEST_F(ClusterServiceTest, PlansGoOutAndResultsComeBack) {
  NodeClient& compute = *Form().first;
  const auto sink = std::make_shared<Tokens>();
  engine_.Submit({.prompt = {1, 2, 3}, .max_tokens = 1}, Engine::NewKey(), sink);

  const v1::CoordinatorMessage message = compute.Read(v1::CoordinatorMessage::kPlan);
  const v1::StepPlan& plan = message.plan();
  ASSERT_EQ(plan.joins_size(), 1);
  EXPECT_THAT(plan.joins(0).tokens(), ElementsAre(1, 2, 3));
  v1::NodeMessage answer;
  v1::StepResult& result = *answer.mutable_step_result();
  result.set_epoch(plan.epoch());
  result.set_lane(plan.lane());
  result.set_step(plan.step());
  v1::SampledToken& token = *result.add_tokens();
  token.set_sequence(plan.joins(0).id());
  token.set_position(3);
  token.set_token(42);
  token.set_finish(static_cast<uint32_t>(plan::FinishReason::kLength));
  ASSERT_TRUE(compute.Write(answer));

  EXPECT_TRUE(sink->Await().ok());
  EXPECT_THAT(sink->tokens(), ElementsAre(42));
  EXPECT_EQ(Status().requests_finished(), 1u);
}

TEST_F(ClusterServiceTest, TheEndOfAStreamIsTheEndOfItsNode) {
  const auto [compute, memory] = Form();

  memory->Cancel();

  const v1::GetStatusResponse status = AwaitState("waiting for m0");
  EXPECT_EQ(NodeOf(status, "m0").state(), "absent");
  EXPECT_NE(NodeOf(status, "c0").state(), "absent");

  // It comes back on a new stream, to a new epoch.
  NodeClient& again = Attach("m0");
  again.Join();
  EXPECT_EQ(again.Prepare().epoch(), 2u);
  v1::CoordinatorMessage configure;
  ASSERT_TRUE(compute->ReadTo(v1::CoordinatorMessage::kConfigure, configure));
  EXPECT_EQ(configure.configure().epoch(), 2u);
}

TEST_F(ClusterServiceTest, AStreamThatTheNodeClosesIsOver) {
  NodeClient& node = Attach("c0");
  node.Join();
  AwaitState("waiting for m0");

  EXPECT_TRUE(node.Finish().ok());

  AwaitStatus(
      [](const v1::GetStatusResponse& status) { return NodeOf(status, "c0").state() == "absent"; });
}

TEST_F(ClusterServiceTest, AFaultOfTheTransportIsAnsweredWithTheNextOne) {
  NodeClient& compute = *Form().first;
  v1::NodeMessage message;
  v1::Fault& fault = *message.mutable_fault();
  fault.set_epoch(1);
  fault.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  fault.set_message("no such network");
  fault.set_transport(true);

  ASSERT_TRUE(compute.Write(message));

  const v1::CoordinatorMessage configure = compute.Read(v1::CoordinatorMessage::kConfigure);
  EXPECT_EQ(configure.configure().epoch(), 2u);
  EXPECT_EQ(configure.configure().transport(), "fake://other");
}

TEST_F(ClusterServiceTest, AnyOtherFaultIsAnsweredWithAnEpochOverTheSameTransport) {
  NodeClient& compute = *Form().first;
  v1::NodeMessage message;
  v1::Fault& fault = *message.mutable_fault();
  fault.set_epoch(1);
  fault.set_code(static_cast<int>(absl::StatusCode::kInternal));
  fault.set_message("window header: rows 3 where the plan says 2");

  ASSERT_TRUE(compute.Write(message));

  const v1::CoordinatorMessage configure = compute.Read(v1::CoordinatorMessage::kConfigure);
  EXPECT_EQ(configure.configure().epoch(), 2u);
  EXPECT_EQ(configure.configure().transport(), "fake://one");
}

TEST_F(ClusterServiceTest, AFaultOfAnEarlierEpochIsNone) {
  NodeClient& compute = *Form().first;
  v1::NodeMessage message;
  message.mutable_fault()->set_epoch(0);
  message.mutable_fault()->set_code(static_cast<int>(absl::StatusCode::kInternal));
  ASSERT_TRUE(compute.Write(message));
  message.mutable_status()->set_busy_share(0.75);
  ASSERT_TRUE(compute.Write(message));

  const v1::GetStatusResponse status = AwaitStatus([](const v1::GetStatusResponse& response) {
    return NodeOf(response, "c0").busy_share() == 0.75;
  });
  EXPECT_EQ(status.epoch(), 1u);
  EXPECT_EQ(status.state(), "serving");
}

}  // namespace
}  // namespace lamina::coordinator
