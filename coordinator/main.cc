// SPDX-License-Identifier: Apache-2.0
//
// lamina-coordinator: the daemon that batches requests, owns KV placement, and drives the nodes.

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cluster_secret.h"
#include "common/host_port.h"
#include "common/kv_form.h"
#include "common/log.h"
#include "common/malloc_pages.h"
#include "common/name_lookup.h"
#include "common/port_range.h"
#include "common/status_macros.h"
#include "common/tls.h"
#include "config/model_name.h"
#include "control/keepalive_service.h"
#include "control/tls_service.h"
#include "coordinator/cluster_options.h"
#include "coordinator/cluster_service.h"
#include "coordinator/coordinator_metrics.h"
#include "coordinator/drained_server_service.h"
#include "coordinator/engine.h"
#include "coordinator/front_door_service.h"
#include "coordinator/inference_service.h"
#include "coordinator/journal.h"
#include "coordinator/journal_disk.h"
#include "coordinator/journaled_requests_service.h"
#include "coordinator/late_streams.h"
#include "coordinator/span_file.h"
#include "daemon/daemon.h"
#include "daemon/http_server.h"
#include "model/fingerprint.h"
#include "model/generation_config.h"
#include "model/model.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina {
namespace {

constexpr char kPurpose[] =
    "lamina-coordinator batches requests, places the KV cache and drives the nodes of a Lamina "
    "cluster.\nIt serves gRPC (lamina.v1.Inference and lamina.v1.Cluster). Usually started by "
    "deploy/cluster.sh.\n\n"
    "Example: lamina-coordinator --cluster deploy/clusters/local.yaml";
constexpr int kMessageBytesMax = 64 << 20;
constexpr uint32_t kStreamsMin = 1024;  // Streams of one connection.
// Calls that are open when all requests have ended get so long: streams of nodes, status.
constexpr auto kShutdownGrace = std::chrono::seconds(1);

// The gateway's clients share a connection, so there is room for all requests that can run or wait,
// and for as many that are told that there is none.
int StreamsMax(const ClusterConfig& config) {
  return static_cast<int>(
      std::max(kStreamsMin, 2 * (config.limits.running_max + config.limits.waiting_max)));
}

// What nodes prove that they know. Without one only this host is served.
absl::StatusOr<ClusterSecret> JoinSecret(const daemon::DaemonFlags& flags,
                                         const ClusterConfig& config) {
  LAMINA_ASSIGN_OR_RETURN(ClusterSecret secret, daemon::LoadClusterSecret(flags, config));
  LAMINA_RETURN_IF_ERROR(
      RequireSecretBeyondLoopback(secret, "coordinator.listen", config.coordinator_listen));
  if (!secret.is_set()) {
    LogInfo("no cluster_token_file: every process of this host may join this cluster");
  }
  return secret;
}

// What the service manager shows: "serving; epoch 3; 1200 of 93206 slots; 2 running, 0 waiting".
std::string StatusLine(const coordinator::EngineStatus& status) {
  uint64_t used = 0;
  uint64_t slots = 0;
  for (const coordinator::NodeReport& node : status.nodes) {
    used += node.kv.slots_held + node.kv.slots_quarantined;
    slots += node.kv.slots_total;
  }
  return absl::StrCat(status.state, "; epoch ", status.epoch, "; ", used, " of ", slots, " slots; ",
                      status.scheduler.running, " running, ", status.scheduler.waiting, " waiting");
}

absl::StatusOr<coordinator::ChatAdvice> AdviceOf(const ClusterConfig& config) {
  coordinator::ChatAdvice advice{.names = config.gateway.model_names};
  if (advice.names.empty()) {
    advice.names.push_back(ModelNameOf(config.model));
  }
  if (!config.chat_template.empty()) {
    LAMINA_ASSIGN_OR_RETURN(advice.chat_template, model::ReadChatTemplate(config.chat_template));
  }
  if (config.generation_config != kGenerationConfigNone) {
    LAMINA_ASSIGN_OR_RETURN(advice.sampling, model::ReadSamplingDefaults(config.model));
  }
  return advice;
}

// What the tokens of a request depend on besides its message.
std::string IdentityOf(const coordinator::EngineOptions& options) {
  std::string identity = absl::StrCat(options.model_fingerprint, " ", options.lossy);
  for (const coordinator::PreparedPolicy& policy : options.policies) {
    absl::StrAppend(&identity, " ", policy.name, " ", KvFormName(policy.kv), " ", policy.lossy);
  }
  return identity;
}

// Empty without a journal.
std::string JournalMetrics(const coordinator::Journal* journal,
                           const coordinator::JournaledRequests* journaled) {
  return journal == nullptr
             ? ""
             : coordinator::JournalMetricsText({.on = journal->on(),
                                                .bytes_written = journal->bytes_written(),
                                                .resumed = journaled->resumed()});
}

// A coordinator is called, so over TLS it shows a certificate of its own.
absl::Status CheckServerTls(const TlsFiles& tls) {
  LAMINA_RETURN_IF_ERROR(CheckTlsFiles(tls));
  return tls.is_set() && tls.certificate.empty()
             ? absl::InvalidArgumentError(
                   "tls: a coordinator needs certificate and key together with ca")
             : absl::OkStatus();
}

absl::StatusOr<coordinator::EngineOptions> OptionsOf(const ClusterConfig& config,
                                                     const model::Model& model) {
  LAMINA_ASSIGN_OR_RETURN(coordinator::EngineOptions options,
                          coordinator::EngineOptionsOf(config, model.graph, model.config));
  LAMINA_ASSIGN_OR_RETURN(const std::string fingerprint, model::Fingerprint(model));
  options.model_fingerprint = config.FingerprintOf(fingerprint);
  return options;
}

// Null where the cluster file names none.
absl::StatusOr<std::unique_ptr<coordinator::SpanFile>> OpenSpans(const ClusterConfig& config) {
  if (config.coordinator_spans.empty()) {
    return nullptr;
  }
  return coordinator::SpanFile::Open(config.coordinator_spans, RealClock());
}

absl::StatusOr<std::unique_ptr<coordinator::FrontDoor>> OpenDoor(const ClusterConfig& config) {
  const std::string& listen = config.coordinator_listen;
  auto door = OpenWithin(config.ports, listen, [&config](const std::string& address) {
    return coordinator::FrontDoor::Open(address, config.tls.is_set());
  });
  if (!door.ok()) {
    return absl::UnavailableError(
        absl::StrCat("could not listen on ", listen, ": ", door.status().message(),
                     "; is another coordinator running there? Choose another coordinator.listen"));
  }
  return door;
}

// Null where the cluster file names none.
absl::StatusOr<std::unique_ptr<coordinator::Journal>> OpenJournal(const ClusterConfig& config,
                                                                  std::string identity) {
  if (config.coordinator_journal.empty()) {
    return nullptr;
  }
  return coordinator::Journal::Open(coordinator::MakeJournalFile(config.coordinator_journal),
                                    {.identity = std::move(identity)});
}

// Serves both services from here on; nobody is let in until the door starts.
absl::StatusOr<std::unique_ptr<grpc::Server>> StartServer(const ClusterConfig& config,
                                                          coordinator::FrontDoor& door,
                                                          coordinator::InferenceService& inference,
                                                          coordinator::ClusterService& cluster) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  door.AddTo(builder, StreamsMax(config), control::ServerCredentials(config.tls));
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  control::AllowKeepalive(control::Keepalive(), builder);
  builder.RegisterService(&inference);
  builder.RegisterService(&cluster);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::InternalError("the gRPC server did not start");
  }
  return server;
}

// Metrics and health; null where the cluster file asks for none. `journal` and `journaled` are null
// without a journal; all must outlive the server.
absl::StatusOr<std::unique_ptr<daemon::HttpServer>> ServePages(
    const ClusterConfig& config, coordinator::Engine& engine, const std::string& model_name,
    const coordinator::Journal* journal, const coordinator::JournaledRequests* journaled) {
  if (config.coordinator_http.empty()) {
    return nullptr;
  }
  return daemon::HttpServer::Start(
      config.coordinator_http,
      daemon::DaemonPages(
          [&engine, model_name, journal, journaled, started = RealClock().Now()] {
            return absl::StrCat(coordinator::MetricsText(engine, model_name, RealClock(), started),
                                JournalMetrics(journal, journaled));
          },
          [&engine] { return coordinator::HealthProblem(engine); }),
      config.ports);
}

absl::Status Serve(const daemon::DaemonFlags& flags) {
  daemon::EndOnTermination();
  LAMINA_ASSIGN_OR_RETURN(const ClusterConfig config, daemon::LoadDaemonConfig(flags));
  LAMINA_ASSIGN_OR_RETURN(ClusterSecret secret, JoinSecret(flags, config));
  LAMINA_RETURN_IF_ERROR(CheckServerTls(config.tls));
  LAMINA_RETURN_IF_ERROR(daemon::KeepToCores(config.coordinator_cores));
  LAMINA_ASSIGN_OR_RETURN(
      const model::Model model,
      model::OpenModel(config.model, {.sequence_tokens_max = config.limits.sequence_tokens_max}));
  LAMINA_ASSIGN_OR_RETURN(const auto tokenizer, model::LoadTokenizer(config.model));
  LAMINA_ASSIGN_OR_RETURN(coordinator::EngineOptions options, OptionsOf(config, model));
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<coordinator::SpanFile> spans, OpenSpans(config));
  if (spans != nullptr) {
    options.on_request_end = [&spans](const coordinator::RequestRecord& record) {
      spans->Write(record);
    };
  }
  std::unique_ptr<coordinator::Journal> journal;  // Outlives the requests of the engine.
  coordinator::Engine engine(options, *tokenizer, RealClock());
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<coordinator::FrontDoor> door, OpenDoor(config));
  // Not before it listens: the file may be that of one that does.
  LAMINA_ASSIGN_OR_RETURN(journal, OpenJournal(config, IdentityOf(options)));
  std::unique_ptr<coordinator::JournaledRequests> journaled;
  if (journal != nullptr) {
    journaled = std::make_unique<coordinator::JournaledRequests>(
        *journal, engine, *tokenizer, RealClock(),
        coordinator::JournaledRequests::Limits{.keep = config.coordinator_journal_keep,
                                               .waiting_max = config.limits.waiting_max});
  }
  coordinator::LateStreams streams(
      [&door](const std::string& peer) { return door->SinceLastByte(peer); },
      [&engine](const coordinator::NodeWord& word) {
        engine.NodeStatus(word.source, word.busy_share, word.counters);
      },
      RealClock());
  streams.Start();
  LAMINA_ASSIGN_OR_RETURN(coordinator::ChatAdvice advice, AdviceOf(config));
  const coordinator::ModelNames names{.own = model.config.name, .served = advice.names.front()};
  coordinator::InferenceService inference(engine, *tokenizer, model.config,
                                          options.kv.SlotBytes(options.layers), std::move(advice));
  if (journaled != nullptr) {
    inference.UseJournal(*journaled);
  }
  coordinator::ClusterService cluster(engine, streams, names, RealClock(), std::move(secret),
                                      config.tls);
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<grpc::Server> server,
                          StartServer(config, *door, inference, cluster));
  coordinator::DrainedServer drained(engine, *server);
  const std::string address = WithPort(config.coordinator_listen, door->port());
  LogInfo("listening on ", address, " model ", model.config.name, " waiting for ",
          options.nodes.size(), " nodes");
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<daemon::HttpServer> http,
                          ServePages(config, engine, names.served, journal.get(), journaled.get()));
  LAMINA_RETURN_IF_ERROR(daemon::WriteReadyFile(flags, address));
  // Who comes waits until nothing can fail any more: an end would cancel requests of the journal
  // whose clients had attached.
  door->Start();
  const auto manager = daemon::ServiceManagerOfEnvironment();
  manager->Ready();
  manager->Watch([&engine] { return StatusLine(engine.GetStatus()); },
                 [&engine] {
                   engine.GetStatus();  // An answer of its thread.
                   return true;
                 });
  const daemon::TerminationHandlers handlers(
      [&drained, &manager] {
        manager->Stopping();
        drained.Stop();
      },
      [] { _exit(1); });
  drained.Wait(kShutdownGrace, [&door, &journaled] {
    door->Stop();
    if (journaled != nullptr) {
      journaled->LeaveOpen();
    }
  });
  return absl::OkStatus();
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  const lamina::daemon::ParsedFlags parsed =
      lamina::daemon::ParseDaemonFlags(argc, argv, lamina::kPurpose, "coordinator");
  if (parsed.exit_status.has_value()) {
    return *parsed.exit_status;
  }
  lamina::EnsureHugePagesForMalloc(argv);
  lamina::KeepFreedMemory();
  lamina::LookUpNamesAsTheSystemDoes();
  return lamina::daemon::ExitStatus(lamina::Serve(parsed.flags));
}
