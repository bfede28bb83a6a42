// SPDX-License-Identifier: Apache-2.0
//
// NodeDaemon: what the daemons of compute and memory nodes do alike next to the node's own work:
// pages for metrics and health, words for the service manager, the ready file, and an end that
// drains.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/cluster_secret.h"
#include "config/cluster_config.h"
#include "daemon/daemon.h"
#include "daemon/http_server.h"
#include "daemon/service_manager.h"
#include "telemetry/node_counters.h"

namespace lamina::daemon {

// Where a node joins its cluster, and what it proves there.
struct ClusterAccess {
  std::string coordinator;  // host:port
  ClusterSecret secret;
};

// Reads what a node needs to join, checks the cluster's TLS files, and keeps UCX to the cluster's
// network. Before UCX is used.
// Errors: of CoordinatorAddress(), LoadClusterSecret(), CheckTlsFiles() and KeepUcxTo().
absl::StatusOr<ClusterAccess> PrepareToJoin(const DaemonFlags& flags, const ClusterConfig& config);

// A node as its daemon sees it. Functions are called from any thread.
struct WatchedNode {
  std::string role;  // A label of its metrics: "compute", "memory".
  std::string http;  // host:port of its pages; empty: it has none.
  // Reads of K and V in bytes a second, measured at start; nullopt where it holds none.
  std::optional<double> read_bandwidth;
  std::function<telemetry::NodeCounters()> counters;
  std::function<bool()> attached;    // Whether the stream to the coordinator is open.
  std::function<void(Nanos)> drain;  // Has the node leave, within so long.
};

class NodeDaemon {
 public:
  // What the functions of `node` use must outlive it. Requires: EndOnTermination() was called.
  // Errors: of HttpServer::Start().
  static absl::StatusOr<std::unique_ptr<NodeDaemon>> Start(const DaemonFlags& flags,
                                                           const ClusterConfig& config,
                                                           const WatchedNode& node);
  NodeDaemon(const NodeDaemon&) = delete;
  NodeDaemon& operator=(const NodeDaemon&) = delete;

  // A coordinator has welcomed the node. A ready file that cannot be written is a warning.
  void OnAttached();

 private:
  NodeDaemon(const DaemonFlags& flags, const WatchedNode& node, Nanos drain_grace,
             std::unique_ptr<HttpServer> http);

  const DaemonFlags flags_;
  const std::unique_ptr<HttpServer> http_;
  const std::unique_ptr<ServiceManager> manager_;
  const TerminationHandlers handlers_;  // Ends first: it uses what is above.
};

}  // namespace lamina::daemon
