// SPDX-License-Identifier: Apache-2.0
//
// SchedulerOptions: the limits of a scheduler, its memory nodes, and the strategies that it decides
// by.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/kv_form.h"
#include "coordinator/core/fetch_planning.h"
#include "coordinator/core/lane_packing.h"
#include "coordinator/core/out_of_slots.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/step_packing.h"
#include "coordinator/core/sub_batches.h"
#include "cost/layer_windows.h"
#include "cost/spill_cost.h"
#include "plan/attention_paths.h"
#include "plan/prefill_lanes.h"
#include "plan/spill_blocks.h"

namespace lamina::core {

// A memory node's tier for K and V of sequences without slots, and for copies of cached blocks.
struct SpillShare {
  uint32_t blocks = 0;  // Blocks of plan::kSpillBlockTokens tokens; 0: there is no tier.
  uint32_t nodes = 1;   // That have a part of each token: all report what they have done.
  cost::SpillRates rates;
};

struct MemoryNodeShare {
  std::string name;
  uint32_t slots = 0;
  // Names the memory that its slots lie in; another one holds nothing. 0: not known, taken for
  // another.
  uint64_t arena = 0;
  double bandwidth_bytes_per_second = 0;  // Measured by the node at start; relative size matters.
  SpillShare spill;
  // The form of K and V in its slots. Nothing: sequences of every form live there.
  std::optional<KvForm> form;
  // The paths of sequences that live there. Empty: all whose form it has.
  plan::AttentionPaths paths = {};
  // Policy fetch_hybrid: so many of plan::SlotKinds::kUnit slots hold activations.
  uint32_t activation_share = 0;
};

// The name of several memories as one, in this order: another one if any is another. 0 if one is
// not known, or there is none; of a single one its own.
uint64_t JoinArenas(absl::Span<const uint64_t> arenas);

// Whether any of them has a spill tier.
bool HasSpillTier(absl::Span<const MemoryNodeShare> nodes);

// Each makes the strategy of one scheduler.
struct SchedulerStrategies {
  std::function<std::unique_ptr<Placement>()> placement = MakeLeastAttentionTime;
  std::function<std::unique_ptr<OutOfSlots>()> out_of_slots = MakePreemptLast;
  std::function<std::unique_ptr<StepPacking>()> step_packing = MakeRowsFirst;
  std::function<std::unique_ptr<FetchPlanning>()> fetch_planning = MakeFetchAll;  // Path fetch.
  std::function<std::unique_ptr<LanePacking>()> lane_packing = MakeRowsStay;
};

struct SchedulerOptions {
  uint32_t lanes = 1;                // That decode.
  plan::PrefillLanes prefill_lanes;  // Behind these. Of epoch 0.
  bool lanes_auto = false;           // Any number up to `lanes`, by measured times (lane_count.h).
  std::string lanes_why = "as configured";  // Without lanes_auto.
  SubBatchOptions sub_batches;              // In how many chunks a lane's rows go to a memory node.
  uint32_t plan_ahead = 2;
  uint32_t rows_max = 256;         // Decode rows of a lane.
  uint32_t prompt_rows_max = 0;    // Rows that a step has room for beyond these, for prompts.
  uint32_t step_tokens_max = 512;  // Decode rows plus chunk tokens of a step.
  uint32_t chunk_tokens = 512;     // Largest chunk of one prompt.
  // Room on a compute node for all prompts in prefill of all lanes, or of its replica's prefill
  // lanes. What a prompt has beyond it attends where K and V lie, as rows; not in prefill lanes.
  uint32_t scratch_tokens = 8192;
  // Places on the compute node for the activations of so many tokens, which are shared out over
  // running_max sequences of the path. 0: none stay there.
  uint32_t resident_tokens = 0;
  plan::AttentionPath resident_path = plan::AttentionPath::kRecompute;
  uint32_t sequence_tokens_max = 8192;
  uint32_t running_max = 256;
  uint32_t waiting_max = 1024;
  // Tokens of all that join in one step, if there are several: each brings all of its own, and
  // nodes receive messages of 256 MiB at most.
  uint32_t join_tokens_max = 32U << 20;
  // Slots that must be free for each sequence already on the memory node before another one joins.
  // More of them: fewer preemptions, less of the memory used.
  uint32_t admission_headroom = 16;
  // The form of K and V of sequences, but for those whose path has one of its own (FormOf).
  KvForm kv = KvForm::kBF16;
  // Where K and V are INT8: tails of open blocks on each memory node, for so many sequences. They
  // share closed blocks alone. 0: K and V are bf16.
  uint32_t int8_tails = 0;
  // Tokens of a block of the prefix cache: a tile of K, and where K and V are INT8 a block that has
  // scales of its own.
  uint32_t cached_block_tokens = 16;
  uint32_t int8_block_tokens = kInt8BlockTokens;
  // Tokens of the blocks that are copied to a spill tier together; plan::kSpillBlockTokens at most.
  uint32_t copied_run_tokens = plan::kSpillBlockTokens;
  // Partition token_range: sequences are cut into spans of so many tokens, which may lie on
  // different memory nodes. 0: a sequence lies on one.
  uint32_t span_tokens = 0;
  // What the layers see. Where each has a window, tokens that no query reaches any more give their
  // slots up, so many at a time: whole blocks of attention.
  cost::LayerWindows windows;
  uint32_t release_tokens = 256;
  uint32_t soft_reservation_min = 64;  // See KvDirectoryOptions.
  uint32_t soft_reservation_max = 256;
  // The nodes of epoch 0. May be empty: then Submit answers kUnavailable until StartEpoch brings
  // some.
  std::vector<MemoryNodeShare> memory_nodes;
  // K and V stay when their sequences have ended, for others with the same first tokens
  // (prefix_cache.h). With span_tokens not with prefill lanes, or where each layer has a window.
  bool prefix_cache = false;
  SchedulerStrategies strategies;

  // Errors: kInvalidArgument  a limit is 0, or with prefill lanes sequence_tokens_max is more
  //                           than scratch_tokens.
  absl::Status Validate() const;

  // Slots that a sequence of so many tokens needs at once to go on when it is alone: all of them,
  // or where every layer has a window what its next row reaches, in whole blocks and spans.
  uint32_t SlotsAtOnce(uint32_t tokens) const;

  // Tokens of the longest sequence of the path that the memory nodes can hold when it is alone.
  uint32_t SlotsOfLongest(plan::AttentionPath path) const;

  // The most tokens of one sequence whose activations stay: whole tiles.
  uint32_t ResidentOfEach() const;

  // The form of K and V of sequences by the path.
  KvForm FormOf(plan::AttentionPath path) const {
    return path == plan::AttentionPath::kRemoteInt8 ? KvForm::kInt8 : kv;
  }
  // Tokens of a block of the prefix cache in slots of the share.
  uint32_t CachedBlockTokensOn(const MemoryNodeShare& share) const {
    return share.form.value_or(kv) == KvForm::kInt8 ? int8_block_tokens : cached_block_tokens;
  }
  // Whether sequences by the path may live there.
  bool MayHold(const MemoryNodeShare& share, plan::AttentionPath path) const {
    return (!share.form.has_value() || *share.form == FormOf(path)) &&
           (share.paths.empty() || share.paths.Has(path));
  }
};

}  // namespace lamina::core
