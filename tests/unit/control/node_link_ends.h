// SPDX-License-Identifier: Apache-2.0
//
// Both ends of a NodeLink, for its tests: a handler that does nothing, and how a coordinator
// greets.

#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "control/node_link_service.h"
#include "control/node_proof_service.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::control {

// Takes part in nothing, and stops the link when its stream has ended.
class IdleHandler final : public NodeHandler {
 public:
  // It stops the link when as many streams have ended.
  explicit IdleHandler(NodeLink& link, int streams = 1) : link_(link), streams_(streams) {}

  absl::Status LoadLayers(const plan::Stage&) override { return absl::OkStatus(); }
  absl::StatusOr<plan::PolicyTimes> MeasurePolicies() override { return measured; }
  absl::StatusOr<PreparedNode> Configure(const plan::EpochConfig&) override {
    return PreparedNode();
  }
  absl::Status Connect(const plan::EpochPeers&) override { return absl::OkStatus(); }
  void TakePlan(plan::StepPlan) override {}
  void LeaveEpoch() override {
    attached_at_the_end = link_.attached();
    if (--streams_ == 0) {
      link_.Stop();
    }
  }
  telemetry::NodeCounters Counters() const override { return {}; }
  telemetry::TraceRing& ring() override { return ring_; }

  bool attached_at_the_end = true;
  absl::StatusOr<plan::PolicyTimes> measured = plan::PolicyTimes();

 private:
  NodeLink& link_;
  int streams_;
  telemetry::TraceRing ring_;
};

using ServerStream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::NodeMessage>;

// The coordinator's end of a greeting. Whether the node proved itself.
inline bool Welcome(ServerStream& stream, const ClusterSecret& secret = {}) {
  const v1::Challenge challenge = MakeChallenge(secret);
  v1::CoordinatorMessage message;
  *message.mutable_challenge() = challenge;
  v1::NodeMessage hello;
  if (!stream.Write(message) || !stream.Read(&hello)) {
    return false;
  }
  absl::StatusOr<v1::Welcome> welcome = WelcomeNode(secret, challenge, hello.hello());
  if (!welcome.ok()) {
    message.mutable_refused()->set_reason(std::string(welcome.status().message()));
    stream.Write(message);
    return false;
  }
  *message.mutable_welcome() = *std::move(welcome);
  return stream.Write(message);
}

}  // namespace lamina::control
