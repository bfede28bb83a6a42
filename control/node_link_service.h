// SPDX-License-Identifier: Apache-2.0
//
// NodeLink: the node's end of the control stream. Joins the coordinator, keeps trying while it is
// not there, hands its messages to a NodeHandler, and carries results back.
//
// Threading: Run() blocks and calls the handler; a second thread writes; a third ticks status.
// Stop() from any thread.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/cluster_secret.h"
#include "common/tls.h"
#include "control/keepalive_service.h"
#include "control/node_handler.h"

namespace lamina::control {

class NodeLink final : public NodeReporter {
 public:
  // Proves that it knows `secret`, and serves only a coordinator that proves the same.
  // With `tls` it speaks to the coordinator over TLS, and shows its certificate.
  NodeLink(std::string coordinator, NodeIdentity identity, ClusterSecret secret, TlsFiles tls = {},
           Keepalive keepalive = {});
  ~NodeLink() override;
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Serves until Stop(), or until the coordinator drains this node. A lost coordinator is tried
  // again, with a pause that grows to two seconds. `on_attached` is called whenever a coordinator
  // has welcomed the node. Errors: kFailedPrecondition  the coordinator refused this node, or did
  // not prove that it knows
  //                              the secret; says why. Do not retry unchanged.
  absl::Status Run(NodeHandler& handler, const std::function<void()>& on_attached);

  void Stop();

  // Asks the coordinator to let this node go, and goes on serving until it does: Run() then ends.
  // After `grace`, or while no coordinator is there, as Stop().
  void Drain(Nanos grace);

  // Whether the stream to the coordinator is open. From any thread.
  bool attached() const;

  void ReportResult(plan::StepResult result) override;
  void ReportFault(uint64_t epoch, const absl::Status& status) override;
  void ReportSpill(const plan::SpillReport& report) override;
  void ReportLinks(uint64_t epoch, std::vector<LinkReport> links) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina::control
