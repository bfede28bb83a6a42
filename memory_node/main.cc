// SPDX-License-Identifier: Apache-2.0
//
// lamina-memory: the daemon of one memory node.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cores.h"
#include "common/log.h"
#include "common/name_lookup.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "common/units.h"
#include "config/cuda_host.h"
#include "control/node_link_service.h"
#include "daemon/daemon.h"
#include "daemon/node_daemon.h"
#include "kernels/processor_attention.h"
#include "memory_node/attention_rate.h"
#include "memory_node/memory_node.h"
#include "memory_node/node_device.h"
#include "memory_node/spill_tier.h"

namespace lamina {
namespace {

constexpr char kPurpose[] =
    "lamina-memory holds the KV cache and computes attention for one memory node of a Lamina "
    "cluster.\n"
    "It needs no model file. Usually started by deploy/cluster.sh.\n\n"
    "Example: lamina-memory --cluster deploy/clusters/local.yaml --name m0";

// Null where the node has no spill tier. Its threads keep off the cores that attend, if there are
// others.
absl::StatusOr<std::unique_ptr<memory_node::SpillTier>> OpenSpill(
    const SpillConfig& file, const std::vector<int>& attending) {
  if (file.path.empty()) {
    return nullptr;
  }
  std::vector<int> cores = attending.empty() ? std::vector<int>() : CoresBut(attending);
  LAMINA_ASSIGN_OR_RETURN(
      std::unique_ptr<memory_node::SpillTier> spill,
      memory_node::SpillTier::Open(file.path, file.capacity_bytes, std::move(cores)));
  LogInfo("spill ", FormatBytes(file.capacity_bytes), " in ", file.path, " writes ",
          FormatBytes(static_cast<uint64_t>(spill->speed().write)), "/s reads ",
          FormatBytes(static_cast<uint64_t>(spill->speed().read)), "/s");
  return spill;
}

absl::Status Serve(const daemon::DaemonFlags& flags) {
  daemon::EndOnTermination();
  absl::StatusOr<ClusterConfig> config = daemon::LoadDaemonConfig(flags);
  if (!config.ok()) {
    return config.status();
  }
  const MemoryNodeConfig* node = config->FindMemory(flags.name);
  if (node == nullptr) {
    std::vector<std::string> names;
    for (const auto& known : config->memory) {
      names.push_back(known.name);
    }
    return daemon::NoNodeNamed("memory", flags.name, names);
  }
  LAMINA_ASSIGN_OR_RETURN(const daemon::ClusterAccess access,
                          daemon::PrepareToJoin(flags, *config));
  const size_t threads =
      node->threads != 0 ? node->threads : std::max<size_t>(1, node->cores.size());
  LAMINA_RETURN_IF_ERROR(
      CheckThreads(absl::StrCat("memory node ", flags.name, ": threads"), threads));
  LAMINA_RETURN_IF_ERROR(daemon::RequireCores(node->cores));
  daemon::TakeMemoryNear(node->cores);
  const ThreadPoolOptions pinning = {.threads = threads, .cores = node->cores};
  ThreadPool pool(pinning);
  LAMINA_ASSIGN_OR_RETURN(const bool dependent,
                          ParseCudaLaunches(std::getenv(kCudaLaunchesVariable)));
  memory_node::AllowDependentLaunches(dependent);
  LAMINA_ASSIGN_OR_RETURN(const memory_node::NodeDevice device,
                          memory_node::OpenNodeDevice(node->device, node->capacity_bytes, pool));
  const double bandwidth = device.read_bytes_per_second;
  LogInfo("read bandwidth ", FormatBytes(static_cast<uint64_t>(bandwidth)), "/s threads ", threads,
          " kernels ", device.kernels);
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<memory_node::SpillTier> spill,
                          OpenSpill(node->spill, node->cores));
  plan::PolicyTimes policy_times;
  if (config->policy == kPolicyAuto && config->HasDevices()) {
    LAMINA_ASSIGN_OR_RETURN(policy_times.attention_local,
                            memory_node::MeasureAttentionRate(config->model, device.make));
  }
  control::NodeLink link(access.coordinator,
                         {.name = flags.name,
                          .is_memory = true,
                          .device = node->device,
                          .threads = node->device == "cpu" ? static_cast<uint32_t>(threads) : 1,
                          .capacity_bytes = node->capacity_bytes,
                          .bandwidth_bytes_per_second = bandwidth,
                          .kernels = device.kernels,
                          .fast_attention = device.fast_attention,
                          .policy_times = policy_times,
                          .spill = spill == nullptr ? control::SpillTier{} : spill->Identity()},
                         access.secret, config->tls);
  memory_node::MemoryNode handler({.name = flags.name,
                                   .cores = CallerCores(pinning),
                                   .make_device = device.make,
                                   .verbs_uri = config->VerbsUri(),
                                   .secret = access.secret,
                                   .device = node->device,
                                   .window_memory = device.window_memory.get(),
                                   .windows = node->windows,
                                   .spill = spill.get()},
                                  pool);
  handler.SetReporter(&link);
  LAMINA_ASSIGN_OR_RETURN(
      const std::unique_ptr<daemon::NodeDaemon> node_daemon,
      daemon::NodeDaemon::Start(flags, *config,
                                {.role = "memory",
                                 .http = node->http,
                                 .read_bandwidth = bandwidth,
                                 .counters = [&handler] { return handler.Counters(); },
                                 .attached = [&link] { return link.attached(); },
                                 .drain = [&link](Nanos grace) { link.Drain(grace); }}));
  return link.Run(handler, [&node_daemon] { node_daemon->OnAttached(); });
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  const lamina::daemon::ParsedFlags parsed =
      lamina::daemon::ParseDaemonFlags(argc, argv, lamina::kPurpose, "");
  if (parsed.exit_status.has_value()) {
    return *parsed.exit_status;
  }
  lamina::daemon::GiveCudaStreamsTheirOwnQueues();
  lamina::LookUpNamesAsTheSystemDoes();
  lamina::kernels::AskForAttentionTiles();  // Before Serve(), which starts threads.
  return lamina::daemon::ExitStatus(lamina::Serve(parsed.flags));
}
