// SPDX-License-Identifier: Apache-2.0
//
// NodeClient: a node's end of its control stream, message by message as the test wants it.
//
// Threading: one thread.

#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/version.h"
#include "control/node_proof_service.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::coordinator {

class NodeClient {
 public:
  static constexpr std::chrono::seconds kLong{60};  // Only a failure waits for it.

  NodeClient(v1::Cluster::Stub& stub, std::string name) : name_(std::move(name)) {
    context_.set_deadline(std::chrono::system_clock::now() + kLong);
    stream_ = stub.Attach(&context_);
  }

  // The next message, which must be of that kind.
  v1::CoordinatorMessage Read(v1::CoordinatorMessage::MessageCase kind) {
    v1::CoordinatorMessage message;
    EXPECT_TRUE(stream_->Read(&message)) << name_ << " has no stream any more";
    EXPECT_EQ(message.message_case(), kind) << name_ << " got " << message.DebugString();
    return message;
  }
  bool Ended() {
    v1::CoordinatorMessage message;
    return !stream_->Read(&message);
  }
  // Reads until a message of that kind comes; false where the stream ends first.
  bool ReadTo(v1::CoordinatorMessage::MessageCase kind, v1::CoordinatorMessage& message) {
    while (stream_->Read(&message)) {
      if (message.message_case() == kind) {
        return true;
      }
    }
    return false;
  }
  bool Write(const v1::NodeMessage& message) { return stream_->Write(message); }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    stream_->WritesDone();
    return stream_->Finish();
  }

  // As the cluster's node of that name says it, in answer to the challenge.
  v1::NodeMessage HelloFor(const v1::Challenge& challenge) const {
    v1::NodeMessage message;
    v1::Hello& hello = *message.mutable_hello();
    const bool is_memory = name_.front() == 'm';
    hello.set_name(name_);
    hello.set_role(is_memory ? v1::ROLE_MEMORY : v1::ROLE_COMPUTE);
    hello.set_version(std::string(kVersion));
    hello.set_device("cpu");
    hello.set_pid(4711);
    hello.set_capacity_bytes(1 << 20);
    hello.set_bandwidth_bytes_per_second(1e9);
    hello.set_model_fingerprint(is_memory ? "" : "model");
    EXPECT_TRUE(control::ProveNode(ClusterSecret(), challenge, hello).ok());
    return message;
  }
  // Says Hello, after it was changed.
  void Greet(const std::function<void(v1::Hello&)>& change = nullptr) {
    const v1::CoordinatorMessage challenge = Read(v1::CoordinatorMessage::kChallenge);
    v1::NodeMessage hello = HelloFor(challenge.challenge());
    if (change) {
      change(*hello.mutable_hello());
    }
    EXPECT_TRUE(Write(hello));
  }
  void Join() {
    Greet();
    Read(v1::CoordinatorMessage::kWelcome);
  }

  // Reads Configure, and is prepared for it.
  v1::Configure Prepare() {
    const v1::CoordinatorMessage configure = Read(v1::CoordinatorMessage::kConfigure);
    v1::NodeMessage message;
    message.mutable_prepared()->set_epoch(configure.configure().epoch());
    message.mutable_prepared()->set_region("region of " + name_);
    message.mutable_prepared()->set_windows("host memory");
    EXPECT_TRUE(Write(message));
    return configure.configure();
  }
  v1::Connect Connect() {
    const v1::CoordinatorMessage connect = Read(v1::CoordinatorMessage::kConnect);
    v1::NodeMessage message;
    message.mutable_ready()->set_epoch(connect.connect().epoch());
    EXPECT_TRUE(Write(message));
    return connect.connect();
  }

 private:
  const std::string name_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessage, v1::CoordinatorMessage>> stream_;
};

}  // namespace lamina::coordinator
