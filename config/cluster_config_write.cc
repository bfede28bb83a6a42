// SPDX-License-Identifier: Apache-2.0
//
// Writing of the cluster file: what it prints reads back as the same configuration.
#include <charconv>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "config/cluster_config.h"
#include "config/enum_names_internal.h"
#include "config/verbs_keys_internal.h"
#include "yaml-cpp/yaml.h"

namespace lamina {
namespace {

std::string FormatCores(const std::vector<int>& cores) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < cores.size();) {
    size_t end = i + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) {
      ++end;
    }
    parts.push_back(end - i == 1 ? absl::StrCat(cores[i])
                                 : absl::StrCat(cores[i], "-", cores[end - 1]));
    i = end;
  }
  return absl::StrJoin(parts, ",");
}

void EmitCores(YAML::Emitter& out, const std::vector<int>& cores) {
  out << YAML::Key << "cores" << YAML::Value << YAML::DoubleQuoted << FormatCores(cores);
}

template <typename Node>
void EmitNode(YAML::Emitter& out, const Node& node) {
  out << YAML::Key << "name" << YAML::Value << node.name;
  out << YAML::Key << "host" << YAML::Value << node.host;
  out << YAML::Key << "device" << YAML::Value << node.device;
  EmitCores(out, node.cores);
  out << YAML::Key << "threads" << YAML::Value << node.threads;
  if (!node.http.empty()) {
    out << YAML::Key << "http" << YAML::Value << node.http;
  }
}

// The largest unit that divides the size, so that reading it back gives the same number.
std::string FormatExactBytes(uint64_t bytes) {
  constexpr std::pair<int, absl::string_view> kUnits[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& [shift, unit] : kUnits) {
    if (bytes != 0 && bytes % (uint64_t{1} << shift) == 0) {
      return absl::StrCat(bytes >> shift, unit);
    }
  }
  return absl::StrCat(bytes);
}

// The largest unit that divides the time, so that reading it back gives the same.
std::string FormatExactDuration(Nanos length) {
  constexpr std::pair<Nanos, absl::string_view> kUnits[] = {{Seconds(1), "s"}, {Millis(1), "ms"}};
  for (const auto& [unit, name] : kUnits) {
    if (length % unit == 0) {
      return absl::StrCat(length / unit, name);
    }
  }
  return absl::StrCat(length, "ns");
}

// The shortest decimal that reads back as the same number; StrCat rounds to six digits.
std::string FormatExactNumber(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, end.ptr);
}

void EmitStage(YAML::Emitter& out, const ComputeNodeConfig& node) {
  if (!node.replica.empty()) {
    out << YAML::Key << "replica" << YAML::Value << node.replica;
  }
  if (node.stage.has_value()) {
    out << YAML::Key << "stage" << YAML::Value << *node.stage;
  }
  if (node.shard.has_value()) {
    out << YAML::Key << "shard" << YAML::Value << *node.shard;
  }
  if (node.layers.has_value()) {
    out << YAML::Key << "layers" << YAML::Value << YAML::DoubleQuoted
        << absl::StrCat(node.layers->first, "-", node.layers->last);
  }
}

void EmitPrice(YAML::Emitter& out, double price_per_hour) {
  if (price_per_hour > 0) {
    out << YAML::Key << "price" << YAML::Value
        << absl::StrCat(FormatExactNumber(price_per_hour), "/h");
  }
}

void EmitNodes(YAML::Emitter& out, const ClusterConfig& config) {
  out << YAML::Key << "compute" << YAML::Value << YAML::BeginSeq;
  for (const ComputeNodeConfig& node : config.compute) {
    out << YAML::Flow << YAML::BeginMap;
    EmitNode(out, node);
    out << YAML::Key << "compute_type" << YAML::Value << node.compute_type << YAML::Key << "role"
        << YAML::Value << std::string(internal::EnumName(internal::kComputeRoles, node.role));
    EmitStage(out, node);
    if (node.capacity_bytes > 0) {
      out << YAML::Key << "capacity" << YAML::Value << FormatExactBytes(node.capacity_bytes);
    }
    if (node.memory_budget_bytes > 0) {
      out << YAML::Key << "memory_budget" << YAML::Value
          << FormatExactBytes(node.memory_budget_bytes);
    }
    out << YAML::Key << "weights" << YAML::Value
        << std::string(internal::EnumName(internal::kWeightsForms, node.weights));
    if (node.weights_budget_bytes > 0) {
      out << YAML::Key << "weights_budget" << YAML::Value
          << FormatExactBytes(node.weights_budget_bytes) << YAML::Key << "weights_store"
          << YAML::Value << node.weights_store;
    }
    if (node.weights_ahead != ComputeNodeConfig().weights_ahead) {
      out << YAML::Key << "weights_ahead" << YAML::Value << node.weights_ahead;
    }
    EmitPrice(out, node.price_per_hour);
    out << YAML::EndMap;
  }
  out << YAML::EndSeq;
  if (config.memory.empty()) {
    return;  // Policy local.
  }
  out << YAML::Key << "memory" << YAML::Value << YAML::BeginSeq;
  for (const MemoryNodeConfig& node : config.memory) {
    out << YAML::Flow << YAML::BeginMap;
    EmitNode(out, node);
    out << YAML::Key << "capacity" << YAML::Value << FormatExactBytes(node.capacity_bytes);
    if (!node.attend) {
      out << YAML::Key << "attend" << YAML::Value << false;
    }
    if (!node.spill.path.empty()) {
      out << YAML::Key << "spill" << YAML::Value << YAML::BeginMap << YAML::Key << "path"
          << YAML::Value << node.spill.path << YAML::Key << "capacity" << YAML::Value
          << FormatExactBytes(node.spill.capacity_bytes) << YAML::EndMap;
    }
    EmitPrice(out, node.price_per_hour);
    if (node.device != "cpu") {
      out << YAML::Key << "windows" << YAML::Value
          << std::string(internal::EnumName(internal::kWindowPlaces, node.windows));
    }
    out << YAML::EndMap;
  }
  out << YAML::EndSeq;
}

// Empty values are left out: they are the defaults.
void EmitGateway(YAML::Emitter& out, const GatewayConfig& gateway) {
  const auto word = [&out](const char* key, const std::string& value) {
    if (!value.empty()) {
      out << YAML::Key << key << YAML::Value << value;
    }
  };
  const auto words = [&out](const char* key, const std::vector<std::string>& value) {
    if (!value.empty()) {
      out << YAML::Key << key << YAML::Value << YAML::Flow << value;
    }
  };
  const auto number = [&out](const char* key, uint32_t value) {
    out << YAML::Key << key << YAML::Value << value;
  };
  if (gateway.listen.empty()) {
    return;
  }
  out << YAML::Key << "gateway" << YAML::Value << YAML::BeginMap;
  word("listen", gateway.listen);
  if (!gateway.cores.empty()) {
    EmitCores(out, gateway.cores);
  }
  words("model_names", gateway.model_names);
  word("api_keys_file", gateway.api_keys_file);
  word("tls_certificate", gateway.tls_certificate);
  word("tls_key", gateway.tls_key);
  words("cors_origins", gateway.cors_origins);
  word("body_bytes_max", FormatExactBytes(gateway.body_bytes_max));
  number("connections_max", gateway.connections_max);
  number("choices_max", gateway.choices_max);
  word("tool_parser", gateway.tool_parser);
  word("reasoning_parser", gateway.reasoning_parser);
  number("request_seconds", gateway.request_seconds);
  number("idle_seconds", gateway.idle_seconds);
  number("write_seconds", gateway.write_seconds);
  number("keep_alive_seconds", gateway.keep_alive_seconds);
  out << YAML::EndMap;
}

void EmitVerbs(YAML::Emitter& out, const VerbsConfig& verbs) {
  if (verbs == VerbsConfig()) {
    return;
  }
  out << YAML::Key << "verbs" << YAML::Value << YAML::Flow << YAML::BeginMap;
  if (!verbs.device.empty()) {
    out << YAML::Key << "device" << YAML::Value << verbs.device;
  }
  if (!verbs.near.empty()) {
    out << YAML::Key << "near" << YAML::Value << YAML::DoubleQuoted << verbs.near;
  }
  for (const internal::VerbsKey& key : internal::kVerbsKeys) {
    if (const std::optional<uint32_t> value = verbs.*key.value; value.has_value()) {
      out << YAML::Key << key.name << YAML::Value << *value;
    }
  }
  out << YAML::EndMap;
}

// What only clusters of several hosts have.
void EmitHosts(YAML::Emitter& out, const ClusterConfig& config) {
  if (config.tls.is_set()) {
    out << YAML::Key << "tls" << YAML::Value << YAML::Flow << YAML::BeginMap << YAML::Key << "ca"
        << YAML::Value << config.tls.ca << YAML::Key << "certificate" << YAML::Value
        << config.tls.certificate << YAML::Key << "key" << YAML::Value << config.tls.key
        << YAML::EndMap;
  }
  if (!config.bundle.dir.empty()) {
    out << YAML::Key << "bundle" << YAML::Value << YAML::Flow << YAML::BeginMap << YAML::Key
        << "dir" << YAML::Value << config.bundle.dir << YAML::EndMap;
  }
  if (!config.network.empty()) {
    out << YAML::Key << "network" << YAML::Value << config.network;
  }
  if (config.ports.is_set()) {
    out << YAML::Key << "ports" << YAML::Value << ToString(config.ports);
  }
  out << YAML::Key << "drain_seconds" << YAML::Value << config.drain_seconds;
}

}  // namespace

std::string ToYaml(const ClusterConfig& config) {
  using internal::EnumName;
  YAML::Emitter out;
  const auto word = [&out](const char* key, absl::string_view value) {
    out << YAML::Key << key << YAML::Value << std::string(value);
  };
  const auto number = [&out](const char* key, uint32_t value) {
    out << YAML::Key << key << YAML::Value << value;
  };
  const auto section = [&out](const char* key) {
    out << YAML::Key << key << YAML::Value << YAML::Flow << YAML::BeginMap;
  };
  out << YAML::BeginMap;
  word("model", config.model);
  if (!config.chat_template.empty()) {
    word("chat_template", config.chat_template);
  }
  if (config.generation_config != kGenerationConfigAuto) {
    word("generation_config", config.generation_config);
  }
  if (!config.cluster_token_file.empty()) {
    word("cluster_token_file", config.cluster_token_file);
  }
  EmitHosts(out, config);
  section("coordinator");
  word("listen", config.coordinator_listen);
  if (!config.coordinator_advertise.empty()) {
    word("advertise", config.coordinator_advertise);
  }
  if (!config.coordinator_http.empty()) {
    word("http", config.coordinator_http);
  }
  if (!config.coordinator_spans.empty()) {
    word("spans", config.coordinator_spans);
  }
  if (!config.coordinator_journal.empty()) {
    word("journal", config.coordinator_journal);
    word("journal_keep", FormatExactDuration(config.coordinator_journal_keep));
  }
  if (!config.coordinator_cores.empty()) {
    EmitCores(out, config.coordinator_cores);
  }
  out << YAML::EndMap;
  EmitGateway(out, config.gateway);
  EmitNodes(out, config);
  out << YAML::Key << "transport" << YAML::Value << YAML::Flow << config.transport;
  EmitVerbs(out, config.verbs);
  section("pipeline");
  word("mode", EnumName(internal::kPipelineModes, config.pipeline.mode));
  if (config.pipeline.lanes_auto) {
    word("lanes", "auto");
  } else {
    number("lanes", config.pipeline.lanes);
  }
  if (config.pipeline.chunks_auto) {
    word("chunks", "auto");
  } else {
    number("chunks", config.pipeline.chunks);
  }
  word("query_first", EnumName(internal::kQueryFirst, config.pipeline.query_first));
  word("device_waits", EnumName(internal::kDeviceWaits, config.pipeline.device_waits));
  out << YAML::EndMap;
  word("partition", EnumName(internal::kPartitions, config.partition));
  section("attention");
  word("decode", EnumName(internal::kAttentions, config.attention.decode));
  word("prefill", EnumName(internal::kAttentions, config.attention.prefill));
  out << YAML::EndMap;
  if (config.HasBothForms()) {
    out << YAML::Key << "kv" << YAML::Value << YAML::Flow << YAML::BeginSeq;
    for (const KvForm form : config.kv_forms) {
      out << std::string(EnumName(internal::kKvForms, form));
    }
    out << YAML::EndSeq;
    number("kv_int8_percent", config.kv_int8_percent);
  } else {
    word("kv", EnumName(internal::kKvForms, config.kv));
  }
  word("policy", config.policy);
  if (!config.policies.empty()) {
    out << YAML::Key << "policies" << YAML::Value << YAML::Flow << config.policies;
  }
  if (config.policy == kPolicyAuto) {
    section("policy_load");
    number("rows", config.policy_load.rows);
    number("context", config.policy_load.context);
    number("prompts", config.policy_load.prompts);
    out << YAML::EndMap;
  }
  const bool weighs = config.policy == kPolicyAuto;
  if (config.Fetches() || weighs) {
    section("fetch");
    word("window", FormatExactBytes(config.fetch.window_bytes));
    if (weighs || config.Prepares(kPolicyFetchHeads) || config.Prepares(kPolicyFetchSparse)) {
      word("heads", config.fetch.heads_auto ? "auto" : absl::StrCat(config.fetch.heads));
    }
    if (!config.fetch.streaming_heads.empty()) {
      word("streaming_heads", config.fetch.streaming_heads);
      number("streaming_sink", config.fetch.streaming_sink);
      number("streaming_window", config.fetch.streaming_window);
    }
    if (config.Prepares(kPolicyFetchSparse)) {
      word("caching_ratio", FormatExactNumber(config.fetch.caching_ratio));
      word("sparse", EnumName(internal::kSparseTokens, config.fetch.sparse));
    }
    if (config.fetch.resident_bytes > 0) {
      word("resident", FormatExactBytes(config.fetch.resident_bytes));
    }
    if (config.Prepares(kPolicyFetchRecompute)) {
      word("recompute_percent",
           config.fetch.recompute_auto ? "auto" : absl::StrCat(config.fetch.recompute_percent));
    }
    if (config.RecomputesFromTokens()) {
      word("recompute", EnumName(internal::kRecomputeFrom, config.fetch.recompute));
      number("recompute_tokens_max", config.fetch.recompute_tokens_max);
    }
    if (!config.fetch.kv_weights_first) {
      word("kv_weights_first", "false");
    }
    if (config.Prepares(kPolicyFetchHybrid)) {
      word("activation_percent",
           config.fetch.activation_auto ? "auto" : absl::StrCat(config.fetch.activation_percent));
    }
    if (config.HoldsHybridApart()) {
      number("hybrid_percent", config.fetch.hybrid_percent);
    }
    if (config.fetch.packing) {
      word("packing", "true");
    }
    out << YAML::EndMap;
  }
  section("prefill");
  word("mode", EnumName(internal::kPrefillModes, config.prefill.mode));
  number("chunk_tokens", config.prefill.chunk_tokens);
  number("scratch_tokens", config.prefill.scratch_tokens);
  out << YAML::EndMap;
  section("limits");
  number("sequence_tokens_max", config.limits.sequence_tokens_max);
  number("running_max", config.limits.running_max);
  number("waiting_max", config.limits.waiting_max);
  word("stuck_after", FormatExactDuration(config.limits.stuck_after));
  out << YAML::EndMap;
  word("prefix_cache", EnumName(internal::kPrefixCacheModes, config.prefix_cache));
  word("order", EnumName(internal::kServiceOrders, config.order));
  section("log");
  word("level", EnumName(internal::kLogLevels, config.log.level));
  word("format", EnumName(internal::kLogFormats, config.log.format));
  out << YAML::EndMap;
  out << YAML::EndMap;
  return absl::StrCat(out.c_str(), "\n");
}

}  // namespace lamina
