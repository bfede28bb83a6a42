// SPDX-License-Identifier: Apache-2.0
#include "config/cluster_config.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/host_port.h"
#include "common/link_options.h"
#include "common/node_name.h"
#include "common/status_macros.h"
#include "config/cluster_attention_internal.h"
#include "config/cuda_host.h"
#include "config/kv_form_internal.h"
#include "config/policy_internal.h"
#include "config/replicas.h"
#include "config/spill_internal.h"
#include "config/verbs_keys_internal.h"
#include "config/weights_internal.h"
#include "plan/limits.h"
#include "plan/row_pieces.h"

namespace lamina {
namespace {

constexpr int kCoreMax = 4095;          // Linux's CPU_SETSIZE allows 1024; big hosts have more.
constexpr uint32_t kThreadsMax = 1024;  // The most threads of one node.
constexpr Nanos kStuckAfterMin = Seconds(2);  // Nodes report twice a second.
constexpr Nanos kStuckAfterMax = Seconds(3600);
constexpr Nanos kJournalKeepMin = Seconds(1);
constexpr Nanos kJournalKeepMax = Seconds(3600);
constexpr uint64_t kBodyBytesLeast = 1 << 10;
constexpr uint64_t kBodyBytesMost = 64 << 20;  // What a gRPC message of ours may have.
constexpr uint32_t kConnectionsMax = 1u << 16;
constexpr uint32_t kChoicesMax = 4096;
constexpr uint32_t kGatewaySecondsMax = 86400;
constexpr uint32_t kDrainSecondsMax = 86400;
constexpr char kLocalPeers[] = "peers=local";

absl::Status Invalid(absl::string_view key, absl::string_view value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": '", value, "' is not ", allowed));
}

absl::Status NotServed(absl::string_view key, absl::string_view value, absl::string_view served) {
  return absl::UnimplementedError(
      absl::StrCat(key, ": '", value, "' is not served by this version; it serves: ", served));
}

absl::Status CheckRange(absl::string_view key, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) {
    return absl::OkStatus();
  }
  return Invalid(key, absl::StrCat(value), absl::StrCat("in [", least, ", ", most, "]"));
}

bool IsOneOf(absl::string_view value, std::initializer_list<absl::string_view> words) {
  return std::find(words.begin(), words.end(), value) != words.end();
}

bool IsThisHost(absl::string_view host) { return IsOneOf(host, {"localhost", "127.0.0.1"}); }

absl::Status CheckNodeName(absl::string_view key, absl::string_view name,
                           std::set<std::string>& seen) {
  if (!IsNodeName(name)) {
    return Invalid(key, name,
                   absl::StrCat("a node name: 1 to ", kNodeNameBytesMax,
                                " letters, digits, '_' or '-', beginning with a letter or digit"));
  }
  if (IsDaemonName(name)) {
    return Invalid(key, name, "free: it is the name of another daemon; choose another");
  }
  if (!seen.insert(std::string(name)).second) {
    return Invalid(key, name, "unique: another node has this name");
  }
  return absl::OkStatus();
}

absl::Status CheckListen(absl::string_view key, const std::string& listen) {
  if (!ParseHostPort(listen).has_value()) {
    return Invalid(key, listen, "an address like 127.0.0.1:7400 (port 0 picks a free one)");
  }
  return absl::OkStatus();
}

absl::Status CheckCores(const std::string& key, const std::vector<int>& cores) {
  const std::set<int> distinct(cores.begin(), cores.end());
  if (distinct.size() != cores.size()) {
    return Invalid(key, absl::StrJoin(cores, ","), "a list of distinct cores");
  }
  return distinct.empty() ? absl::OkStatus() : CheckRange(key, *distinct.rbegin(), 0, kCoreMax);
}

// What compute and memory nodes have in common.
template <typename Node>
absl::Status CheckNode(absl::string_view list, size_t index, const Node& node,
                       std::set<std::string>& names) {
  const std::string key = absl::StrCat(list, ".", index);
  LAMINA_RETURN_IF_ERROR(CheckNodeName(key + ".name", node.name, names));
  if (node.host.empty()) {
    return Invalid(key + ".host", node.host, "a host name");
  }
  if (node.device != "cpu" && !ParseCudaDevice(node.device).ok()) {
    return Invalid(key + ".device", node.device, "a device: cpu, cuda or cuda:N");
  }
  if (!node.http.empty()) {
    LAMINA_RETURN_IF_ERROR(CheckListen(key + ".http", node.http));
  }
  LAMINA_RETURN_IF_ERROR(CheckCores(key + ".cores", node.cores));
  return CheckRange(key + ".threads", node.threads, 0, kThreadsMax);
}

absl::Status CheckNodes(const ClusterConfig& config) {
  std::set<std::string> names;
  if (config.compute.empty() ||
      (config.memory.empty() && !IsOneOf(config.policy, {kPolicyLocal, kPolicyAuto}))) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.compute.empty() ? "compute" : "memory",
                     ": the cluster has none; name at least one, like - {name: ",
                     config.compute.empty() ? "c0, cores: \"0\"}" : "m0, capacity: 2GiB}"));
  }
  for (size_t i = 0; i < config.compute.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(CheckNode("compute", i, config.compute[i], names));
    if (!IsOneOf(config.compute[i].compute_type, {"bf16", "f32"})) {
      return Invalid(absl::StrCat("compute.", i, ".compute_type"), config.compute[i].compute_type,
                     "one of bf16, f32");
    }
    if (config.compute[i].compute_type != config.compute[0].compute_type) {
      return Invalid(absl::StrCat("compute.", i, ".compute_type"), config.compute[i].compute_type,
                     absl::StrCat(config.compute[0].compute_type,
                                  ", that of the other compute nodes: they pass rows on"));
    }
  }
  for (size_t i = 0; i < config.memory.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(CheckNode("memory", i, config.memory[i], names));
    if (config.memory[i].capacity_bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("memory.", i, ".capacity: missing or zero; say how many bytes node '",
                       config.memory[i].name, "' may use for KV, like 2GiB"));
    }
    // Whether the transport reaches it is found out when an epoch begins.
    if (config.memory[i].windows == WindowPlace::kDevice && config.memory[i].device == "cpu") {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory.", i, ".windows: device, but '", config.memory[i].name,
          "' is on the processor; give it a device like cuda:0, or leave windows out"));
    }
  }
  return absl::OkStatus();
}

// Prompts run on nodes of their own if, and only if, there are such nodes.
absl::Status CheckRoles(const ClusterConfig& config) {
  const uint32_t prefill = config.CountCompute(ComputeRole::kPrefill);
  const bool dedicated = config.prefill.mode == PrefillMode::kDedicated;
  if (dedicated && prefill == 0) {
    return absl::InvalidArgumentError(
        "prefill.mode: dedicated needs a compute node of its own, and none has role prefill; give "
        "one role: prefill, or set prefill.mode to inline");
  }
  if (!dedicated && prefill > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compute: ", prefill, " nodes with role prefill contradict prefill.mode inline, in which ",
        "all compute nodes take prompts; set prefill.mode to dedicated, or remove the role"));
  }
  if (prefill == config.compute.size()) {
    return absl::InvalidArgumentError(
        "compute: all nodes have role prefill, so nobody would decode; leave at least one with "
        "role compute");
  }
  return absl::OkStatus();
}

absl::Status CheckWord(const char* key, const std::string& value,
                       const std::vector<absl::string_view>& words) {
  return std::find(words.begin(), words.end(), value) != words.end()
             ? absl::OkStatus()
             : Invalid(key, value, absl::StrCat("one of ", absl::StrJoin(words, ", ")));
}

absl::Status CheckGateway(const GatewayConfig& gateway) {
  if (gateway == GatewayConfig()) {
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(CheckListen("gateway.listen", gateway.listen));
  LAMINA_RETURN_IF_ERROR(CheckCores("gateway.cores", gateway.cores));
  if (gateway.tls_certificate.empty() != gateway.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "gateway: tls_certificate and tls_key go together; give both files or none");
  }
  for (const std::string& name : gateway.model_names) {
    if (name.empty()) {
      return Invalid("gateway.model_names", name, "a list of names that are not empty");
    }
  }
  LAMINA_RETURN_IF_ERROR(
      CheckWord("gateway.tool_parser", gateway.tool_parser,
                {"auto", "none", "harmony", "hermes", "llama3", "mistral", "qwen3_coder"}));
  LAMINA_RETURN_IF_ERROR(
      CheckWord("gateway.reasoning_parser", gateway.reasoning_parser, {"auto", "none", "think"}));
  LAMINA_RETURN_IF_ERROR(CheckRange("gateway.body_bytes_max", gateway.body_bytes_max,
                                    kBodyBytesLeast, kBodyBytesMost));
  LAMINA_RETURN_IF_ERROR(
      CheckRange("gateway.connections_max", gateway.connections_max, 1, kConnectionsMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("gateway.choices_max", gateway.choices_max, 1, kChoicesMax));
  for (const auto& [key, seconds] :
       {std::pair("gateway.request_seconds", gateway.request_seconds),
        std::pair("gateway.idle_seconds", gateway.idle_seconds),
        std::pair("gateway.write_seconds", gateway.write_seconds),
        std::pair("gateway.keep_alive_seconds", gateway.keep_alive_seconds)}) {
    LAMINA_RETURN_IF_ERROR(CheckRange(key, seconds, 1, kGatewaySecondsMax));
  }
  return absl::OkStatus();
}

absl::Status CheckVerbs(const VerbsConfig& verbs) {
  const bool spelled = std::all_of(verbs.device.begin(), verbs.device.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  });
  if (!spelled) {
    return Invalid("verbs.device", verbs.device, "a device's name, like mlx5_0");
  }
  const bool on_pci = std::all_of(verbs.near.begin(), verbs.near.end(), [](unsigned char c) {
    return absl::ascii_isxdigit(c) || c == ':' || c == '.';
  });
  if (!on_pci) {
    return Invalid("verbs.near", verbs.near, "a PCI device's address, like 0000:41:00.0");
  }
  for (const internal::VerbsKey& key : internal::kVerbsKeys) {
    if (const std::optional<uint32_t> value = verbs.*key.value; value.has_value()) {
      LAMINA_RETURN_IF_ERROR(
          CheckRange(absl::StrCat("verbs.", key.name), *value, key.least, key.most));
    }
  }
  if (const uint32_t mtu = verbs.mtu.value_or(256); (mtu & (mtu - 1)) != 0) {
    return Invalid("verbs.mtu", absl::StrCat(mtu), "one of 256, 512, 1024, 2048, 4096");
  }
  return absl::OkStatus();
}

// "throttle(bandwidth=100MB)+shm" is shm, slowed down.
struct Throttled {
  absl::string_view options;  // What stands between the brackets.
  absl::string_view transport;
};
Throttled SplitThrottle(absl::string_view name) {
  absl::string_view rest = name;
  const size_t end = name.find(")+");
  if (!absl::ConsumePrefix(&rest, "throttle(") || end == absl::string_view::npos) {
    return {.options = "", .transport = name};
  }
  return {.options = rest.substr(0, end - (name.size() - rest.size())),
          .transport = name.substr(end + 2)};
}
absl::string_view WithoutThrottle(absl::string_view name) { return SplitThrottle(name).transport; }

absl::Status CheckTransport(const ClusterConfig& config) {
  if (config.transport.empty()) {
    return absl::InvalidArgumentError("transport: the list is empty; name at least one, like shm");
  }
  std::set<std::string> seen;
  for (const std::string& name : config.transport) {
    if (!IsOneOf(WithoutThrottle(name), {"shm", "ucx", "verbs"})) {
      return Invalid("transport", name,
                     "one of shm, ucx, verbs; to emulate a slow link throttle(...)+shm");
    }
    if (const auto throttle = ParseThrottle(SplitThrottle(name).options); !throttle.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("transport: ", throttle.status().message(), " (in '", name, "')"));
    }
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("transport: names ", name, " twice"));
    }
  }
  return CheckVerbs(config.verbs);
}

std::string WithOption(const std::string& uri, absl::string_view option) {
  return absl::StrCat(uri, absl::StrContains(uri, '?') ? "&" : "?", option);
}

std::string WithPorts(const std::string& uri, const PortRange& ports) {
  return ports.is_set() ? WithOption(uri, absl::StrCat("ports=", ToString(ports))) : uri;
}

absl::Status CheckValues(const ClusterConfig& config) {
  if (config.model.empty()) {
    return absl::InvalidArgumentError(
        "model: missing; give a GGUF file or a Hugging Face directory");
  }
  LAMINA_RETURN_IF_ERROR(CheckNetwork("network", config.network));
  LAMINA_RETURN_IF_ERROR(CheckRange("drain_seconds", config.drain_seconds, 0, kDrainSecondsMax));
  LAMINA_RETURN_IF_ERROR(CheckListen("coordinator.listen", config.coordinator_listen));
  if (const std::string& at = config.coordinator_advertise; !at.empty() && !IsServerAddress(at)) {
    return Invalid("coordinator.advertise", at, "an address like 10.1.0.5:7400, with its port");
  }
  LAMINA_RETURN_IF_ERROR(CheckCores("coordinator.cores", config.coordinator_cores));
  if (!config.coordinator_http.empty()) {
    LAMINA_RETURN_IF_ERROR(CheckListen("coordinator.http", config.coordinator_http));
  }
  if (const Nanos keep = config.coordinator_journal_keep;
      keep < kJournalKeepMin || keep > kJournalKeepMax) {
    return Invalid("coordinator.journal_keep", absl::StrCat(ToSeconds(keep), "s"), "in [1s, 1h]");
  }
  LAMINA_RETURN_IF_ERROR(CheckGateway(config.gateway));
  LAMINA_RETURN_IF_ERROR(CheckWord("generation_config", config.generation_config,
                                   {kGenerationConfigAuto, kGenerationConfigNone}));
  LAMINA_RETURN_IF_ERROR(CheckTransport(config));
  LAMINA_RETURN_IF_ERROR(CheckRange("pipeline.lanes", config.pipeline.lanes, 1, plan::kLanesMax));
  LAMINA_RETURN_IF_ERROR(
      CheckRange("pipeline.chunks", config.pipeline.chunks, 1, plan::kSubBatchesMax));
  if (config.pipeline.mode == PipelineMode::kSequential && config.pipeline.lanes != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("pipeline.lanes: ", config.pipeline.lanes,
                     " contradicts pipeline.mode sequential, which has one lane; set it to 1"));
  }
  const std::vector<ReplicaConfig> all = ReplicasOf(config);
  const auto replicas = std::count_if(all.begin(), all.end(), [&](const ReplicaConfig& replica) {
    return !IsForPrompts(config, replica);
  });
  if (config.pipeline.mode == PipelineMode::kSequential && replicas > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute: ", replicas,
                     " replicas contradict pipeline.mode sequential, which uses one; remove the "
                     "others or choose rotational or fixed"));
  }
  LAMINA_RETURN_IF_ERROR(
      CheckRange("prefill.chunk_tokens", config.prefill.chunk_tokens, 1, plan::kChunkTokensMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("prefill.scratch_tokens", config.prefill.scratch_tokens, 1,
                                    plan::kSequenceTokensMax));
  LAMINA_RETURN_IF_ERROR(CheckRange("limits.sequence_tokens_max", config.limits.sequence_tokens_max,
                                    2, plan::kSequenceTokensMax));
  LAMINA_RETURN_IF_ERROR(
      CheckRange("limits.running_max", config.limits.running_max, 1, plan::kRunningMax));
  if (config.pipeline.lanes > config.limits.running_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("pipeline.lanes: ", config.pipeline.lanes, " contradicts limits.running_max ",
                     config.limits.running_max, ": a lane would never have a row"));
  }
  if (config.limits.stuck_after < kStuckAfterMin || config.limits.stuck_after > kStuckAfterMax) {
    return Invalid("limits.stuck_after", absl::StrCat(ToSeconds(config.limits.stuck_after), "s"),
                   "in [2s, 1h]");
  }
  return CheckRange("limits.waiting_max", config.limits.waiting_max, 1, plan::kWaitingMax);
}

template <typename Node>
absl::Status CheckNodeServed(absl::string_view list, size_t index, const Node& node,
                             bool other_hosts) {
  if (!IsThisHost(node.host) && !other_hosts) {
    return NotServed(absl::StrCat(list, ".", index, ".host"), node.host,
                     "localhost, 127.0.0.1 (transport shm joins processes of one host; between "
                     "hosts write transport: ucx, or [verbs, ucx])");
  }
  return absl::OkStatus();  // Whether a node has its device shows where it is started.
}

// Nodes on other hosts must reach the coordinator.
absl::Status CheckReachable(const ClusterConfig& config) {
  const std::string host = ParseHostPort(config.coordinator_listen)->host;
  const auto check = [&](const auto& nodes) -> absl::Status {
    for (const auto& node : nodes) {
      if (IsLoopback(host) && !IsLoopback(node.host)) {
        return Invalid("coordinator.listen", config.coordinator_listen,
                       absl::StrCat("an address of this host that ", node.name, " on ", node.host,
                                    " can reach, or 0.0.0.0 for all"));
      }
    }
    return absl::OkStatus();
  };
  LAMINA_RETURN_IF_ERROR(check(config.compute));
  return check(config.memory);
}

absl::Status CheckServed(const ClusterConfig& config) {
  if (config.compute.size() > plan::kComputeNodesMax) {
    return NotServed("compute", absl::StrCat(config.compute.size(), " nodes"),
                     absl::StrCat("1 to ", plan::kComputeNodesMax));
  }
  if (config.memory.size() > plan::kMemoryNodesMax) {
    return NotServed("memory", absl::StrCat(config.memory.size(), " nodes"),
                     absl::StrCat("1 to ", plan::kMemoryNodesMax));
  }
  if (config.compute.size() + config.memory.size() > plan::kNodesMax) {
    return NotServed("compute and memory",
                     absl::StrCat(config.compute.size() + config.memory.size(), " nodes"),
                     absl::StrCat(plan::kNodesMax, " in all; make several clusters of them"));
  }
  const bool other_hosts =
      !std::all_of(config.transport.begin(), config.transport.end(),
                   [](const std::string& name) { return WithoutThrottle(name) == "shm"; });
  for (size_t i = 0; i < config.compute.size(); ++i) {
    const ComputeNodeConfig& node = config.compute[i];
    LAMINA_RETURN_IF_ERROR(CheckNodeServed("compute", i, node, other_hosts));
    if (node.device != "cpu" && config.Fetches()) {
      return NotServed(absl::StrCat("compute.", i, ".device"), node.device,
                       absl::StrCat("cpu, with policy ", config.policy,
                                    "; cuda with policies attend_remote, local and auto"));
    }
  }
  for (size_t i = 0; i < config.memory.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(CheckNodeServed("memory", i, config.memory[i], other_hosts));
    if (config.memory[i].device != "cpu" && config.Fetches()) {
      return NotServed(
          absl::StrCat("memory.", i, ".device"), config.memory[i].device,
          absl::StrCat("cpu, with policy ", config.policy, "; cuda with policy attend_remote"));
    }
  }
  return absl::OkStatus();
}

// "3" or "1-4".
absl::Status AppendCoreRange(absl::string_view text, absl::string_view part,
                             std::vector<int>& cores) {
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(part, '-');
  const absl::string_view last_text = absl::StrContains(part, '-') ? ends.second : ends.first;
  int first = 0;
  int last = 0;
  const auto is_number = [](absl::string_view s) {
    return !s.empty() && std::all_of(s.begin(), s.end(), absl::ascii_isdigit);
  };
  if (!is_number(ends.first) || !is_number(last_text) || !absl::SimpleAtoi(ends.first, &first) ||
      !absl::SimpleAtoi(last_text, &last) || first > last || last > kCoreMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a list of cores; write it like 0 or 0-3,8 (at most ", kCoreMax, ")"));
  }
  for (int core = first; core <= last; ++core) {
    if (std::find(cores.begin(), cores.end(), core) != cores.end()) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' names core ", core, " twice"));
    }
    cores.push_back(core);
  }
  return absl::OkStatus();
}

absl::Status ValidateAlone(const ClusterConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckValues(config));
  LAMINA_RETURN_IF_ERROR(CheckNodes(config));
  LAMINA_RETURN_IF_ERROR(CheckReplicas(config));
  LAMINA_RETURN_IF_ERROR(CheckRoles(config));
  LAMINA_RETURN_IF_ERROR(internal::CheckPolicy(config));
  LAMINA_RETURN_IF_ERROR(internal::CheckKvForm(config));
  LAMINA_RETURN_IF_ERROR(internal::CheckSpill(config));
  LAMINA_RETURN_IF_ERROR(internal::CheckWeights(config));
  LAMINA_RETURN_IF_ERROR(internal::CheckAttention(config));
  LAMINA_RETURN_IF_ERROR(CheckServed(config));
  return CheckReachable(config);
}

}  // namespace

std::string VerbsConfig::Uri() const {
  std::string uri = absl::StrCat("verbs://", device);
  char separator = '?';
  if (!near.empty()) {
    absl::StrAppend(&uri, "?near=", near);
    separator = '&';
  }
  for (const internal::VerbsKey& key : internal::kVerbsKeys) {
    if (const std::optional<uint32_t> number = this->*key.value; number.has_value()) {
      absl::StrAppend(&uri, std::string(1, separator), key.name, "=", *number);
      separator = '&';
    }
  }
  return uri;
}

bool ClusterConfig::IsOneHost() const {
  const auto here = [](const auto& node) { return IsThisHost(node.host); };
  return std::all_of(compute.begin(), compute.end(), here) &&
         std::all_of(memory.begin(), memory.end(), here);
}

std::string ClusterConfig::UcxUriBetweenHosts() const { return WithPorts("ucx://", ports); }

std::string ClusterConfig::VerbsUriBetweenHosts() const {
  const std::string uri = verbs.Uri();
  return WithPorts(network.empty() ? uri : WithOption(uri, absl::StrCat("network=", network)),
                   ports);
}

std::string ClusterConfig::CoordinatorAddress() const {
  return ReachedFromHere(coordinator_advertise.empty() ? coordinator_listen
                                                       : coordinator_advertise);
}

std::string ClusterConfig::UcxUri() const {
  const std::string uri = UcxUriBetweenHosts();
  return IsOneHost() ? WithOption(uri, kLocalPeers) : uri;
}

std::string ClusterConfig::VerbsUri() const {
  const std::string uri = VerbsUriBetweenHosts();
  return IsOneHost() ? WithOption(uri, kLocalPeers) : uri;
}

bool ClusterConfig::QuantisesWeights() const {
  return std::any_of(compute.begin(), compute.end(), [](const ComputeNodeConfig& node) {
    return node.weights == WeightsForm::kInt8;
  });
}

std::string ClusterConfig::FingerprintOf(const std::string& of_model) const {
  return QuantisesWeights() ? absl::StrCat(of_model, "-int8") : of_model;
}

bool ClusterConfig::HasDevices() const {
  const auto on_device = [](const auto& node) { return node.device != "cpu"; };
  return std::any_of(compute.begin(), compute.end(), on_device) ||
         std::any_of(memory.begin(), memory.end(), on_device);
}

bool ClusterConfig::Prepares(absl::string_view name) const {
  return policies.empty() ? policy == name
                          : std::find(policies.begin(), policies.end(), name) != policies.end();
}

// Each policy of several is served as far as it is alone.
absl::Status ClusterConfig::Validate() const {
  LAMINA_RETURN_IF_ERROR(internal::CheckPolicies(*this));
  if (policies.size() <= 1) {
    return ValidateAlone(*this);
  }
  LAMINA_RETURN_IF_ERROR(ValidateAlone(internal::OfPolicy(*this, policy)));
  for (const std::string& name : policies) {
    if (const absl::Status alone = ValidateAlone(internal::OfPolicy(*this, name)); !alone.ok()) {
      return {alone.code(), absl::StrCat(alone.message(), "; policies has ", name)};
    }
  }
  return absl::OkStatus();
}

uint32_t ClusterConfig::CountCompute(ComputeRole role) const {
  return static_cast<uint32_t>(
      std::count_if(compute.begin(), compute.end(),
                    [&](const ComputeNodeConfig& node) { return node.role == role; }));
}

const ComputeNodeConfig* ClusterConfig::FindCompute(absl::string_view name) const {
  const auto it = std::find_if(compute.begin(), compute.end(),
                               [&](const ComputeNodeConfig& node) { return node.name == name; });
  return it == compute.end() ? nullptr : &*it;
}

const MemoryNodeConfig* ClusterConfig::FindMemory(absl::string_view name) const {
  const auto it = std::find_if(memory.begin(), memory.end(),
                               [&](const MemoryNodeConfig& node) { return node.name == name; });
  return it == memory.end() ? nullptr : &*it;
}

absl::StatusOr<std::vector<int>> ParseCores(absl::string_view text) {
  std::vector<int> cores;
  const absl::string_view all = absl::StripAsciiWhitespace(text);
  if (all.empty()) {
    return cores;
  }
  for (const absl::string_view part : absl::StrSplit(all, ',')) {
    LAMINA_RETURN_IF_ERROR(AppendCoreRange(text, absl::StripAsciiWhitespace(part), cores));
  }
  return cores;
}

std::optional<ThrottleOptions> BusOf(const ClusterConfig& config) {
  for (const std::string& name : config.transport) {
    absl::StatusOr<ThrottleOptions> options = ParseThrottle(SplitThrottle(name).options);
    if (options.ok() && !options->bus.empty()) {
      return *std::move(options);
    }
  }
  return std::nullopt;
}

}  // namespace lamina
