// SPDX-License-Identifier: Apache-2.0
#include "daemon/node_daemon.h"

#include <unistd.h>

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "common/tls.h"
#include "common/ucx_environment.h"
#include "daemon/metrics_page.h"

namespace lamina::daemon {
namespace {

HttpServer::Handler PagesOf(const WatchedNode& node, const std::string& name) {
  const MetricLabels labels = {{"node", name}, {"role", node.role}};
  return DaemonPages(
      [counters_of = node.counters, bandwidth = node.read_bandwidth, labels] {
        MetricsPage page;
        const telemetry::NodeCounters counters = counters_of();
        AddNodeCounters(page, "lamina_", labels, counters);
        if (bandwidth.has_value()) {
          AddBandwidth(page, "lamina_", labels, *bandwidth, counters);
        }
        return page.Text();
      },
      [attached = node.attached] { return AttachedOrWhyNot(attached()); });
}

// A service manager that is told of the node from now on.
std::unique_ptr<ServiceManager> ManagerOf(const WatchedNode& node) {
  std::unique_ptr<ServiceManager> manager = ServiceManagerOfEnvironment();
  manager->Watch(
      [attached = node.attached] {
        return std::string(attached() ? "attached" : "waiting for the coordinator");
      },
      [counters = node.counters, watch = ProgressWatch()]() mutable {
        return watch.Alive(counters());
      });
  return manager;
}

}  // namespace

absl::StatusOr<ClusterAccess> PrepareToJoin(const DaemonFlags& flags, const ClusterConfig& config) {
  ClusterAccess access;
  LAMINA_ASSIGN_OR_RETURN(access.coordinator, CoordinatorAddress(flags, config));
  LAMINA_ASSIGN_OR_RETURN(access.secret, LoadClusterSecret(flags, config));
  LAMINA_RETURN_IF_ERROR(CheckTlsFiles(config.tls));
  LAMINA_ASSIGN_OR_RETURN(const std::string interface, KeepUcxTo(config.network, config.ports));
  if (!interface.empty()) {
    LogInfo("data goes over ", interface, ", the interface of ", config.network);
  }
  return access;
}

absl::StatusOr<std::unique_ptr<NodeDaemon>> NodeDaemon::Start(const DaemonFlags& flags,
                                                              const ClusterConfig& config,
                                                              const WatchedNode& node) {
  std::unique_ptr<HttpServer> http;
  if (!node.http.empty()) {
    LAMINA_ASSIGN_OR_RETURN(http,
                            HttpServer::Start(node.http, PagesOf(node, flags.name), config.ports));
  }
  return std::unique_ptr<NodeDaemon>(
      new NodeDaemon(flags, node, Seconds(config.drain_seconds), std::move(http)));
}

NodeDaemon::NodeDaemon(const DaemonFlags& flags, const WatchedNode& node, Nanos drain_grace,
                       std::unique_ptr<HttpServer> http)
    : flags_(flags),
      http_(std::move(http)),
      manager_(ManagerOf(node)),
      handlers_(
          [this, drain = node.drain, drain_grace] {
            manager_->Stopping();
            drain(drain_grace);
          },
          [] { _exit(1); }) {}

void NodeDaemon::OnAttached() {
  manager_->Ready();
  const absl::Status written = WriteReadyFile(flags_, "ready");
  if (!written.ok()) {
    LogWarning(written.message());
  }
}

}  // namespace lamina::daemon
