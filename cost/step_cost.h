// SPDX-License-Identifier: Apache-2.0
//
// StepOf: how long a decode step of a cluster takes in the steady state, by formula.
//
// A lane's step is L layers, each with a slice (dense layers), the way to memory nodes and back,
// and an attention, and then the LM head. With n lanes a step takes as long as the slowest of
//   the path of one lane             L (slice + network + attention) + head + hops
//   the compute nodes                n (L slice + head + prompts) / (replicas x stages)
//   the memory nodes                 n L attention
//   the links                        n L times the busiest link's time for one layer
// With n = replicas + 1 and attention = slice / replicas the first three are equal: the schedule of
// the paper's section 5.1.1, without conflicts and bubbles.
//
// Not in it: variance (queues, unequal lengths), the coordinator's own time, overlap of chunks with
// attention, arithmetic of attention on processors; memory of the activations that fetch_hybrid
// holds for its share of the tokens (K and V of all tokens are counted); recent tokens that stay on
// the compute node (fetch.resident); K and V, or weights, as INT8 or packed, and streamed weights:
// all are bf16 and in memory. It is a steady state, not a simulation.
//
// Threading: pure.

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/partition.h"
#include "cost/estimate.h"
#include "cost/model_shape.h"
#include "cost/rates.h"

namespace lamina::cost {

enum class KvPolicy : uint8_t {
  kLocal,         // One pool: K and V on compute nodes, which attend.
  kAttendRemote,  // Two pools: memory nodes hold K and V, and attend.
  kFetchHeads,    // Memory nodes hold K and V; compute nodes fetch them and attend.
  kFetchRecompute,
  kFetchHybrid,
  kFetchSparse,
  kFetchTokens,  // fetch_recompute from token numbers. StepOf() has no equation of its own for it.
};

// As the cluster file's `policy`; "fetch_recompute_from_tokens" is fetch_recompute there, with
// fetch.recompute tokens.
absl::string_view KvPolicyName(KvPolicy policy);

// One configuration of a cluster. Compute nodes: replicas x stages x shards, each a device, and as
// many for each prompt replica.
struct Cluster {
  DeviceRates compute;
  LinkRates compute_link;  // From one compute node to the others and to memory nodes.
  LinkRates shard_link;    // Between shards of one stage.
  DeviceRates memory;
  LinkRates memory_link;  // From one memory node to compute nodes.
  uint32_t replicas = 1;
  uint32_t stages = 1;
  uint32_t shards = 1;
  uint32_t prompt_replicas = 0;  // 0: prompts share steps with decode rows (prefill.mode inline).
  uint32_t memory_nodes = 0;     // 0 with kLocal.
  uint32_t lanes = 1;
  Partition partition = Partition::kRequest;
  KvPolicy policy = KvPolicy::kAttendRemote;
  double fetch_window = 0;  // Bytes of the cluster file's fetch.window.
};

// What a step has to do, over all lanes.
struct StepLoad {
  double rows = 1;           // Sequences that decode.
  double context = 0;        // Tokens of each sequence.
  double prompt_tokens = 0;  // Prompt tokens in chunks, not counting the rows.
  double prompt_length = 0;  // Tokens of the prompts that these belong to.
  // Prompt tokens behind a found prefix. Each is a row, and reads K and V of the tokens before it
  // where they lie, as a decode row does.
  double prompt_rows = 0;
  double prompt_row_context = 0;  // Tokens that each of them reads, in the mean.

  double all_rows() const { return rows + prompt_rows; }
};

enum class Bottleneck : uint8_t { kPath, kCompute, kMemory, kNetwork };

struct StepTimes {
  Estimate slice;      // One layer of a lane: dense layers, prompt rows and sums over shards too.
  Estimate head;       // The LM head of a lane.
  Estimate attention;  // One layer of a lane (the mean over layers), on the busiest memory node.
  Estimate network;    // One layer of a lane: there and back.
  Estimate step;       // A token for every row.
  Bottleneck bottleneck = Bottleneck::kPath;
};

// Requires: rows, context and lanes above 0; memory nodes unless the policy is kLocal.
StepTimes StepOf(const ModelShape& shape, const Cluster& cluster, const StepLoad& load);

// Seconds for which compute nodes work on a step, over all lanes and replicas: slices, the LM head,
// and attention where it is theirs. Rows may be 0, which leaves the prompts.
Estimate ComputeSeconds(const ModelShape& shape, const Cluster& cluster, const StepLoad& load);

// Seconds of a prompt replica for one prompt of `length` tokens by itself.
Estimate PromptSeconds(const ModelShape& shape, const Cluster& cluster, double length);

// Bytes of weights that one compute node holds.
double WeightBytesOfNode(const ModelShape& shape, const Cluster& cluster);

// Tokens of K and V that fit into the cluster; 0 where not even the weights do.
Estimate KvTokensMax(const ModelShape& shape, const Cluster& cluster);

// Bandwidth of the link to attention that does not slow compute nodes down, bytes/s: what rows put
// and get back, over the step's dense layers with the rings of `cards` cards (the paper's Table 3).
Estimate BandwidthNeeded(const ModelShape& shape, const DeviceRates& device, const LinkRates& ring,
                         uint32_t cards, double rows);

}  // namespace lamina::cost
