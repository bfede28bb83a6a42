// SPDX-License-Identifier: Apache-2.0
//
// EpochConfig: what the coordinator tells all nodes when an epoch begins, and EpochPeers, where
// their regions are. What follows from it, and what can be wrong with it, is in
// epoch_topology.h.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention_arithmetic.h"
#include "common/attention_descriptor.h"
#include "common/kv_form.h"
#include "common/partition.h"
#include "common/pipeline_mode.h"
#include "common/sparse_tokens.h"
#include "common/streaming_heads.h"
#include "plan/attention_paths.h"
#include "plan/stages.h"

namespace lamina::plan {

// The shape of the cluster in one epoch, the same for all its nodes.
struct EpochConfig {
  uint64_t epoch = 0;
  PipelineMode mode = PipelineMode::kRotational;
  uint32_t lanes = 0;
  uint32_t plan_ahead = 1;
  uint32_t rows_max = 0;
  // Sequences that have rows in one step at most. 0: as many as it has rows.
  uint32_t row_sequences_max = 0;
  uint32_t chunk_tokens_max = 0;
  // Rows and tokens of chunks of one step together, where that is less than both at most. 0: both.
  uint32_t step_tokens_max = 0;
  uint32_t scratch_tokens = 0;
  uint32_t sequence_tokens_max = 0;
  std::vector<AttentionDescriptor> layers;
  ClusterAttention attention;
  std::vector<std::string> compute_nodes;
  // What each compute node runs, where replicas are split into stages. Else empty: each is a
  // replica by itself.
  std::vector<Stage> stages;
  AttentionPaths attention_paths = {AttentionPath::kRemote};
  // Paths that fetch: bytes of the windows of one compute node in which K and V arrive, of
  // all lanes and memory nodes together. Else 0.
  uint64_t fetch_bytes = 0;
  // Paths that fetch: KV heads that come together. 0: as many as a window has room for.
  uint32_t fetch_heads = 0;
  // Elements of a token's activation in every layer, the input of the layer that makes k and v, for
  // which memory nodes have room: path recompute in addition to K and V in each slot, path hybrid
  // as `activation_share` says; with partition head each a part of it (activation_part.h). 0: they
  // keep none, and path recompute makes K and V from token numbers.
  uint32_t activation_width = 0;
  // Path recompute, and path hybrid where some slots hold activations: places for a token's
  // activations in all layers on the compute node (SequenceJoin::resident). 0: none stay there.
  uint32_t resident_tokens = 0;
  // Path hybrid: of SlotKinds::kUnit slots so many hold a token's activation in place of its K and
  // V (slot_kinds.h). 0: slots have K and V, and with path recompute room for the activation.
  uint32_t activation_share = 0;
  // Path recompute: of the tokens before the rows of a lane's step the compute node makes K and V
  // of so many at most from their numbers, as the step's plan says (fetch_split.h). 0: of none, and
  // what is made again is made of activations.
  uint32_t made_tokens_max = 0;
  // K and V are INT8 in slots, and bf16 in tails of open blocks, of which each node that holds KV
  // has so many (docs/adr/0171-int8-behind-the-open-block.md). With `int8_slots` those of path
  // remote_int8 alone. 0: they are bf16 in slots.
  uint32_t int8_tails = 0;
  // Path sparse: which tokens decode rows attend to, and how many of those before them. Else 0.
  SparseTokens sparse_tokens = SparseTokens::kWindowSums;
  double sparse_ratio = 0;
  // Path streaming: the heads that stream, and what they see. Else empty.
  StreamingHeads streaming = {};
  std::vector<std::string> memory_nodes;  // Path local: the compute nodes, which hold KV.
  // One entry for each memory node. Path local: nodes of one replica have the same slots, each of
  // its own layers and heads.
  std::vector<uint32_t> slots;
  // Path remote_int8: slots of INT8 of each memory node, next to `slots`, which are bf16. Else
  // empty.
  std::vector<uint32_t> int8_slots;
  // Path hybrid next to others: slots that are its own, of each memory node, next to `slots`, which
  // are those of the others (docs/adr/0257-slots-of-two-kinds-next-to-others.md). Else empty.
  std::vector<uint32_t> hybrid_slots;
  Partition partition = Partition::kRequest;  // Never kAuto.
  // Partition head: what each memory node holds of every sequence. Else empty: a memory node holds
  // all heads of the sequences that live on it.
  std::vector<HeadRange> heads;
  // Partition token_range: sequences are cut into spans of so many tokens, each on the memory node
  // that its allocations name. Else 0.
  uint32_t span_tokens = 0;
  std::string transport;  // URI
  // The last of `compute_nodes` run prompts' chunks alone, in the last of `lanes`, as many for each
  // of their replicas (PipelineSchedule). 0: prompts run in the lanes of decode rows.
  uint32_t prefill_nodes = 0;
  uint32_t prefill_lanes = 0;
  // Whether compute nodes, and memory nodes, may wait for windows and write their peers' on a
  // device (transport/transport.h, direct()). Peers' regions are written_by_devices then.
  bool compute_waits = false;
  bool memory_waits = false;

  // The form of K and V in slots of sequences that attend by the path.
  KvForm KvFormOf(AttentionPath path) const {
    const bool int8 = int8_slots.empty() ? int8_tails > 0 : path == AttentionPath::kRemoteInt8;
    return int8 ? KvForm::kInt8 : KvForm::kBF16;
  }

  friend bool operator==(const EpochConfig&, const EpochConfig&) = default;
};

// Region descriptors of all nodes of an epoch.
struct EpochPeers {
  uint64_t epoch = 0;
  std::vector<std::string> compute_regions;
  std::vector<std::string> memory_regions;

  friend bool operator==(const EpochPeers&, const EpochPeers&) = default;
};

}  // namespace lamina::plan
