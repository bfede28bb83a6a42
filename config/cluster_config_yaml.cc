// SPDX-License-Identifier: Apache-2.0
//
// Reading of the cluster file. Each section is a table of keys and of what reads their
// value, so that unknown keys, duplicates and bad values are told apart in one place.
#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/string_distance.h"
#include "common/units.h"
#include "config/cluster_config.h"
#include "config/enum_names_internal.h"
#include "config/override_internal.h"
#include "config/policy_internal.h"
#include "config/replicas.h"
#include "config/verbs_keys_internal.h"
#include "config/weights_internal.h"
#include "yaml-cpp/yaml.h"

namespace lamina {
namespace {

constexpr double kPricePerHourMax = 1e6;

// What is wrong with what cannot be read as a uint32_t.
absl::string_view WhyNoNumber(absl::string_view text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return digits ? "more than 4294967295, the most that any number may be" : "not a whole number";
}

using ReadValue = std::function<absl::Status(const YAML::Node& node, const std::string& path)>;
struct Key {
  std::string name;
  ReadValue read;
};

class ClusterFileReader {
 public:
  ClusterFileReader(absl::string_view origin, ClusterConfig& config)
      : origin_(origin), config_(config) {}

  absl::Status Override(const std::string& assignment, YAML::Node& root) {
    LAMINA_ASSIGN_OR_RETURN(const std::string path, internal::ApplyOverride(assignment, root));
    overridden_.emplace_back(path, assignment);
    return absl::OkStatus();
  }
  absl::Status Read(const YAML::Node& root);
  // Where the key comes from with which `message` begins: "FILE" or "--set KEY=VALUE".
  std::string OriginOf(absl::string_view message) const;

 private:
  absl::Status Error(const YAML::Node& node, const std::string& path,
                     absl::string_view message) const;
  absl::Status ReadKeys(const YAML::Node& node, const std::string& path,
                        const std::vector<Key>& keys) const;
  ReadValue Section(std::vector<Key> keys) const;
  template <typename Node>
  ReadValue List(std::vector<Node>& out, std::function<std::vector<Key>(Node&)> keys) const;
  ReadValue Text(std::string& out) const;
  ReadValue Number(uint32_t& out) const;
  ReadValue NumberOrAuto(uint32_t& out, bool& automatic) const;
  ReadValue NumberOrAuto(std::optional<uint32_t>& out, bool& automatic) const;
  ReadValue Number(std::optional<uint32_t>& out) const;
  ReadValue Size(uint64_t& out) const;
  ReadValue Duration(Nanos& out) const;
  ReadValue Price(double& out) const;
  ReadValue Ratio(double& out) const;
  ReadValue Cores(std::vector<int>& out) const;
  ReadValue Ports(PortRange& out) const;
  ReadValue Words(std::vector<std::string>& out) const;
  ReadValue Layers(std::optional<LayerRange>& out) const;
  template <typename Enum, size_t N>
  ReadValue Choice(const internal::EnumNames<Enum, N>& names, Enum& out) const;
  template <typename Names, typename Enum>
  ReadValue Choices(const Names& names, Enum& first, std::vector<Enum>& out) const;
  absl::Status RequireScalar(const YAML::Node& node, const std::string& path) const;

  std::vector<Key> ComputeKeys(ComputeNodeConfig& node) const;
  std::vector<Key> MemoryKeys(MemoryNodeConfig& node) const;
  std::vector<Key> GatewayKeys(GatewayConfig& gateway) const;
  std::vector<Key> VerbsKeys(VerbsConfig& verbs) const;

  const std::string origin_;
  ClusterConfig& config_;
  std::vector<std::pair<std::string, std::string>> overridden_;  // Path, and what was typed.
};

// Says where the value came from: a line of the file, or an override.
absl::Status ClusterFileReader::Error(const YAML::Node& node, const std::string& path,
                                      absl::string_view message) const {
  std::string where = absl::StrCat(origin_, ":", node.Mark().line + 1);
  for (const auto& [overridden_path, assignment] : overridden_) {
    if (path == overridden_path || absl::StartsWith(path, overridden_path + ".") ||
        ((!node.IsScalar() || node.Mark().is_null()) &&
         absl::StartsWith(overridden_path, path + "."))) {
      where = absl::StrCat("--set ", assignment);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", message));
}

std::string ClusterFileReader::OriginOf(absl::string_view message) const {
  std::string origin = origin_;
  for (const auto& [path, assignment] : overridden_) {
    if (absl::StartsWith(message, path + ":") || absl::StartsWith(message, path + ".")) {
      origin = absl::StrCat("--set ", assignment);
    }
  }
  return origin;
}

absl::Status ClusterFileReader::RequireScalar(const YAML::Node& node,
                                              const std::string& path) const {
  if (node.IsScalar()) {
    return absl::OkStatus();
  }
  return Error(node, path,
               absl::StrCat(path, ": wants one value, and has ",
                            node.IsMap()        ? "a section"
                            : node.IsSequence() ? "a list"
                                                : "none"));
}

absl::Status ClusterFileReader::ReadKeys(const YAML::Node& node, const std::string& path,
                                         const std::vector<Key>& keys) const {
  if (!node.IsMap()) {
    return Error(node, path,
                 path.empty() ? std::string("it is no cluster file: that is keys and values in "
                                            "YAML, as in deploy/clusters/local.yaml")
                              : absl::StrCat(path, ": wants keys and values"));
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "?";
    const std::string key_path = path.empty() ? name : absl::StrCat(path, ".", name);
    const Key* known = nullptr;
    std::vector<std::string> names;
    for (const Key& key : keys) {
      names.push_back(key.name);
      known = key.name == name ? &key : known;
    }
    if (known == nullptr) {
      const std::string nearest = NearestName(name, names);
      return Error(
          entry.first, key_path,
          absl::StrCat("unknown key '", key_path, "'",
                       nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                       " Known here: ", absl::StrJoin(names, ", ")));
    }
    if (!seen.insert(name).second) {
      return Error(entry.first, key_path, absl::StrCat("'", key_path, "' is given twice"));
    }
    LAMINA_RETURN_IF_ERROR(known->read(entry.second, key_path));
  }
  return absl::OkStatus();
}

ReadValue ClusterFileReader::Section(std::vector<Key> keys) const {
  return [this, keys = std::move(keys)](const YAML::Node& node, const std::string& path) {
    return ReadKeys(node, path, keys);
  };
}

template <typename Node>
ReadValue ClusterFileReader::List(std::vector<Node>& out,
                                  std::function<std::vector<Key>(Node&)> keys) const {
  return [this, &out, keys](const YAML::Node& node, const std::string& path) -> absl::Status {
    if (!node.IsSequence()) {
      return Error(node, path, absl::StrCat(path, ": wants a list of nodes, each - {name: ...}"));
    }
    for (size_t i = 0; i < node.size(); ++i) {
      Node element;
      LAMINA_RETURN_IF_ERROR(ReadKeys(node[i], absl::StrCat(path, ".", i), keys(element)));
      out.push_back(std::move(element));
    }
    return absl::OkStatus();
  };
}

ReadValue ClusterFileReader::Text(std::string& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    out = node.Scalar();
    return absl::OkStatus();
  };
}

ReadValue ClusterFileReader::Ports(PortRange& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<PortRange> range = ParsePortRange(node.Scalar());
    if (!range.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", range.status().message()));
    }
    out = *range;
    return absl::OkStatus();
  };
}

ReadValue ClusterFileReader::Number(uint32_t& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    if (!absl::SimpleAtoi(node.Scalar(), &out)) {
      return Error(node, path,
                   absl::StrCat(path, ": '", node.Scalar(), "' is ", WhyNoNumber(node.Scalar())));
    }
    return absl::OkStatus();
  };
}

// `auto` leaves the number as it was.
ReadValue ClusterFileReader::NumberOrAuto(uint32_t& out, bool& automatic) const {
  return [this, &out, &automatic](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    automatic = node.Scalar() == "auto";
    if (!automatic && !absl::SimpleAtoi(node.Scalar(), &out)) {
      return Error(node, path,
                   absl::StrCat(path, ": '", node.Scalar(), "' is ", WhyNoNumber(node.Scalar()),
                                ", nor auto"));
    }
    return absl::OkStatus();
  };
}

ReadValue ClusterFileReader::NumberOrAuto(std::optional<uint32_t>& out, bool& automatic) const {
  return [this, &out, &automatic](const YAML::Node& node, const std::string& path) -> absl::Status {
    uint32_t number = 0;
    LAMINA_RETURN_IF_ERROR(NumberOrAuto(number, automatic)(node, path));
    out = automatic ? std::nullopt : std::optional(number);
    return absl::OkStatus();
  };
}

ReadValue ClusterFileReader::Number(std::optional<uint32_t>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    return Number(out.emplace())(node, path);
  };
}

ReadValue ClusterFileReader::Size(uint64_t& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<uint64_t> bytes = ParseBytes(node.Scalar());
    if (!bytes.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", bytes.status().message()));
    }
    out = *bytes;
    return absl::OkStatus();
  };
}

ReadValue ClusterFileReader::Duration(Nanos& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<Nanos> length = ParseDuration(node.Scalar());
    if (!length.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", length.status().message()));
    }
    out = *length;
    return absl::OkStatus();
  };
}

// "1.2/h".
ReadValue ClusterFileReader::Price(double& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    absl::string_view number = node.Scalar();
    double price = 0;
    if (!absl::ConsumeSuffix(&number, "/h") || !absl::SimpleAtod(number, &price) ||
        !(price >= 0 && price <= kPricePerHourMax)) {
      return Error(node, path,
                   absl::StrCat(path, ": '", node.Scalar(), "' is not a price in [0, ",
                                kPricePerHourMax, "] for an hour; write it like 1.2/h"));
    }
    out = price;
    return absl::OkStatus();
  };
}

ReadValue ClusterFileReader::Ratio(double& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    return absl::SimpleAtod(node.Scalar(), &out)
               ? absl::OkStatus()
               : Error(node, path,
                       absl::StrCat(path, ": '", node.Scalar(), "' is no number like 0.5"));
  };
}

// "0-3,8" or [0, 1, 2, 3, 8].
ReadValue ClusterFileReader::Cores(std::vector<int>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    std::vector<std::string> parts;
    if (node.IsSequence()) {
      LAMINA_RETURN_IF_ERROR(Words(parts)(node, path));
    } else {
      LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
      parts.push_back(node.Scalar());
    }
    absl::StatusOr<std::vector<int>> cores = ParseCores(absl::StrJoin(parts, ","));
    if (!cores.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", cores.status().message()));
    }
    out = *std::move(cores);
    return absl::OkStatus();
  };
}

// One word, or a list of them.
ReadValue ClusterFileReader::Words(std::vector<std::string>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    out.clear();
    if (!node.IsSequence()) {
      LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
      out.push_back(node.Scalar());
      return absl::OkStatus();
    }
    for (size_t i = 0; i < node.size(); ++i) {
      const YAML::Node element = node[i];
      LAMINA_RETURN_IF_ERROR(RequireScalar(element, absl::StrCat(path, ".", i)));
      out.push_back(element.Scalar());
    }
    return absl::OkStatus();
  };
}

// "0-14", or "3" for one.
ReadValue ClusterFileReader::Layers(std::optional<LayerRange>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<LayerRange> range = ParseLayers(node.Scalar());
    if (!range.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", range.status().message()));
    }
    out = *range;
    return absl::OkStatus();
  };
}

template <typename Enum, size_t N>
ReadValue ClusterFileReader::Choice(const internal::EnumNames<Enum, N>& names, Enum& out) const {
  return [this, &names, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    std::vector<std::string> words;
    for (const auto& [word, value] : names) {
      if (word == node.Scalar()) {
        out = value;
        return absl::OkStatus();
      }
      words.emplace_back(word);
    }
    return Error(
        node, path,
        absl::StrCat(path, ": '", node.Scalar(), "' is not one of ", absl::StrJoin(words, ", ")));
  };
}

// One word, and no list; or the first one of a list.
template <typename Names, typename Enum>
ReadValue ClusterFileReader::Choices(const Names& names, Enum& first,
                                     std::vector<Enum>& out) const {
  return [this, &names, &first, &out](const YAML::Node& node, const std::string& path) {
    const size_t listed = node.IsSequence() ? node.size() : 0;
    absl::Status read = Choice(names, first)(listed > 0 ? node[0] : node, path);
    for (size_t i = 0; i < listed && read.ok(); ++i) {
      read = Choice(names, out.emplace_back())(node[i], absl::StrCat(path, ".", i));
    }
    return read;
  };
}

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
  std::string policy;  // Not given: the first of `policies`, if any.
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
      {"policy", Text(policy)},
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
  if (!policy.empty() || !c.policies.empty()) {
    c.policy = policy.empty() ? c.policies.front() : policy;
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
