// SPDX-License-Identifier: Apache-2.0
//
// ClusterConfig: the cluster file. One file describes the whole cluster; each daemon finds itself
// in it by name. See docs/configuration.md for every key.
//
// Precedence: defaults here, then the file, then `--set key.path=value`. Unknown keys are errors
// that name the nearest known key; a value that is there but bad is an error, never a fallback.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/attention_arithmetic.h"
#include "common/clock.h"
#include "common/device_waits.h"
#include "common/kv_form.h"
#include "common/link_options.h"
#include "common/log_event.h"
#include "common/partition.h"
#include "common/pipeline_mode.h"
#include "common/port_range.h"
#include "common/query_first.h"
#include "common/sparse_tokens.h"
#include "common/tls.h"
#include "common/window_place.h"
#include "config/hosts_config.h"

namespace lamina {

// How weights are held that the model's file has quantised: in its blocks, or as bf16; or how those
// of a model of floats are, as INT8.
enum class WeightsForm : uint8_t { kAuto, kPacked, kBF16, kInt8 };
// What a compute node does: everything, or (prefill.mode dedicated) prompts' chunks alone.
enum class ComputeRole : uint8_t { kCompute, kPrefill };

// "0-14": the attentions of a model, counted from 0.
struct LayerRange {
  uint32_t first = 0;
  uint32_t last = 0;  // The last one of them.

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// Values of `policy`: where K and V are, and who attends.
inline constexpr absl::string_view kPolicyAttendRemote = "attend_remote";
inline constexpr absl::string_view kPolicyLocal = "local";
inline constexpr absl::string_view kPolicyAuto = "auto";
inline constexpr absl::string_view kPolicyFetchHeads = "fetch_heads";
inline constexpr absl::string_view kPolicyFetchRecompute = "fetch_recompute";
inline constexpr absl::string_view kPolicyFetchHybrid = "fetch_hybrid";
inline constexpr absl::string_view kPolicyFetchSparse = "fetch_sparse";

// What policy fetch_recompute makes K and V from again.
enum class RecomputeFrom : uint8_t { kActivations, kTokens };

// With a policy that fetches: of each compute node, for all its lanes and memory nodes.
struct FetchConfig {
  uint64_t window_bytes = uint64_t{64} << 20;
  // Policies fetch_heads and fetch_sparse: KV heads that come together; more than a layer has are
  // all of it. With auto as many as a window has room for.
  uint32_t heads = 0;
  bool heads_auto = true;
  // Policy fetch_recompute: from what K and V of tokens are made again, and of how many.
  RecomputeFrom recompute = RecomputeFrom::kActivations;
  uint32_t recompute_percent = 0;
  bool recompute_auto = true;  // By measured times.
  // From token numbers: of how many tokens of a lane's step at most.
  uint32_t recompute_tokens_max = 4096;
  // Policies fetch_recompute and fetch_hybrid, where weights stream: what makes k and v of a layer
  // comes before its other weights.
  bool kv_weights_first = true;
  // Policy fetch_hybrid: how many of a memory node's tokens are held as activations.
  uint32_t activation_percent = 0;
  bool activation_auto = true;  // By measured times.
  // Policy fetch_hybrid, one of several: its slots have so many per cent of a memory node's bytes,
  // and those of the others the rest.
  uint32_t hybrid_percent = 50;
  // Policy fetch_hybrid: requests of lanes change places so that link and compute node are busy.
  bool packing = false;
  // Policy fetch_sparse: of the tokens before a decode row it attends to so many, and to which.
  double caching_ratio = 0.5;
  SparseTokens sparse = SparseTokens::kWindowSums;
  // Policies fetch_heads and fetch_sparse: of each compute node, for K and V of recent tokens,
  // which do not come. Policies fetch_recompute and fetch_hybrid: for activations of first tokens,
  // of which neither these come nor K and V. Of a cluster with several it is for rows of
  // fetch_sparse, else of fetch_heads, else of fetch_recompute or fetch_hybrid.
  uint64_t resident_bytes = 0;
  // Policy fetch_heads: a file that names KV heads which stream (docs/formats/streaming_heads.md),
  // a path as of `model`. Rows of these see the first and the last so many tokens. Empty: no head
  // streams, and answers are exact.
  std::string streaming_heads = {};
  uint32_t streaming_sink = 64;
  uint32_t streaming_window = 256;
  friend bool operator==(const FetchConfig&, const FetchConfig&) = default;
};

// What `policy: auto` chooses for until it has seen the load itself: decode rows of a step, tokens
// of context of each, and tokens of prompts that are computed for each generated one.
struct PolicyLoadConfig {
  uint32_t rows = 16;
  uint32_t context = 1024;
  uint32_t prompts = 1;

  friend bool operator==(const PolicyLoadConfig&, const PolicyLoadConfig&) = default;
};

struct ComputeNodeConfig {
  std::string name;
  ComputeRole role = ComputeRole::kCompute;
  std::string host = "localhost";
  std::string device = "cpu";
  std::vector<int> cores;             // "0", "0-3,8"; empty pins nothing.
  uint32_t threads = 0;               // 0: as many as cores, or 1 without cores.
  std::string compute_type = "bf16";  // bf16 | f32: of weights and activations.
  std::string http;                   // host:port of /metrics and /health. Empty: none.
  // Nodes that name the same replica hold it together, each a stage of its layers, or a shard of
  // heads and MLP columns, or a shard of a stage. Empty: the node is a replica by itself.
  std::string replica;
  std::optional<uint32_t> stage;     // From 0 on.
  std::optional<uint32_t> shard;     // From 0 on, within the replica or its stage.
  std::optional<LayerRange> layers;  // Not given: chosen, by cost and by measured speed.
  uint64_t capacity_bytes = 0;       // For KV: with policy local or auto, and then required.
  uint64_t memory_budget_bytes = 0;  // Bytes of the device for weights and all else. 0: unbounded.
  // Bytes of the device for weights; what exceeds it comes from a file in the folder
  // `weights_store` when it is needed. 0: all weights stay.
  uint64_t weights_budget_bytes = 0;
  std::string weights_store = "/var/tmp";
  uint32_t weights_ahead = 1;  // So many slices come ahead of those that run: 0 or 1.
  WeightsForm weights = WeightsForm::kAuto;
  double price_per_hour = 0;  // In a currency of the user's; 0: not known.
};

// A file of a memory node's host for K and V of sequences that have given up their slots.
struct SpillConfig {
  std::string path;             // The folder of the file, which has no name. Empty: there is none.
  uint64_t capacity_bytes = 0;  // Taken at start.
  friend bool operator==(const SpillConfig&, const SpillConfig&) = default;
};

struct MemoryNodeConfig {
  std::string name;
  std::string host = "localhost";
  std::string device = "cpu";
  std::vector<int> cores;
  uint32_t threads = 0;
  uint64_t capacity_bytes = 0;  // For KV. Required.
  bool attend = true;           // False: it keeps K and V, and sends them to who attends.
  SpillConfig spill;
  WindowPlace windows = WindowPlace::kAuto;  // Where compute nodes put q, k and v.
  double price_per_hour = 0;                 // As of compute nodes.
  std::string http;                          // host:port of /metrics and /health. Empty: none.
};

// The HTTP gateway. Without a `listen` address there is none.
struct GatewayConfig {
  std::string listen;                    // host:port; port 0 picks one.
  std::vector<int> cores;                // As of nodes; empty pins nothing.
  std::vector<std::string> model_names;  // What clients may call the model; empty: its own names.
  std::string api_keys_file;             // One key per line; empty: no keys are asked for.
  std::string tls_certificate;           // PEM files; both or none.
  std::string tls_key;
  std::string tool_parser = "auto";  // How answers write calls: auto, none, or a family.
  std::string reasoning_parser =
      "auto";  // Whether answers have thoughts in tags: auto, none, think.
  std::vector<std::string> cors_origins;        // Origins whose pages may call; "*" for any.
  uint64_t body_bytes_max = uint64_t{4} << 20;  // The most bytes of one request's body.
  uint32_t connections_max = 4096;
  uint32_t choices_max = 128;        // Prompts of a batch times `n`.
  uint32_t request_seconds = 30;     // For a request to arrive whole, from its first byte.
  uint32_t idle_seconds = 75;        // Between two requests of a connection.
  uint32_t write_seconds = 30;       // For a client to take any of what waits for it.
  uint32_t keep_alive_seconds = 10;  // Silence of a stream after which it sends a comment.

  friend bool operator==(const GatewayConfig&, const GatewayConfig&) = default;
};

// How verbs:// uses this host's RDMA devices. What is not given is chosen by rule
// (transport/verbs/verbs_options.h has the rules' defaults).
struct VerbsConfig {
  std::string device;  // Like mlx5_0; empty: the nearest to `near`, then the fastest active port.
  std::string near;    // A device on PCI like 0000:41:00.0, a GPU say; empty: none.
  std::optional<uint32_t> port;
  std::optional<uint32_t> gid;  // Index into the port's table.
  std::optional<uint32_t> mtu;
  std::optional<uint32_t> timeout;  // Timeout of a packet: 4.096 us * 2^timeout.
  std::optional<uint32_t> retries;
  std::optional<uint32_t> rnr_retries;
  std::optional<uint32_t> queue;  // Work requests in flight to one peer.

  // "verbs://mlx5_0?gid=3".
  std::string Uri() const;

  friend bool operator==(const VerbsConfig&, const VerbsConfig&) = default;
};

enum class PrefillMode : uint8_t { kInline, kDedicated };
enum class PrefixCacheMode : uint8_t { kAuto, kOff };
enum class ServiceOrderKind : uint8_t { kFirstComeFirstServed, kPriority };

// Values of `generation_config`.
inline constexpr absl::string_view kGenerationConfigAuto = "auto";
inline constexpr absl::string_view kGenerationConfigNone = "none";

struct ClusterConfig {
  std::string model;          // Relative paths: to the working directory.
  std::string chat_template;  // File with a template instead of the model's own. Empty: that one.
  // Whether sampling defaults of the model's generation_config.json are advised: auto or none.
  std::string generation_config = std::string(kGenerationConfigAuto);
  // The secret of its members (common/cluster_secret.h); paths as of `model`. Empty: none.
  std::string cluster_token_file;
  TlsFiles tls;         // TLS of gRPC between all processes of the cluster; paths as of `model`.
  BundleConfig bundle;  // The programs on other hosts, for deploy/cluster.sh.
  std::string network;  // Where data between nodes goes: "10.1.0.0/16" or "eth1". Empty: anywhere.
  PortRange ports;  // Ports of all that listens where the system would pick one. Not set: it picks.
  // For a node that was asked to stop until it leaves without the coordinator's consent.
  uint32_t drain_seconds = 30;
  std::string coordinator_listen = "127.0.0.1:7400";  // host:port; port 0 picks one.
  // Where others find it, when that is not where it listens. Empty: it is.
  std::string coordinator_advertise;
  std::string coordinator_http;     // Where /metrics and /health are served. Empty: nowhere.
  std::string coordinator_spans;    // File of spans. Empty: none.
  std::string coordinator_journal;  // File of accepted requests and their tokens. Empty: none.
  // How long a coordinator that has restarted keeps requests of the journal for their clients.
  Nanos coordinator_journal_keep = Seconds(60);
  std::vector<int> coordinator_cores;  // As of nodes; empty pins nothing.
  GatewayConfig gateway;
  std::vector<ComputeNodeConfig> compute;
  std::vector<MemoryNodeConfig> memory;
  std::vector<std::string> transport = {"shm"};  // The first that works for all nodes.
  VerbsConfig verbs;
  struct {
    PipelineMode mode = PipelineMode::kRotational;
    uint32_t lanes = 2;
    bool lanes_auto = false;  // `lanes: auto`: any number up to `lanes`, by measured times.
    uint32_t chunks = 1;      // The most sub-batches in which a lane's rows go to a memory node.
    bool chunks_auto = true;  // `chunks: auto`: by measured times.
    QueryFirst query_first = QueryFirst::kAuto;
    DeviceWaits device_waits = DeviceWaits::kAuto;
  } pipeline;
  Partition partition = Partition::kRequest;
  ClusterAttention attention = {.decode = AttentionArithmetic::kAuto,
                                .prefill = AttentionArithmetic::kAuto};
  // The form of K and V in slots: bf16 | int8, which is lossy
  // (docs/adr/0171-int8-behind-the-open-block.md). Requests that name none get this one.
  KvForm kv = KvForm::kBF16;
  // What requests may name, `kv` the first. Empty: all have that one.
  std::vector<KvForm> kv_forms;
  // Where there are several: so many per cent of a memory node's bytes for slots are for int8.
  uint32_t kv_int8_percent = 50;
  std::string policy{kPolicyAttendRemote};  // Requests that name none get this one.
  // What an epoch prepares, `policy` among them. Empty: that one alone.
  std::vector<std::string> policies;
  PolicyLoadConfig policy_load;  // With policy auto.
  FetchConfig fetch;             // With a policy that fetches.
  struct {
    PrefillMode mode = PrefillMode::kInline;
    uint32_t chunk_tokens = 512;
    uint32_t scratch_tokens = 8192;
  } prefill;
  struct {
    uint32_t sequence_tokens_max = 8192;
    uint32_t running_max = 256;
    uint32_t waiting_max = 1024;
    // A node whose data thread stands still for so long is left out. More than the longest piece of
    // work between two beats, or a slow node is; less finds a hanging one sooner.
    Nanos stuck_after = Seconds(30);
  } limits;
  // Whether K and V outlive their requests, for prompts that begin alike. kAuto: where all nodes
  // serve it.
  PrefixCacheMode prefix_cache = PrefixCacheMode::kAuto;
  ServiceOrderKind order = ServiceOrderKind::kFirstComeFirstServed;  // fcfs | priority
  struct {
    LogLevel level = LogLevel::kInfo;
    LogFormat format = LogFormat::kText;
  } log;  // Logging of every daemon; flags override it.

  // Errors: kInvalidArgument  the key, the value and what is allowed; duplicate node names; no
  //                           compute or memory node; values that contradict each other.
  //         kUnimplemented    a known value that this version cannot serve yet; says which it can.
  absl::Status Validate() const;

  // Whether all nodes run on this host: nobody else needs to reach them.
  bool IsOneHost() const;
  // Whether a memory node has a file for K and V of sequences that have given up their slots.
  bool Spills() const;
  // Whether rows attend at the compute node, over K and V that memory nodes send there.
  bool Fetches() const {
    return Prepares(kPolicyFetchHeads) || Prepares(kPolicyFetchRecompute) ||
           Prepares(kPolicyFetchHybrid) || Prepares(kPolicyFetchSparse);
  }
  // Whether some node is not on a processor.
  bool HasDevices() const;
  // Whether rows of fetch_heads find K and V of recent tokens on the compute node.
  bool KeepsRecent() const {
    return fetch.resident_bytes > 0 && Prepares(kPolicyFetchHeads) && !Prepares(kPolicyFetchSparse);
  }
  // Whether fetch_hybrid is one of several policies, with slots of its own.
  bool HoldsHybridApart() const { return policies.size() > 1 && Prepares(kPolicyFetchHybrid); }
  // Whether rows of fetch_recompute or fetch_hybrid find activations of their first tokens there.
  bool KeepsActivations() const {
    return fetch.resident_bytes > 0 &&
           (Prepares(kPolicyFetchRecompute) || Prepares(kPolicyFetchHybrid)) &&
           !Prepares(kPolicyFetchHeads) && !Prepares(kPolicyFetchSparse);
  }
  // Whether rows of fetch_recompute have K and V made again from token numbers.
  bool RecomputesFromTokens() const {
    return fetch.recompute == RecomputeFrom::kTokens && Prepares(kPolicyFetchRecompute);
  }
  // The policies that requests may ask for.
  std::vector<std::string> Prepared() const {
    return policies.empty() ? std::vector<std::string>{policy} : policies;
  }
  bool Prepares(absl::string_view name) const;
  // The forms of K and V that requests may ask for, that of those who ask for none first.
  std::vector<KvForm> PreparedForms() const {
    return kv_forms.empty() ? std::vector<KvForm>{kv} : kv_forms;
  }
  bool HasBothForms() const { return kv_forms.size() > 1; }
  // Whether slots of K and V are INT8, all or some.
  bool KeepsInt8() const { return kv == KvForm::kInt8 || HasBothForms(); }
  // Some answers are not those of the model's weights, with whole attention over K and V as they
  // were made.
  bool IsLossy() const {
    return Prepares(kPolicyFetchSparse) || !fetch.streaming_heads.empty() || KeepsInt8() ||
           QuantisesWeights();
  }
  // Compute nodes, of which then all do, hold weights of floats in 8 bits
  // (docs/adr/0188-weights-of-8-bits.md).
  bool QuantisesWeights() const;
  // The fingerprint of the file's model as this cluster runs it: nodes that tell each other the
  // same may go on with each other's K and V.
  std::string FingerprintOf(const std::string& of_model) const;
  // Where processes find the coordinator that are told nothing else: at coordinator.advertise, else
  // at coordinator.listen, from this host where that is all addresses.
  std::string CoordinatorAddress() const;
  // What "ucx" and "verbs" mean here as URIs: on one host they listen on loopback alone.
  std::string UcxUri() const;
  std::string VerbsUri() const;
  // URIs for peers on other hosts, whichever nodes the file has.
  std::string UcxUriBetweenHosts() const;
  std::string VerbsUriBetweenHosts() const;

  const ComputeNodeConfig* FindCompute(absl::string_view name) const;
  // Compute nodes of that role.
  uint32_t CountCompute(ComputeRole role) const;
  const MemoryNodeConfig* FindMemory(absl::string_view name) const;
};

// Errors: kNotFound         no such file.
//         kInvalidArgument  not YAML, an unknown key (with its line and the nearest known key), or
//                           a bad value. Also what Validate() says.
absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path,
                                                const std::vector<std::string>& overrides);

// Reads the configuration from `text` as LoadClusterConfig() does; `origin` names it in messages.
absl::StatusOr<ClusterConfig> ParseClusterConfig(absl::string_view text, absl::string_view origin,
                                                 const std::vector<std::string>& overrides);

// The effective configuration as YAML, for logs and `lamina config`.
std::string ToYaml(const ClusterConfig& config);

// "0-3,8" to {0, 1, 2, 3, 8}.
absl::StatusOr<std::vector<int>> ParseCores(absl::string_view text);

// The bus that the first throttled transport with one names: what a compute node's weights come
// over too, in the direction to it. Nothing: none names one.
std::optional<ThrottleOptions> BusOf(const ClusterConfig& config);

}  // namespace lamina
