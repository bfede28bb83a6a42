// SPDX-License-Identifier: Apache-2.0
#include "control/node_link_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>

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
  NodeLink link(absl::StrCat("127.0.0.1:", port), {.name = "c0"});
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

// Carries one connection to a server, until it is told to say nothing more: a host that vanished.
class Relay {
 public:
  Relay(const std::string& from, const std::string& to) : listening_(Socket()), onward_(Socket()) {
    sockaddr_un address = Address(from);
    EXPECT_EQ(bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listening_, 1), 0);
    address = Address(to);
    EXPECT_EQ(connect(onward_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    thread_ = std::thread([this] { Carry(); });
  }
  ~Relay() {
    ends_ = true;
    thread_.join();
    close(listening_);
    close(onward_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  void Vanish() { vanished_ = true; }

 private:
  static int Socket() { return socket(AF_UNIX, SOCK_STREAM, 0); }
  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return address;
  }

  void Carry() {
    int accepted = -1;
    while (!ends_) {
      std::array<pollfd, 2> sockets = {
          pollfd{.fd = accepted < 0 ? listening_ : accepted, .events = POLLIN, .revents = 0},
          pollfd{.fd = onward_, .events = POLLIN, .revents = 0}};
      if (vanished_ || poll(sockets.data(), sockets.size(), /*timeout=*/10) <= 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      if (accepted < 0) {
        accepted = accept(listening_, nullptr, nullptr);
        continue;
      }
      for (const pollfd& from : sockets) {
        std::array<char, 4096> bytes;
        const ssize_t count =
            from.revents == 0 ? 0 : recv(from.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (count > 0) {
          send(from.fd == onward_ ? accepted : onward_, bytes.data(), static_cast<size_t>(count),
               MSG_NOSIGNAL);
        }
      }
    }
    close(accepted);
  }

  const int listening_;
  const int onward_;
  std::atomic<bool> vanished_ = false;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// A coordinator that says nothing, and hears each stream to its end.
class SilentCoordinator final : public v1::Cluster::Service {
 public:
  grpc::Status Attach(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::NodeMessage>* stream) override {
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
  NodeLink link("unix:" + relay_path, {.name = "c0"}, keepalive);
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

}  // namespace
}  // namespace lamina::control
