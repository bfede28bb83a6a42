// SPDX-License-Identifier: Apache-2.0
//
// Reading of the cluster file: the tables of its keys.
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "config/cluster_config.h"
#include "config/cluster_file_values_internal.h"
#include "config/enum_names_internal.h"
#include "config/policy_internal.h"
#include "config/verbs_keys_internal.h"
#include "config/weights_internal.h"
#include "yaml-cpp/yaml.h"

namespace lamina {
namespace {

using internal::Key;
using internal::ReadValue;

class ClusterFileReader : private internal::ClusterFileValues {
 public:
  ClusterFileReader(absl::string_view origin, ClusterConfig& config)
      : ClusterFileValues(origin), config_(config) {}

  using ClusterFileValues::OriginOf;
  using ClusterFileValues::Override;
  absl::Status Read(const YAML::Node& root);

 private:
  std::vector<Key> ComputeKeys(ComputeNodeConfig& node) const;
  std::vector<Key> MemoryKeys(MemoryNodeConfig& node) const;
  std::vector<Key> GatewayKeys(GatewayConfig& gateway) const;
  std::vector<Key> VerbsKeys(VerbsConfig& verbs) const;

  ClusterConfig& config_;
};

std::vector<Key> ClusterFileReader::ComputeKeys(ComputeNodeConfig& node) const {
  return {{"name", Text(node.name)},
          {"host", Text(node.host)},
          {"device", Text(node.device)},
          {"cores", Cores(node.cores)},
          {"threads", Number(node.threads)},
          {"compute_type", Text(node.compute_type)},
          {"http", Text(node.http)},
          {"replica", Text(node.replica)},
          {"stage", Number(node.stage)},
          {"shard", Number(node.shard)},
          {"layers", Layers(node.layers)},
          {"capacity", Size(node.capacity_bytes)},
          {"memory_budget", Size(node.memory_budget_bytes)},
          {"weights", Choice(internal::kWeightsForms, node.weights)},
          {"weights_budget", Size(node.weights_budget_bytes)},
          {"weights_store", Text(node.weights_store)},
          {"weights_ahead", Number(node.weights_ahead)},
          {"price", Price(node.price_per_hour)},
          {"role", Choice(internal::kComputeRoles, node.role)}};
}

std::vector<Key> ClusterFileReader::MemoryKeys(MemoryNodeConfig& node) const {
  return {{"name", Text(node.name)},
          {"host", Text(node.host)},
          {"device", Text(node.device)},
          {"cores", Cores(node.cores)},
          {"threads", Number(node.threads)},
          {"capacity", Size(node.capacity_bytes)},
          {"attend", Choice(internal::kTruths, node.attend)},
          {"spill", Section({{"path", Text(node.spill.path)},
                             {"capacity", Size(node.spill.capacity_bytes)}})},
          {"price", Price(node.price_per_hour)},
          {"http", Text(node.http)},
          {"windows", Choice(internal::kWindowPlaces, node.windows)}};
}

std::vector<Key> ClusterFileReader::GatewayKeys(GatewayConfig& gateway) const {
  return {{"listen", Text(gateway.listen)},
          {"cores", Cores(gateway.cores)},
          {"model_names", Words(gateway.model_names)},
          {"api_keys_file", Text(gateway.api_keys_file)},
          {"tls_certificate", Text(gateway.tls_certificate)},
          {"tls_key", Text(gateway.tls_key)},
          {"cors_origins", Words(gateway.cors_origins)},
          {"body_bytes_max", Size(gateway.body_bytes_max)},
          {"connections_max", Number(gateway.connections_max)},
          {"choices_max", Number(gateway.choices_max)},
          {"tool_parser", Text(gateway.tool_parser)},
          {"reasoning_parser", Text(gateway.reasoning_parser)},
          {"request_seconds", Number(gateway.request_seconds)},
          {"idle_seconds", Number(gateway.idle_seconds)},
          {"write_seconds", Number(gateway.write_seconds)},
          {"keep_alive_seconds", Number(gateway.keep_alive_seconds)}};
}

std::vector<Key> ClusterFileReader::VerbsKeys(VerbsConfig& verbs) const {
  std::vector<Key> keys = {{"device", Text(verbs.device)}, {"near", Text(verbs.near)}};
  for (const internal::VerbsKey& key : internal::kVerbsKeys) {
    keys.push_back({key.name, Number(verbs.*key.value)});
  }
  return keys;
}

absl::Status ClusterFileReader::Read(const YAML::Node& root) {
  ClusterConfig& c = config_;
  std::optional<uint32_t> lanes;
  std::optional<std::string> policy;  // Not given: the first of `policies`, if any.
  const ReadValue decode = Choice(internal::kAttentions, c.attention.decode);
  const ReadValue prefill = Choice(internal::kAttentions, c.attention.prefill);
  const ReadValue attention = [&](const YAML::Node& node, const std::string& path) {
    if (!node.IsScalar()) {
      return ReadKeys(node, path, {{"decode", decode}, {"prefill", prefill}});
    }
    const absl::Status read = decode(node, path);
    return read.ok() ? prefill(node, path) : read;
  };
  const std::vector<Key> keys = {
      {"model", Text(c.model)},
      {"chat_template", Text(c.chat_template)},
      {"generation_config", Text(c.generation_config)},
      {"cluster_token_file", Text(c.cluster_token_file)},
      {"tls", Section({{"ca", Text(c.tls.ca)},
                       {"certificate", Text(c.tls.certificate)},
                       {"key", Text(c.tls.key)}})},
      {"bundle", Section({{"dir", Text(c.bundle.dir)}})},
      {"network", Text(c.network)},
      {"ports", Ports(c.ports)},
      {"drain_seconds", Number(c.drain_seconds)},
      {"coordinator", Section({{"listen", Text(c.coordinator_listen)},
                               {"advertise", Text(c.coordinator_advertise)},
                               {"http", Text(c.coordinator_http)},
                               {"spans", Text(c.coordinator_spans)},
                               {"journal", Text(c.coordinator_journal)},
                               {"journal_keep", Duration(c.coordinator_journal_keep)},
                               {"cores", Cores(c.coordinator_cores)}})},
      {"gateway", Section(GatewayKeys(c.gateway))},
      {"compute", List<ComputeNodeConfig>(
                      c.compute, [this](ComputeNodeConfig& node) { return ComputeKeys(node); })},
      {"memory", List<MemoryNodeConfig>(
                     c.memory, [this](MemoryNodeConfig& node) { return MemoryKeys(node); })},
      {"transport", Words(c.transport)},
      {"verbs", Section(VerbsKeys(c.verbs))},
      {"pipeline",
       Section({{"mode", Choice(internal::kPipelineModes, c.pipeline.mode)},
                {"lanes", NumberOrAuto(lanes, c.pipeline.lanes_auto)},
                {"chunks", NumberOrAuto(c.pipeline.chunks, c.pipeline.chunks_auto)},
                {"query_first", Choice(internal::kQueryFirst, c.pipeline.query_first)},
                {"device_waits", Choice(internal::kDeviceWaits, c.pipeline.device_waits)}})},
      {"partition", Choice(internal::kPartitions, c.partition)},
      {"attention", attention},
      {"kv", Choices(internal::kKvForms, c.kv, c.kv_forms)},
      {"kv_int8_percent", Number(c.kv_int8_percent)},
      {"policy", [&](const YAML::Node& node,
                     const std::string& path) { return Text(policy.emplace())(node, path); }},
      {"policies", Words(c.policies)},
      {"policy_load", Section({{"rows", Number(c.policy_load.rows)},
                               {"context", Number(c.policy_load.context)},
                               {"prompts", Number(c.policy_load.prompts)}})},
      {"fetch", Section({{"window", Size(c.fetch.window_bytes)},
                         {"heads", NumberOrAuto(c.fetch.heads, c.fetch.heads_auto)},
                         {"recompute", Choice(internal::kRecomputeFrom, c.fetch.recompute)},
                         {"recompute_tokens_max", Number(c.fetch.recompute_tokens_max)},
                         {"recompute_percent",
                          NumberOrAuto(c.fetch.recompute_percent, c.fetch.recompute_auto)},
                         {"kv_weights_first", Choice(internal::kTruths, c.fetch.kv_weights_first)},
                         {"activation_percent",
                          NumberOrAuto(c.fetch.activation_percent, c.fetch.activation_auto)},
                         {"hybrid_percent", Number(c.fetch.hybrid_percent)},
                         {"packing", Choice(internal::kTruths, c.fetch.packing)},
                         {"caching_ratio", Ratio(c.fetch.caching_ratio)},
                         {"resident", Size(c.fetch.resident_bytes)},
                         {"sparse", Choice(internal::kSparseTokens, c.fetch.sparse)},
                         {"streaming_heads", Text(c.fetch.streaming_heads)},
                         {"streaming_sink", Number(c.fetch.streaming_sink)},
                         {"streaming_window", Number(c.fetch.streaming_window)}})},
      {"prefill", Section({{"mode", Choice(internal::kPrefillModes, c.prefill.mode)},
                           {"chunk_tokens", Number(c.prefill.chunk_tokens)},
                           {"scratch_tokens", Number(c.prefill.scratch_tokens)}})},
      {"limits", Section({{"sequence_tokens_max", Number(c.limits.sequence_tokens_max)},
                          {"running_max", Number(c.limits.running_max)},
                          {"waiting_max", Number(c.limits.waiting_max)},
                          {"stuck_after", Duration(c.limits.stuck_after)}})},
      {"prefix_cache", Choice(internal::kPrefixCacheModes, c.prefix_cache)},
      {"order", Choice(internal::kServiceOrders, c.order)},
      {"log", Section({{"level", Choice(internal::kLogLevels, c.log.level)},
                       {"format", Choice(internal::kLogFormats, c.log.format)}})}};
  LAMINA_RETURN_IF_ERROR(ReadKeys(root, "", keys));
  if (policy.has_value() || !c.policies.empty()) {
    c.policy = policy.has_value() ? *policy : c.policies.front();
  }
  c.pipeline.lanes = lanes.value_or(0);
  if (!lanes.has_value()) {
    c.pipeline.lanes = internal::DefaultLanes(c);
    c.pipeline.lanes_auto =
        c.pipeline.mode != PipelineMode::kSequential && !internal::StreamsWeights(c);
  }
  return absl::OkStatus();
}

absl::StatusOr<YAML::Node> LoadYaml(absl::string_view text, absl::string_view origin) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ":", documents[1].Mark().line + 1,
                       ": a second YAML document begins here; a cluster file has one, so remove "
                       "the --- before it"));
    }
    return documents.empty() ? YAML::Node() : documents[0];
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

}  // namespace

absl::StatusOr<ClusterConfig> ParseClusterConfig(absl::string_view text, absl::string_view origin,
                                                 const std::vector<std::string>& overrides) {
  LAMINA_ASSIGN_OR_RETURN(YAML::Node root, LoadYaml(text, origin));
  ClusterConfig config;
  ClusterFileReader reader(origin, config);
  try {
    for (const std::string& assignment : overrides) {
      LAMINA_RETURN_IF_ERROR(reader.Override(assignment, root));
    }
    LAMINA_RETURN_IF_ERROR(reader.Read(root));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": ", error.what()));
  }
  const absl::Status valid = config.Validate();
  if (!valid.ok()) {
    return absl::Status(valid.code(),
                        absl::StrCat(reader.OriginOf(valid.message()), ": ", valid.message()));
  }
  return config;
}

}  // namespace lamina
