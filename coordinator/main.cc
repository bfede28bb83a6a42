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
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/cluster_secret.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "config/memory_cores.h"
#include "config/replicas.h"
#include "control/keepalive_service.h"
#include "coordinator/cluster_service.h"
#include "coordinator/coordinator_metrics.h"
#include "coordinator/core/partition_choice.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/drained_server_service.h"
#include "coordinator/engine.h"
#include "coordinator/front_door_service.h"
#include "coordinator/inference_service.h"
#include "coordinator/late_streams.h"
#include "coordinator/span_file.h"
#include "coordinator/stage_options.h"
#include "daemon/daemon.h"
#include "daemon/http_server.h"
#include "model/fingerprint.h"
#include "model/model.h"
#include "model/tokenizer/tokenizer.h"
#include "plan/prefill_lanes.h"
#include "plan/window_layout.h"

namespace lamina {
namespace {

constexpr char kPurpose[] =
    "lamina-coordinator batches requests, places the KV cache and drives the nodes of a Lamina "
    "cluster.\nIt serves gRPC (lamina.v1.Inference and lamina.v1.Cluster). Usually started by "
    "deploy/cluster.sh.\n\n"
    "Example: lamina-coordinator --cluster deploy/clusters/local.yaml";
constexpr int kMessageBytesMax = 64 << 20;
constexpr uint32_t kStreamsMin = 1024;  // Of one connection.
// Nodes report twice a second; a loaded host may be late.
constexpr Nanos kNodeSilenceMax = Seconds(10);
// Of calls that are open when all requests have ended: streams of nodes, status.
constexpr auto kShutdownGrace = std::chrono::seconds(1);

std::vector<AttentionDescriptor> LayersOf(const model::Graph& graph) {
  std::vector<AttentionDescriptor> layers;
  for (const model::Op& op : graph.ops) {
    if (const auto* attention = std::get_if<model::AttentionOp>(&op.body)) {
      layers.push_back(attention->descriptor);
    }
  }
  return layers;
}

uint64_t KvBytesPerToken(const std::vector<AttentionDescriptor>& layers) {
  uint64_t bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    bytes += 2 * uint64_t{layer.kv_width()} * 2;
  }
  return bytes;
}

// The model may have been made for shorter sequences than the cluster file allows.
uint32_t SequenceTokensMax(const ClusterConfig& config, const model::ModelConfig& model) {
  const uint32_t wanted = config.limits.sequence_tokens_max;
  if (model.positions_max != 0 && wanted > model.positions_max) {
    LogWarning("limits.sequence_tokens_max ", wanted,
               " is more than the model was made for; using ", model.positions_max);
    return model.positions_max;
  }
  return wanted;
}

coordinator::EngineOptions MakeOptions(const ClusterConfig& config, const model::Model& model) {
  coordinator::EngineOptions options{
      .layers = LayersOf(model.graph),
      .attention = config.attention,
      .device_waits = config.pipeline.device_waits == DeviceWaits::kAuto,
      .vocabulary = model.config.vocabulary,
      .mode = config.pipeline.mode,
      .priority_order = config.order == ServiceOrderKind::kPriority,
      .node_silence_max = kNodeSilenceMax,
      .stuck_after = config.limits.stuck_after};
  options.transports.clear();
  for (const std::string& scheme : config.transport) {
    const bool ucx = absl::EndsWith(scheme, "ucx");
    options.transports.push_back(ucx ? scheme.substr(0, scheme.size() - 3) + config.UcxUri()
                                     : scheme + "://");
  }
  const bool local = config.policy == kPolicyLocal;
  const bool choose = config.policy == kPolicyAuto;
  for (const ComputeNodeConfig& node : config.compute) {
    options.nodes.push_back({.name = node.name,
                             .prefill = node.role == ComputeRole::kPrefill,
                             .holds_kv = local || choose});
  }
  for (const MemoryNodeConfig& node : config.memory) {
    options.nodes.push_back({.name = node.name, .is_memory = true});
  }
  const uint32_t lanes =
      config.pipeline.mode == PipelineMode::kSequential ? 1 : config.pipeline.lanes;
  // All of them run in one lane in epochs of policy local.
  const uint32_t rows_max =
      choose ? config.limits.running_max : (config.limits.running_max + lanes - 1) / lanes;
  // Half of a step's tokens at least are for prompts, so that full lanes do not starve them.
  const uint32_t step_tokens_max = std::max(config.prefill.chunk_tokens, 2 * rows_max);
  const uint32_t sequence_tokens_max = SequenceTokensMax(config, model.config);
  options.scheduler = {.lanes = lanes,
                       .lanes_auto = config.pipeline.lanes_auto,
                       .row_chunks = {.chunks = config.pipeline.chunks,
                                      .automatic = config.pipeline.chunks_auto,
                                      .query_first = config.pipeline.query_first},
                       .rows_max = rows_max,
                       .step_tokens_max = step_tokens_max,
                       .chunk_tokens = config.prefill.chunk_tokens,
                       .scratch_tokens = std::max(sequence_tokens_max, step_tokens_max),
                       .sequence_tokens_max = sequence_tokens_max,
                       .running_max = config.limits.running_max,
                       .waiting_max = config.limits.waiting_max};
  if (choose) {
    coordinator::PolicyAutoOptions& choice = options.policy_auto.emplace();
    choice.load = {.rows = static_cast<double>(config.policy_load.rows),
                   .context = static_cast<double>(config.policy_load.context)};
    for (MemoryCores& group : MemoryCoresOf(config, config.compute[0])) {
      choice.memory.push_back({.names = std::move(group.names), .shared = group.shared});
    }
  }
  if (local) {
    options.scheduler.lanes_auto = false;
    options.scheduler.lanes_why = "for no attention is away that another lane would hide";
    options.partition_why = absl::StrCat("policy local: K and V stay on ", config.compute[0].name,
                                         ", which attends itself");
  }
  return options;
}

// The gateway's clients share a connection, so there is room for all requests that can run or wait,
// and for as many that are told that there is none.
int StreamsMax(const ClusterConfig& config) {
  return static_cast<int>(
      std::max(kStreamsMin, 2 * (config.limits.running_max + config.limits.waiting_max)));
}

// Decides on the partition, and refuses one that cannot be served, by what the cluster file alone
// tells: bandwidths are not known yet.
absl::Status SettlePartition(const ClusterConfig& config, coordinator::EngineOptions& options) {
  const uint32_t tokens_max = options.scheduler.sequence_tokens_max;
  core::PartitionNeeds needs{.layers = options.layers,
                             .sequence_tokens_max = tokens_max,
                             .running_max = options.scheduler.running_max};
  if (config.policy != kPolicyAttendRemote) {  // Each node has room for a request, or is refused.
    options.partition = Partition::kRequest;
    return absl::OkStatus();
  }
  for (const MemoryNodeConfig& node : config.memory) {
    needs.nodes.push_back({.name = node.name, .capacity_bytes = node.capacity_bytes});
  }
  options.partition = config.partition;
  if (config.partition == Partition::kAuto) {
    LAMINA_ASSIGN_OR_RETURN(const core::PartitionChoice choice, core::ChoosePartition(needs));
    options.partition = choice.partition;
    options.partition_why = absl::StrCat("chosen because ", choice.why);
  } else if (config.partition != Partition::kRequest) {  // There a small node is refused alone.
    LAMINA_RETURN_IF_ERROR(core::CheckPartition(config.partition, needs));
  }
  if (options.partition == Partition::kTokenRange) {
    options.scheduler.span_tokens = core::SpanTokensFor(tokens_max);
  }
  return absl::OkStatus();
}

// With all nodes there, as the engine has them.
uint32_t PrefillLanes(const ClusterConfig& config) {
  uint32_t replicas = 0;
  uint32_t each = 0;
  for (const ReplicaConfig& replica : ReplicasOf(config)) {
    if (IsForPrompts(config, replica)) {
      ++replicas;
      each = std::max(
          each, plan::PrefillLanesOf(static_cast<uint32_t>(replica.nodes.size()) / replica.shards,
                                     replica.shards));
    }
  }
  return replicas * each;
}

// Nodes would find it out one after the other.
absl::Status CheckWindows(const ClusterConfig& config, const coordinator::EngineOptions& options,
                          uint32_t width) {
  const core::SchedulerOptions& limits = options.scheduler;
  uint32_t shards = 1;
  for (const ReplicaConfig& replica : ReplicasOf(config)) {
    shards = std::max(shards, replica.shards);
  }
  const uint32_t spans_max =
      limits.span_tokens == 0
          ? 0
          : (limits.sequence_tokens_max + limits.span_tokens - 1) / limits.span_tokens;
  return plan::WindowLayout::Check(
      {.compute_nodes = static_cast<uint32_t>(config.compute.size()),
       .memory_nodes = static_cast<uint32_t>(std::max<size_t>(1, config.memory.size())),
       .lanes = limits.lanes + PrefillLanes(config),
       .rows_max = limits.rows_max,
       .kv_rows_max = limits.step_tokens_max,
       .plan_ahead = limits.plan_ahead,
       .spans_max = spans_max,
       .shards = shards,
       .part_row_bytes = width * sizeof(float),
       .layers = options.layers});
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

absl::Status Serve(const daemon::DaemonFlags& flags) {
  daemon::EndOnTermination();
  LAMINA_ASSIGN_OR_RETURN(const ClusterConfig config, daemon::LoadDaemonConfig(flags));
  LAMINA_ASSIGN_OR_RETURN(ClusterSecret secret, JoinSecret(flags, config));
  daemon::KeepToCores(config.coordinator_cores);
  LAMINA_ASSIGN_OR_RETURN(const model::Model model, model::OpenModel(config.model));
  LAMINA_ASSIGN_OR_RETURN(const auto tokenizer, model::LoadTokenizer(config.model));
  coordinator::EngineOptions options = MakeOptions(config, model);
  LAMINA_RETURN_IF_ERROR(coordinator::SettleStages(config, model.graph, options));
  LAMINA_RETURN_IF_ERROR(SettlePartition(config, options));
  LAMINA_RETURN_IF_ERROR(CheckWindows(config, options, model.config.width));
  LAMINA_ASSIGN_OR_RETURN(options.model_fingerprint, model::Fingerprint(model));
  std::unique_ptr<coordinator::SpanFile> spans;
  if (!config.coordinator_spans.empty()) {
    LAMINA_ASSIGN_OR_RETURN(spans,
                            coordinator::SpanFile::Open(config.coordinator_spans, RealClock()));
    options.on_request_end = [&spans](const coordinator::RequestRecord& record) {
      spans->Write(record);
    };
  }
  coordinator::Engine engine(options, *tokenizer, RealClock());
  const std::string& listen = config.coordinator_listen;
  const auto door = coordinator::FrontDoor::Open(listen);
  if (!door.ok()) {
    return absl::UnavailableError(
        absl::StrCat("could not listen on ", listen, ": ", door.status().message(),
                     "; is another coordinator running there? Choose another coordinator.listen"));
  }
  coordinator::LateStreams streams(
      [&door](const std::string& peer) { return (*door)->SinceLastByte(peer); },
      [&engine](const coordinator::NodeWord& word) {
        engine.NodeStatus(word.source, word.busy_share, word.counters);
      },
      RealClock());
  streams.Start();
  coordinator::InferenceService inference(engine, *tokenizer, model.config,
                                          KvBytesPerToken(options.layers));
  coordinator::ClusterService cluster(engine, streams, model.config.name, RealClock(),
                                      std::move(secret));

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  (*door)->AddTo(builder, StreamsMax(config));
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  control::AllowKeepalive(control::Keepalive(), builder);
  builder.RegisterService(&inference);
  builder.RegisterService(&cluster);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::InternalError("the gRPC server did not start");
  }
  (*door)->Start();
  const std::string address = WithPort(listen, (*door)->port());
  LogInfo("listening on ", address, " model ", model.config.name, " waiting for ",
          options.nodes.size(), " nodes");
  std::unique_ptr<daemon::HttpServer> http;
  if (!config.coordinator_http.empty()) {
    LAMINA_ASSIGN_OR_RETURN(
        http,
        daemon::HttpServer::Start(config.coordinator_http,
                                  daemon::DaemonPages(
                                      [&engine, &model, started = RealClock().Now()] {
                                        return coordinator::MetricsText(engine, model.config.name,
                                                                        RealClock(), started);
                                      },
                                      [&engine] { return coordinator::HealthProblem(engine); })));
  }
  LAMINA_RETURN_IF_ERROR(daemon::WriteReadyFile(flags, address));
  coordinator::DrainedServer drained(engine, *server);
  daemon::OnTermination([&drained] { drained.Stop(); }, [] { _exit(1); });
  drained.Wait(kShutdownGrace, [&door] { (*door)->Stop(); });
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
  return lamina::daemon::ExitStatus(lamina::Serve(parsed.flags));
}
