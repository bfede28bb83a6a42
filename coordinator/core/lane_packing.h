// SPDX-License-Identifier: Apache-2.0
//
// LanePacking: which rows of a path's lanes change places, so that lanes that take turns at link
// and device keep both busy. Evening out (lane_balance.h) moves single rows by their context alone.
// A strategy; to add one, implement this and hand it to SchedulerOptions::strategies.
//
// Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/fetch_planning.h"
#include "plan/attention_paths.h"

namespace lamina::core {

// A sequence that decodes: tokens of it that are held as activations, and as K and V.
struct PackedRow {
  uint32_t activations = 0;  // Those that come.
  uint32_t kv = 0;
  uint32_t resident = 0;  // Tokens whose activations stay on the compute node.
  bool may_move = true;
};
// Rows of one lane, in service order.
using PackedLane = std::vector<PackedRow>;

// Two rows of different lanes change places; all are indices.
struct LaneExchange {
  uint32_t lane = 0;
  uint32_t row = 0;
  uint32_t other_lane = 0;
  uint32_t other_row = 0;
};

// The lanes of a path between which rows may change, in the order of their turns.
struct LanesToPack {
  plan::AttentionPath path = plan::AttentionPath::kRemote;
  // Counts what rows hold, which takes as long as there are extents of them.
  absl::FunctionRef<std::vector<PackedLane>()> lanes;
};

class LanePacking {
 public:
  virtual ~LanePacking() = default;
  virtual absl::string_view name() const = 0;

  // Each row is in one exchange at most. Requires of the answer: both of an exchange may move.
  virtual std::vector<LaneExchange> Choose(const LanesToPack& to_pack, const FetchRates& rates) = 0;
};

// No request changes its lane.
std::unique_ptr<LanePacking> MakeRowsStay();
// Policy fetch_hybrid by measured rates, for lanes of path hybrid (policy/batch_exchange.h); while
// nothing is measured none do.
std::unique_ptr<LanePacking> MakeMiniBatches(const RecomputeBytes& bytes);

}  // namespace lamina::core
