// SPDX-License-Identifier: Apache-2.0
#include "control/node_link_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/node_proof_service.h"
#include "lamina/v1/cluster.grpc.pb.h"
#include "tests/unit/control/node_link_ends.h"
#include "tests/unit/control/relay.h"

namespace lamina::control {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A coordinator that ends each stream when it is told to.
class EndingCoordinator final : public v1::Cluster::Service {
 public:
  grpc::Status Attach(grpc::ServerContext*, ServerStream* stream) override {
    Welcome(*stream);
    end.get_future().wait();
    return grpc::Status::OK;
  }
  std::promise<void> end;
};

// Hosts of companies have one in their environment, for the web.
TEST(NodeLinkTest, AWebProxyOfTheEnvironmentIsNotAsked) {
  EndingCoordinator coordinator;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  setenv("http_proxy", "http://127.0.0.1:1", /*overwrite=*/1);
  unsetenv("no_proxy");
  NodeLink link(absl::StrCat("127.0.0.1:", port), {.name = "c0"}, ClusterSecret());
  IdleHandler handler(link);
  std::atomic<bool> attached{false};
  std::thread watchdog([&] {
    for (int i = 0; i < 100 && !attached; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    link.Stop();
  });

  const absl::Status status = link.Run(handler, [&] {
    attached = true;
    coordinator.end.set_value();
  });

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(attached);
  unsetenv("http_proxy");
  watchdog.join();
  server->Shutdown();
}

TEST(NodeLinkTest, IsAttachedWhileItsStreamIsOpen) {
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/node_link_test.sock");
  EndingCoordinator coordinator;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  NodeLink link(address, {.name = "c0"}, ClusterSecret());
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

// A coordinator that is asked by a node to let it go, and does or does not.
class AskedCoordinator final : public v1::Cluster::Service {
 public:
  explicit AskedCoordinator(bool lets_go) : lets_go_(lets_go) {}
  grpc::Status Attach(grpc::ServerContext*, ServerStream* stream) override {
    Welcome(*stream);
    v1::NodeMessage message;
    bool first = true;
    while (stream->Read(&message)) {
      if (std::exchange(first, false)) {
        heard.set_value();
      }
      asked = asked || message.has_leaving();
      if (asked && lets_go_) {
        break;
      }
    }
    return grpc::Status::OK;
  }
  std::promise<void> heard;
  std::atomic<bool> asked{false};

 private:
  const bool lets_go_;
};

// How long a node with that grace serves on; whether it asked.
bool AsksAndEnds(bool lets_go, Nanos grace) {
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/node_link_leave.sock");
  AskedCoordinator coordinator(lets_go);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  NodeLink link(address, {.name = "c0"}, ClusterSecret());
  IdleHandler handler(link);
  std::thread told([&] {
    coordinator.heard.get_future().wait();
    link.Drain(grace);
  });
  const absl::Status status = link.Run(handler, [] {});
  told.join();
  server->Shutdown(std::chrono::system_clock::now());
  EXPECT_TRUE(status.ok()) << status;
  return coordinator.asked;
}

TEST(NodeLinkTest, ANodeThatIsToldToStopAsksAndServesUntilItIsLetGo) {
  EXPECT_TRUE(AsksAndEnds(/*lets_go=*/true, Seconds(3600)));
}

TEST(NodeLinkTest, ANodeThatIsNotLetGoLeavesWhenItsGraceIsOver) {
  EXPECT_TRUE(AsksAndEnds(/*lets_go=*/false, Millis(200)));
}

// A coordinator that drains whoever comes.
class DrainingCoordinator final : public v1::Cluster::Service {
 public:
  grpc::Status Attach(grpc::ServerContext*, ServerStream* stream) override {
    ++streams;
    Welcome(*stream);
    v1::CoordinatorMessage message;
    message.mutable_leave()->set_for_good(true);
    stream->Write(message);
    return grpc::Status::OK;
  }
  std::atomic<int> streams{0};
};

TEST(NodeLinkTest, ANodeThatIsDrainedEndsAndDoesNotComeBack) {
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/node_link_drain.sock");
  DrainingCoordinator coordinator;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  NodeLink link(address, {.name = "m0", .is_memory = true}, ClusterSecret());
  IdleHandler handler(link, /*streams=*/100);  // It never stops the link.
  const absl::Status status = link.Run(handler, [] {});
  server->Shutdown();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(coordinator.streams, 1);
}

TEST(NodeLinkTest, WithoutACoordinatorThereIsNobodyToAsk) {
  NodeLink link("unix:/no/such/socket", {.name = "c0"}, ClusterSecret());
  IdleHandler handler(link);
  std::thread told([&link] { link.Drain(Seconds(3600)); });
  EXPECT_TRUE(link.Run(handler, [] {}).ok());
  told.join();
}

// A coordinator that says nothing, and hears each stream to its end.
class SilentCoordinator final : public v1::Cluster::Service {
 public:
  grpc::Status Attach(grpc::ServerContext*, ServerStream* stream) override {
    Welcome(*stream);
    v1::NodeMessage message;
    while (stream->Read(&message)) {
      ++messages;
    }
    ended.set_value();
    return grpc::Status::OK;
  }
  std::atomic<int> messages = 0;
  std::promise<void> ended;
};

TEST(NodeLinkTest, ACoordinatorThatVanishedIsNoticedAndAnIdleOneKept) {
  const Keepalive keepalive = {.interval = Millis(200), .timeout = Millis(1000)};
  const std::string server_path = absl::StrCat(testing::TempDir(), "/keepalive_server.sock");
  const std::string relay_path = absl::StrCat(testing::TempDir(), "/keepalive_relay.sock");
  unlink(relay_path.c_str());
  SilentCoordinator coordinator;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + server_path, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  AllowKeepalive(keepalive, builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  Relay relay(relay_path, server_path);
  NodeLink link("unix:" + relay_path, {.name = "c0"}, ClusterSecret(), TlsFiles(), keepalive);
  IdleHandler handler(link);
  std::promise<void> attached;
  auto run = std::async(std::launch::async,
                        [&] { return link.Run(handler, [&attached] { attached.set_value(); }); });
  attached.get_future().wait();
  std::future<void> ended = coordinator.ended.get_future();

  // Many intervals in which the coordinator says nothing.
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(3)), std::future_status::timeout);
  EXPECT_TRUE(link.attached());
  EXPECT_GT(coordinator.messages, 1);

  relay.Vanish();
  ASSERT_EQ(run.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_FALSE(handler.attached_at_the_end);
  server->Shutdown(std::chrono::system_clock::now());
}

// A coordinator that greets as `greet` does, and then hears the stream to its end.
class GreetingCoordinator final : public v1::Cluster::Service {
 public:
  explicit GreetingCoordinator(std::function<void(ServerStream&)> greet)
      : greet_(std::move(greet)) {}

  grpc::Status Attach(grpc::ServerContext*, ServerStream* stream) override {
    greet_(*stream);
    v1::NodeMessage message;
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }

 private:
  const std::function<void(ServerStream&)> greet_;
};

ClusterSecret SecretOf(const std::string& token) {
  const std::string path = testing::TempDir() + "/node_link_token";
  std::ofstream(path, std::ios::trunc) << token;
  chmod(path.c_str(), 0600);
  return ClusterSecret::Read(path).value();
}

// How a node with `secret` ends at such a coordinator, which it must not take for its own.
std::string EndAt(std::function<void(ServerStream&)> greet, const ClusterSecret& secret) {
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/greeting.sock");
  GreetingCoordinator coordinator(std::move(greet));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  NodeLink link(address, {.name = "c0"}, secret);
  IdleHandler handler(link);
  bool attached = false;

  const absl::Status status = link.Run(handler, [&] {
    attached = true;
    link.Stop();
  });

  EXPECT_FALSE(attached);
  server->Shutdown(std::chrono::system_clock::now());
  return status.ToString();
}

// Welcomes the node, and then refuses it or ends the stream, as `taken` says for one stream after
// the other. After the last it ends each at once.
class ForgetfulCoordinator final : public v1::Cluster::Service {
 public:
  explicit ForgetfulCoordinator(std::vector<bool> taken) : taken_(std::move(taken)) {}

  grpc::Status Attach(grpc::ServerContext*, ServerStream* stream) override {
    Welcome(*stream);
    const size_t turn = streams++;
    if (turn < taken_.size() && taken_[turn]) {
      v1::CoordinatorMessage message;
      message.mutable_refused()->set_reason("a node named c0 is already part of this cluster");
      message.mutable_refused()->set_code(static_cast<int32_t>(absl::StatusCode::kAlreadyExists));
      stream->Write(message);
    }
    return grpc::Status::OK;
  }
  std::atomic<size_t> streams = 0;

 private:
  const std::vector<bool> taken_;
};

// The end of a node at such a coordinator, which it leaves after so many streams.
absl::Status EndAtForgetful(ForgetfulCoordinator& coordinator, int streams) {
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/forgetful.sock");
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  NodeLink link(address, {.name = "c0"}, ClusterSecret());
  IdleHandler handler(link, streams);
  const absl::Status status = link.Run(handler, [] {});
  server->Shutdown(std::chrono::system_clock::now());
  return status;
}

TEST(NodeLinkTest, ANameThatAnotherHasIsNoReasonToTryAgain) {
  ForgetfulCoordinator coordinator({true});

  const absl::Status status = EndAtForgetful(coordinator, /*streams=*/2);

  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_EQ(coordinator.streams, 1u);
}

TEST(NodeLinkTest, AMemberThatLostItsStreamWaitsUntilItsNameIsFree) {
  ForgetfulCoordinator coordinator({false, true, true, false});

  const absl::Status status = EndAtForgetful(coordinator, /*streams=*/4);

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(coordinator.streams, 4u);
}

TEST(NodeLinkTest, ANodeWithTheSecretIsWelcome) {
  const ClusterSecret secret = SecretOf("0123456789abcdef");
  const std::string address = absl::StrCat("unix:", testing::TempDir(), "/welcome.sock");
  std::promise<bool> proved;
  GreetingCoordinator coordinator(
      [&](ServerStream& stream) { proved.set_value(Welcome(stream, secret)); });
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  NodeLink link(address, {.name = "c0"}, secret);
  IdleHandler handler(link);

  const absl::Status status = link.Run(handler, [&] { link.Stop(); });

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(proved.get_future().get());
  server->Shutdown(std::chrono::system_clock::now());
}

TEST(NodeLinkTest, ANodeWithoutASecretIsToldWhatToSet) {
  const ClusterSecret secret = SecretOf("0123456789abcdef");

  const std::string end =
      EndAt([&](ServerStream& stream) { Welcome(stream, secret); }, ClusterSecret());

  EXPECT_THAT(end, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("this node has none"),
                         HasSubstr("cluster_token_file")));
}

TEST(NodeLinkTest, ANodeWithASecretJoinsNoCoordinatorWithoutOne) {
  const std::string end =
      EndAt([&](ServerStream& stream) { Welcome(stream); }, SecretOf("0123456789abcdef"));

  EXPECT_THAT(end, AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("it has no secret"),
                         HasSubstr("cluster_token_file")));
}

TEST(NodeLinkTest, ANodeWithAnotherSecretIsRefused) {
  const ClusterSecret secret = SecretOf("0123456789abcdef");

  const std::string end = EndAt([&](ServerStream& stream) { Welcome(stream, secret); },
                                SecretOf("another secret than that"));

  EXPECT_THAT(end, AllOf(HasSubstr("refused by coordinator"), HasSubstr("c0 did not prove")));
}

TEST(NodeLinkTest, ACoordinatorThatOnlyPretendsToKnowTheSecretIsLeft) {
  // It sends the node's own proof back.
  const auto reflect = [](ServerStream& stream) {
    v1::CoordinatorMessage message;
    message.mutable_challenge()->set_nonce(DrawNonce());
    message.mutable_challenge()->set_has_secret(true);
    stream.Write(message);
    v1::NodeMessage hello;
    stream.Read(&hello);
    message.mutable_welcome()->set_proof(hello.hello().proof());
    stream.Write(message);
  };

  const std::string end = EndAt(reflect, SecretOf("0123456789abcdef"));

  EXPECT_THAT(end, HasSubstr("it did not prove that it knows the cluster's secret"));
}

TEST(NodeLinkTest, OrdersInsteadOfAWelcomeAreNotObeyed) {
  const auto order = [](ServerStream& stream) {
    v1::CoordinatorMessage message;
    message.mutable_challenge()->set_nonce(DrawNonce());
    message.mutable_challenge()->set_has_secret(true);
    stream.Write(message);
    v1::NodeMessage hello;
    stream.Read(&hello);
    message.mutable_configure()->set_epoch(7);
    stream.Write(message);
  };

  const std::string end = EndAt(order, SecretOf("0123456789abcdef"));

  EXPECT_THAT(end, HasSubstr("it did not prove that it knows the cluster's secret"));
}

}  // namespace
}  // namespace lamina::control
