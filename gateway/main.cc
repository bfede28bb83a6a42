// SPDX-License-Identifier: Apache-2.0
//
// lamina-gateway: the daemon that speaks OpenAI-compatible HTTP in front of the coordinator.

#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/name_lookup.h"
#include "common/status_macros.h"
#include "config/model_name.h"
#include "daemon/daemon.h"
#include "gateway/api_keys.h"
#include "gateway/backend_service.h"
#include "gateway/router.h"
#include "gateway/server.h"
#include "gateway/side_work.h"

namespace lamina {
namespace {

constexpr char kPurpose[] =
    "lamina-gateway speaks OpenAI-compatible HTTP in front of the coordinator of a Lamina "
    "cluster.\nUsually started by deploy/cluster.sh, when the cluster file has gateway.listen.\n\n"
    "Example: lamina-gateway --cluster deploy/clusters/local.yaml";

// For a turn of the thread that serves all connections; the service manager hears of it.
constexpr auto kTurnMax = std::chrono::seconds(1);

bool IsLoopback(const std::string& listen) {
  return absl::StartsWith(listen, "127.") || absl::StartsWith(listen, "localhost:") ||
         absl::StartsWith(listen, "[::1]:");
}

gateway::Connection::Settings SettingsOf(const GatewayConfig& config) {
  return {.body_bytes_max = config.body_bytes_max,
          .request_time = std::chrono::seconds(config.request_seconds),
          .idle_time = std::chrono::seconds(config.idle_seconds),
          .write_time = std::chrono::seconds(config.write_seconds),
          .keep_alive_time = std::chrono::seconds(config.keep_alive_seconds)};
}

absl::StatusOr<gateway::RouterOptions> RouterOptionsOf(const ClusterConfig& config) {
  gateway::RouterOptions options = {.cors_origins = config.gateway.cors_origins,
                                    .model_names = config.gateway.model_names,
                                    .shape = {.tool_parser = config.gateway.tool_parser,
                                              .reasoning_parser = config.gateway.reasoning_parser},
                                    .limits = {.choices_max = config.gateway.choices_max}};
  if (options.model_names.empty()) {
    options.model_names.push_back(ModelNameOf(config.model));
  }
  if (!config.gateway.api_keys_file.empty()) {
    LAMINA_ASSIGN_OR_RETURN(options.keys, gateway::ApiKeys::Load(config.gateway.api_keys_file));
  }
  return options;
}

// Reads the file of keys again, for requests from then on. Keys that cannot be had leave those
// before them in force.
void ReadKeysAgain(const std::string& path, boost::asio::io_context& io, gateway::Router& router) {
  absl::StatusOr<gateway::ApiKeys> keys = gateway::ApiKeys::Load(path);
  if (!keys.ok()) {
    LogError("SIGHUP: ", keys.status().message(), "; the keys stay as they were");
    return;
  }
  boost::asio::post(io, [&router, path, keys = *std::move(keys)]() mutable {
    router.SetKeys(std::move(keys));
    LogInfo("SIGHUP: read the keys of ", path, " again, and nothing else");
  });
}

absl::Status Serve(const daemon::DaemonFlags& flags) {
  daemon::EndOnTermination();
  LAMINA_ASSIGN_OR_RETURN(const ClusterConfig config, daemon::LoadDaemonConfig(flags));
  const GatewayConfig& own = config.gateway;
  if (own.listen.empty()) {
    return absl::InvalidArgumentError(
        "gateway.listen: the cluster file has no gateway; add gateway: {listen: 127.0.0.1:8000}");
  }
  LAMINA_RETURN_IF_ERROR(CheckTlsFiles(config.tls));
  LAMINA_RETURN_IF_ERROR(daemon::KeepToCores(own.cores));
  LAMINA_ASSIGN_OR_RETURN(gateway::RouterOptions options, RouterOptionsOf(config));
  if (!IsLoopback(own.listen) && !options.keys.required()) {
    LogWarning("gateway.listen ", own.listen,
               " can be reached from elsewhere and asks for no key; see gateway.api_keys_file");
  }
  boost::asio::ssl::context tls(boost::asio::ssl::context::tls_server);
  const bool with_tls = !own.tls_certificate.empty();
  if (with_tls) {
    LAMINA_RETURN_IF_ERROR(gateway::LoadTlsFiles(own.tls_certificate, own.tls_key, tls));
  }

  boost::asio::io_context io(1);
  LAMINA_ASSIGN_OR_RETURN(const std::string coordinator, daemon::CoordinatorAddress(flags, config));
  const gateway::PostFunction post = [&io](std::function<void()> work) {
    boost::asio::post(io, std::move(work));
  };
  const auto backend = gateway::MakeGrpcBackend(coordinator, post, config.tls);
  gateway::SideWork side_work(post);
  gateway::Router router(*backend, side_work, std::move(options));
  gateway::Server server(io, SettingsOf(own), router, with_tls ? &tls : nullptr,
                         own.connections_max);
  LAMINA_RETURN_IF_ERROR(server.Listen(own.listen, config.ports));
  const std::string address = WithPort(own.listen, server.port());
  LogInfo("listening on ", with_tls ? "https://" : "http://", address, " coordinator ",
          coordinator);
  LAMINA_RETURN_IF_ERROR(daemon::WriteReadyFile(flags, address));
  const auto manager = daemon::ServiceManagerOfEnvironment();
  manager->Ready();
  manager->Watch([address] { return absl::StrCat("listening on ", address); },
                 [&io] {
                   // Set by the thread of `io`.
                   const auto turn = std::make_shared<std::promise<void>>();
                   boost::asio::post(io, [turn] { turn->set_value(); });
                   return turn->get_future().wait_for(kTurnMax) == std::future_status::ready;
                 });
  const daemon::TerminationHandlers handlers(
      [&] {
        manager->Stopping();
        boost::asio::post(io, [&] {
          router.Drain();
          server.Drain([&io] { io.stop(); });
        });
      },
      [] { _exit(1); });
  if (!own.api_keys_file.empty()) {
    daemon::OnHangup([&] { ReadKeysAgain(own.api_keys_file, io, router); });
  }
  const auto work = boost::asio::make_work_guard(io);
  io.run();
  daemon::OnHangup(nullptr);
  LogInfo("drained");
  return absl::OkStatus();
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  const lamina::daemon::ParsedFlags parsed =
      lamina::daemon::ParseDaemonFlags(argc, argv, lamina::kPurpose, "gateway");
  if (parsed.exit_status.has_value()) {
    return *parsed.exit_status;
  }
  lamina::LookUpNamesAsTheSystemDoes();
  return lamina::daemon::ExitStatus(lamina::Serve(parsed.flags));
}
