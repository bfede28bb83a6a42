// SPDX-License-Identifier: Apache-2.0
//
// NodeCounters: what a node has counted since it started, as others read it: its own page, the
// control stream, the coordinator.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/shared_bus.h"
#include "common/thread_beat.h"
#include "telemetry/fitted_seconds.h"
#include "telemetry/refusals.h"
#include "telemetry/work_meter.h"

namespace lamina::telemetry {

// Where SpillCount::seconds_in went. What is left of it is between reads, for want of a thread, of
// a buffer or of a core.
struct SpillReads {
  double queued_seconds = 0;   // Before the first block was begun,
  double reading_seconds = 0;  // while blocks were being read,
  double behind_seconds = 0;   // and behind the last read, until all was checked and copied.
  double copying_seconds = 0;  // Time of all threads that checked and copied, meanwhile too.
  uint64_t ahead_bytes = 0;    // What of bytes_in had been read before it was ordered.
  friend bool operator==(const SpillReads&, const SpillReads&) = default;
};

// What went between slots and the spill tier of a memory node. `capacity_bytes` 0: there is none.
struct SpillCount {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint64_t sequences_out = 0;      // Times that one was written whole,
  uint64_t sequences_in = 0;       // and read back.
  uint64_t cached_tokens_out = 0;  // Tokens of the prefix cache that were copied there,
  uint64_t cached_tokens_in = 0;   // and that were read back.
  uint64_t failures = 0;           // Times that one of these could not be done.
  double seconds_out = 0;          // From plan to report of those that could, queueing included.
  double seconds_in = 0;
  SpillReads reads;
  double write_bytes_per_second = 0;  // Measured at start.
  double read_bytes_per_second = 0;
  friend bool operator==(const SpillCount&, const SpillCount&) = default;
};

// What an emulated bus has carried for all nodes on it (common/shared_bus.h).
struct BusCount {
  std::string direction;  // "to" compute nodes or "from" them.
  uint64_t bytes_per_second = 0;
  double busy_seconds = 0;
  std::vector<std::pair<std::string, uint64_t>> bytes;  // By NameOf(BusKind), in its order.
  friend bool operator==(const BusCount&, const BusCount&) = default;
};
BusCount BusCountOf(std::string direction, const BusTotals& totals);

// Papers by whose formulas the memory of a compute node is told (compute_node/memory_formula.h).
enum class MemoryPaper : uint8_t { kNone, kHeadInfer, kKvpr, kHybridServe };

// In the order of the enum, for people and on the wire.
inline constexpr std::array<absl::string_view, 4> kMemoryPaperNames = {"", "HeadInfer", "KVPR",
                                                                       "HybridServe"};

inline absl::string_view NameOf(MemoryPaper paper) {
  return kMemoryPaperNames[static_cast<size_t>(paper)];
}

// kNone for a name that there is not.
inline MemoryPaper MemoryPaperOf(absl::string_view name) {
  for (size_t i = 0; i < kMemoryPaperNames.size(); ++i) {
    if (kMemoryPaperNames[i] == name) {
      return static_cast<MemoryPaper>(i);
    }
  }
  return MemoryPaper::kNone;
}

// The memory of a compute node to which K and V come, by the formula of the policy's paper, in
// bytes.
struct FormulaMemory {
  MemoryPaper paper = MemoryPaper::kNone;  // kNone: no formula says anything of the node.
  uint64_t weights = 0;
  uint64_t windows = 0;
  uint64_t activations = 0;  // Those of rows at work, which HeadInfer's has alone,
  uint64_t resident = 0;     // and those that stay, which the others have.
  uint32_t heads = 0;        // HeadInfer: KV heads of a group. Else 0.
  friend bool operator==(const FormulaMemory&, const FormulaMemory&) = default;
};

struct NodeCounters {
  double busy_seconds = 0;  // Time in all kinds of work that are not waits.
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t refused_messages = 0;
  uint64_t kv_bytes_read = 0;
  uint64_t units = 0;
  // Units that were slices which a device replayed from a captured graph: one call each.
  uint64_t replayed_units = 0;
  uint64_t device_units = 0;       // Units for whose windows a device waited itself.
  uint64_t recomputed_tokens = 0;  // Tokens times layers whose K and V compute nodes made again.
  uint64_t weight_bytes = 0;       // Bytes of a compute node's weights, as it holds them.
  uint64_t streamed_bytes = 0;     // Bytes of weights that come in a step (weights_budget).
  // Bytes of a compute node's device by what they are for, and their bound, 0 for none.
  std::vector<std::pair<std::string, uint64_t>> memory;
  uint64_t memory_budget = 0;
  FormulaMemory memory_formula;  // Next to `memory`.
  SpillCount spill;
  std::vector<BusCount> buses;  // Those that a compute node is on.
  FittedSeconds making;         // K and V of a layer's tokens from activations, over tokens.
  // A line fitted to the times of recent units: of a slice over rows (compute nodes, the tail of a
  // step spread over its slices), of an attention over tokens of context (memory nodes). Zeros:
  // nothing measured yet.
  double unit_seconds_fixed = 0;
  double unit_seconds_slope = 0;
  // What its data thread does, and a number that changes while that gets on (common/thread_beat.h).
  ThreadActivity activity = ThreadActivity::kNone;
  uint64_t beats = 0;
  std::vector<std::pair<std::string, double>> parts;       // Seconds by NameOf(WorkKind).
  std::vector<std::pair<std::string, uint64_t>> refusals;  // refused_messages by reason.
  std::vector<LinkCount> links;                            // By peer.
  friend bool operator==(const NodeCounters&, const NodeCounters&) = default;
};

// Fills in what meter and refusals know; parts in the order of WorkKind: those of the role, and
// others that took time.
void Count(const WorkMeter& meter, const Refusals& refusals, bool is_memory,
           NodeCounters& counters);

}  // namespace lamina::telemetry
