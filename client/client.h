// SPDX-License-Identifier: Apache-2.0
//
// Client: a program's way to a Lamina cluster. Speaks lamina.v1 to the coordinator.
//
// Used by the `lamina` command; free of RPC types, so that programs need only this header.
//
// Threading: every method from any thread, many at once. Blocking, save StartGenerate().
// Limits:    messages up to 64 MiB; a bounded wait on every call but Generate, whose end the caller
//            decides by max_tokens, a deadline, or a Cancellation, and Score, which takes as long
//            as its prompt: both end with kUnavailable where the server's host no longer answers.
// Errors:    the server's, code for code, with its message. kUnavailable means that the cluster is
//            not serving or lost the request: retry the whole request. Those of generations name
//            the request as logs do, in the payload "x-request-id".
//
// A generation or a score whose coordinator dies pauses, where that has a journal
// (coordinator.journal) with the request: up to 30 s for a coordinator with the same journal. Then
// a generation goes on with the tokens that have not come yet (resumption.h), and a score is made
// again. Elsewhere they end with kUnavailable at once.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cancellation.h"
#include "common/beam_params.h"
#include "common/clock.h"
#include "common/sampling_params.h"
#include "common/tls.h"

namespace lamina::client {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
  std::string json;  // The whole message as a JSON object; replaces the two above when not empty.
};

// Text, token ids, or a conversation that the server renders with the model's chat form.
using Prompt = std::variant<std::string, std::vector<TokenId>, std::vector<ChatMessage>>;

// How the server renders a conversation.
struct ChatOptions {
  std::string tools_json;  // A JSON array; empty for none.
  std::string
      arguments_json;  // A JSON object of further variables of the template; empty for none.
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // Not with add_generation_prompt.
  std::string suffix;                   // How the answer begins; special tokens in it are tokens.

  friend bool operator==(const ChatOptions&, const ChatOptions&) = default;
};

// What is absent takes the server's default; proto/lamina/v1/inference.proto has them.
struct GenerateOptions {
  std::string request_id;
  Prompt prompt;
  ChatOptions chat;  // For messages only.
  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> min_tokens;
  std::optional<uint32_t> n;
  std::optional<uint32_t> best_of;  // So many are generated; the best n come, at the end.
  BeamParams beams;                 // With a width: a beam search, whose best n answers come.
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;
  bool ignore_eos = false;
  bool keep_special = false;                  // Special tokens are part of the text.
  bool include_stop = false;                  // What ended the text is part of it.
  std::optional<uint32_t> prompt_tokens_max;  // A longer prompt is cut at its beginning,
  bool truncate_end = false;                  // or at its end.
  bool return_prompt = false;  // The first chunk with output has the prompt's tokens.
  int32_t priority = 0;
  // K and V of the prompt are shared with requests of the same salt only; at most 512 bytes.
  std::string cache_salt;
  // By which KV policy the request is served: one of ModelInfo::policies. Empty: ModelInfo::policy.
  std::string policy;
  // The form of its K and V, "bf16" or "int8". Empty: that of the first one of its policy.
  std::string kv;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> allowed_tokens;  // No others are sampled; empty: all are.
  std::optional<uint64_t> seed;
  std::optional<uint32_t> logprobs;
  OutputForm form;     // Form of the whole output.
  Nanos deadline = 0;  // From the call; 0 for none.
  // Ids by which the request is followed through logs and traces; empty for none. `followed_id`
  // counts only if common/trace_context.h's IsRequestId() takes it, else logs have the request id;
  // `trace_state` only with a `trace_parent`.
  std::string followed_id;
  std::string trace_parent;
  std::string trace_state;
};

enum class FinishReason : uint8_t { kNotFinished, kStop, kLength, kCancelled };

// "", "stop", "length", "cancelled": the words of JSON outputs.
absl::string_view FinishReasonName(FinishReason reason);

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // Natural logarithm.
  std::string text;   // Bytes; may be part of a character.
};

struct TokenOutput {
  TokenId token = 0;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top;
  std::string text;   // Bytes; with log-probabilities only.
  bool ends = false;  // An end or stop token: its text is not part of the answer.
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  double ttft_ms = 0;  // At the server: arrival to first token.
  double tpot_ms = 0;  // Mean time per token after the first.
  uint64_t seed = 0;
  uint32_t preemptions = 0;
  uint32_t cached_tokens = 0;  // Prompt tokens whose K and V were there already.
  // First choice with best_of: tokens of the choices that do not come.
  uint32_t left_out_tokens = 0;
  std::string lossy;  // What makes the answer other than that of whole attention; empty: nothing.
};

// A piece of one choice. The last one of a choice has a finish reason and the usage.
struct Chunk {
  std::string request_id;
  uint32_t index = 0;
  std::string text;
  std::vector<TokenOutput> tokens;
  FinishReason finish_reason = FinishReason::kNotFinished;
  std::string stop;  // The stop string that ended the choice; empty: none did.
  Usage usage;
  // Not 0 in chunks without output that say how far a long prompt is.
  uint32_t prompt_tokens_done = 0;
  uint32_t prompt_tokens = 0;   // Tokens of the whole prompt.
  std::vector<TokenId> prompt;  // With return_prompt.
};

// A token of a prompt among all of the vocabulary.
struct TokenRank {
  uint32_t rank = 0;              // 1 for the most likely.
  std::vector<TokenLogprob> top;  // Best first.
};

struct ScoreOptions {
  uint32_t decode_from =
      0;                    // Tokens from this one on go through decode steps, one a step; 0: none.
  std::string policy = {};  // As GenerateOptions::policy.
  std::string kv = {};      // As GenerateOptions::kv.
  // Ranks, and so many alternatives of each token; without it neither.
  std::optional<uint32_t> logprobs = {};
};

struct ScoreResult {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;  // logprobs[i] belongs to tokens[i + 1].
  double nll_sum = 0;
  double perplexity = 0;
  std::vector<std::string> texts;  // Bytes of each token; may be part of a character.
  std::vector<TokenRank> ranks;    // One for each of logprobs, when alternatives were asked for.
  std::string lossy;               // As Usage::lossy.
};

struct TokenizeResult {
  std::vector<TokenId> tokens;
  std::vector<std::string> pieces;
};

// What the model's makers advise; absent where they do not.
struct SamplingDefaults {
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

// A KV policy that the cluster prepares.
struct Policy {
  std::string name;
  std::string lossy;    // As ModelInfo::lossy, of requests that name it.
  std::string kv = {};  // And this form of K and V; empty: all requests have the same.
};

struct ModelInfo {
  std::string id;
  std::string architecture;
  uint32_t layers = 0;
  uint32_t vocabulary = 0;
  uint32_t sequence_tokens_max = 0;
  uint64_t kv_bytes_per_token = 0;
  std::string chat_template;  // Jinja; empty for none.
  std::string bos_token;      // Names in the vocabulary; empty for none.
  std::string eos_token;
  SamplingDefaults sampling;
  std::vector<std::string> names;  // What clients may call it, besides its id.
  // What makes answers of requests that name no policy other than those of whole attention; empty:
  // nothing.
  std::string lossy;
  std::vector<Policy> policies;  // What requests may name; older servers say nothing.
  std::string policy;            // What those get that name none.
};

// What a node put into windows of another one, and how long it stood still for it.
struct LinkStatus {
  std::string peer;
  uint64_t bytes = 0;
  uint64_t messages = 0;
  double seconds = 0;  // In puts.
  uint64_t failures = 0;
  double waited_seconds = 0;
};

// A memory node's file for K and V of sequences that wait and of cached blocks. `capacity_bytes` 0:
// it has none.
struct SpillStatus {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t bytes_out = 0;  // Since the node started,
  uint64_t bytes_in = 0;
  uint64_t sequences_out = 0;      // Written whole,
  uint64_t sequences_in = 0;       // and read back.
  uint64_t cached_tokens_out = 0;  // Tokens of the prefix cache that were copied there,
  uint64_t cached_tokens_in = 0;   // and that were read back.
  uint64_t failures = 0;           // Could not be: they were recomputed.
  double seconds_out = 0;          // From plans to reports.
  double seconds_in = 0;
  // Where seconds_in went: before the first block was begun, while blocks were being read, and
  // behind the last read. What is left is between reads.
  double queued_seconds = 0;
  double reading_seconds = 0;
  double behind_seconds = 0;
  double copying_seconds = 0;         // All threads that checked and copied, meanwhile too.
  uint64_t ahead_bytes = 0;           // What of bytes_in had been read before it was ordered.
  double write_bytes_per_second = 0;  // Measured at start.
  double read_bytes_per_second = 0;
};

// What an emulated bus has carried for all nodes on it, in one direction.
struct BusStatus {
  std::string direction;  // "to" compute nodes or "from" them.
  uint64_t bytes_per_second = 0;
  double busy_seconds = 0;
  // By "activations", "kv", "probes", "rows", "weights". Their sum is bytes_per_second times
  // busy_seconds.
  std::vector<std::pair<std::string, uint64_t>> bytes;
};

// A compute node's memory by the formula of the policy's paper, where K and V come to it.
struct MemoryFormula {
  std::string paper;  // "HeadInfer", "KVPR", "HybridServe"; empty: no formula says anything.
  uint64_t weights = 0;
  uint64_t windows = 0;
  uint64_t activations = 0;  // HeadInfer: those of rows at work.
  uint64_t resident = 0;     // KVPR, HybridServe: those that stay.
  uint32_t heads = 0;        // HeadInfer: KV heads of a group.
};

struct NodeStatus {
  std::string name;
  std::string role;
  std::string state;
  std::string replica;  // The replica of a stage; else empty.
  // A stage's "0-18", a shard's "0-29, KV heads 0-1, MLP columns 0-703"; else empty.
  std::string layers;
  std::string device;
  std::string transport;
  std::string windows;  // Where the windows that peers write lie, and how the network reaches them.
  std::string kernels;
  uint32_t slots_used = 0;
  uint32_t slots_total = 0;
  uint32_t slots_kept = 0;  // Not used, but kept for prompts that begin alike.
  struct SlotForm {
    std::string kv;  // "bf16", "int8"
    uint32_t used = 0;
    uint32_t total = 0;
    uint32_t kept = 0;
    std::string policy = {};  // "fetch_hybrid", or "others"; empty: those of all policies.
  };
  // Where slots have several forms, or fetch_hybrid has some of its own: each one's, of which the
  // three are the sums.
  std::vector<SlotForm> slot_forms = {};
  double busy_share = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t refused_messages = 0;
  int32_t pid = 0;
  double bandwidth_bytes_per_second = 0;
  uint64_t kv_bytes_read = 0;
  double busy_seconds = 0;
  uint64_t units = 0;
  uint64_t weight_bytes = 0;  // Bytes of a compute node's weights, as it holds them.
  // Bytes of a compute node's device by what they are for ("activations", "kv", "weights",
  // "windows"), and their bound, 0 for none.
  std::vector<std::pair<std::string, uint64_t>> memory;
  uint64_t memory_budget = 0;
  MemoryFormula memory_formula;  // Next to `memory`.
  uint64_t replayed_units = 0;   // Slices that a device had captured as a graph: one call each.
  uint64_t device_units = 0;     // Units for whose windows a device waited itself.
  double mean_extent_tokens = 0;
  SpillStatus spill;
  std::vector<BusStatus> buses;          // Those that a compute node is on.
  std::string data_thread;               // What it does: "none", "idle", "working", ...
  double data_thread_still_seconds = 0;  // How long it has not moved.
  // How often it has told the coordinator its counters, which are those of the last time.
  uint64_t reports = 0;
  // What its data thread has done since the node started: seconds by kind of work, as "attend" or
  // "wait_query". All waits begin with "wait_".
  std::vector<std::pair<std::string, double>> parts;
  std::vector<std::pair<std::string, uint64_t>> refusals;  // refused_messages by reason.
  std::vector<LinkStatus> links;
};

struct LaneStatus {
  uint32_t lane = 0;
  uint32_t rows = 0;
  uint64_t context_tokens = 0;
  uint64_t step = 0;
  bool prefill = false;  // The lane of a node for prefill only.
};

// What joins two nodes, and how fast it was when the epoch began.
struct MeasuredLink {
  std::string from;
  std::string to;
  std::string path;            // "shm", "ucx tcp/eth0".
  double latency_seconds = 0;  // These two as measured when the epoch began.
  double bytes_per_second = 0;
  double exchange_seconds = 0;  // From rows that leave to their outputs, of late; 0: none.
  std::string odd;              // What is odd about it, in words; mostly empty.
};

// How many values there have been, by upper bounds that rise; one count more than bounds, of what
// is above all.
struct Distribution {
  std::vector<double> upper_seconds;
  std::vector<uint64_t> counts;
};

struct ClusterStatus {
  uint64_t epoch = 0;
  std::string state;
  std::string model;
  std::string version;
  std::string stages;  // Replicas over several nodes, in words: "r0: c0 0-18, c1 19-29, by cost"
  std::string stages_odd;     // What use says against the speeds they were split by; mostly empty.
  std::string policy;         // "local", "attend_remote"; empty before policy auto has chosen.
  std::string policy_choice;  // Why, with policy auto.
  struct PolicyStatus {
    std::string name;
    uint32_t running = 0;  // Sequences.
    std::string lossy;     // As Policy::lossy.
    std::string kv = {};   // As Policy::kv.
  };
  std::vector<PolicyStatus> policies;  // What requests may name; `policy` is for the others.
  struct PolicyFigure {                // As of v1::PolicyFigure.
    std::string policy;
    std::string why_not;
    double seconds = 0;
    double dense_seconds = 0;
    double attention_seconds = 0;
    double transfer_seconds = 0;
    double making_seconds = 0;
    double share = 0;
    uint64_t tokens_max = 0;
    bool chosen = false;
    double prompt_seconds = 0;
    double rows = 0;
    double rows_waiting = 0;
  };
  std::vector<PolicyFigure> policy_figures;  // What policy auto has weighed.
  std::string partition;  // How KV is spread, in words; empty before the first epoch.
  std::string attention;  // In which arithmetic rows attend, and why; empty before the first epoch.
  std::string prefill;    // Where prompts run: "inline", "dedicated: p0".
  std::string fetch_choice;  // What is recomputed instead of fetched, and why; mostly empty.
  std::string chunk_choice;  // In how many chunks rows leave, and why; empty before the first.
  std::string lane_choice;  // Over how many lanes rows are spread, and why; empty before the first.
  uint64_t lane_moves = 0;  // How often sequences moved from lane to lane.
  std::vector<NodeStatus> nodes;
  std::vector<LaneStatus> lanes;
  std::vector<MeasuredLink> links;
  std::vector<std::string> warnings;  // What works, and not as the cluster file would have it.
  uint32_t running = 0;
  uint32_t waiting = 0;
  double tokens_per_second = 0;
  uint64_t preemptions = 0;
  uint64_t requests_finished = 0;
  uint64_t requests_failed = 0;
  uint64_t tokens_generated = 0;
  struct TokenCost {  // As of v1::TokenCost.
    double compute_price = 0;
    double prompts_price = 0;
    double memory_price = 0;
    struct Work {
      double input = 0;
      double output = 0;
      double cached = 0;
    };
    Work compute;
    Work memory;
    uint64_t input_tokens = 0;
    uint64_t cached_tokens = 0;
  } token_cost;
  // Sums over all first tokens and all times between tokens so far, and their counts.
  double ttft_seconds_sum = 0;
  uint64_t ttft_count = 0;
  double itl_seconds_sum = 0;
  uint64_t itl_count = 0;
  // Distribution of the summed values; older servers leave it empty.
  Distribution time_to_first_token;
  Distribution inter_token_latency;
  double uptime_seconds = 0;
};

struct ConnectOptions {
  std::string server = "127.0.0.1:7400";
  TlsFiles tls = {};  // The server's CA; no certificate is asked for.
  Nanos connect_deadline = Seconds(5);
  Nanos call_deadline = Seconds(60);  // None of Generate and Score.
  // Called when a generation or a score begins to wait for its coordinator, and no other one of
  // this client waits yet: in a thread of the RPC library, which must not block, or in that of
  // Score().
  std::function<void()> on_wait = {};
};

using ChunkFunction = std::function<void(const Chunk& chunk)>;
using DoneFunction = std::function<void(const absl::Status& status)>;

class Client {
 public:
  // Waits until the server answers.
  // Errors: kUnavailable       nothing listens there; says how to start a cluster.
  //         kDeadlineExceeded  no answer in connect_deadline.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ConnectOptions& options);
  // Waits for the StartGenerate() calls that have not ended: cancel them first.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Calls on_chunk in this thread until every choice has finished.
  // Errors: kCancelled when `cancellation` was, besides the server's.
  absl::Status Generate(const GenerateOptions& options, const ChunkFunction& on_chunk,
                        const Cancellation& cancellation = Cancellation());

  // Returns at once. Both functions run in threads of the RPC library, one call at a time per
  // request; on_done runs once and last, and may start another request. They must not block.
  void StartGenerate(const GenerateOptions& options, ChunkFunction on_chunk, DoneFunction on_done,
                     const Cancellation& cancellation = Cancellation());

  // Requires: a prompt of text or token ids.
  // `on_progress` is called in this thread: a long prompt has been worked on up to `done` tokens.
  using ScoreProgress = std::function<void(uint32_t done, uint32_t tokens)>;
  absl::StatusOr<ScoreResult> Score(const Prompt& prompt, const ScoreProgress& on_progress = {},
                                    const ScoreOptions& options = {});
  // Requires: a prompt of text or messages.
  absl::StatusOr<TokenizeResult> Tokenize(const Prompt& prompt, bool add_special);
  absl::StatusOr<std::string> Detokenize(const std::vector<TokenId>& tokens, bool skip_special);
  absl::Status Cancel(const std::string& request_id);
  absl::StatusOr<std::vector<ModelInfo>> ListModels();
  absl::StatusOr<ClusterStatus> Status();

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina::client
