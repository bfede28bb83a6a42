// SPDX-License-Identifier: Apache-2.0
//
// SparseStream: the source that puts K and V of chosen tokens into the windows of the compute node
// where rows attend to them (path sparse). When a step begins the compute node says for every layer
// and sequence which tokens it wants (plan/token_sets.h); from then on the stream runs by itself,
// layer by layer (ahead_stream.h).
//
// The pieces are those of plan/fetch_pieces.h, as if the chosen tokens were all that there are: K
// and V of these lie one behind the other, and so plain attention reads them. Where slots are INT8
// chosen tokens of closed blocks come as they are, with scales of K of each block that has one
// (docs/adr/0204-chosen-tokens-come-as-int8.md).
//
// Sets come from a peer: bits of tokens that the sequence does not have before the step end the
// epoch, and nothing is sent of the step. So do, with INT8, consecutive rows that do not attend to
// all tokens before them.
//
// Threading: the data thread. Allocation: in Open(), when a step begins, and when a layer's runs
// are cut more often than any before.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/extent.h"
#include "kernels/kv_device.h"
#include "memory_node/ahead_stream.h"
#include "memory_node/int8_pieces.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "memory_node/query_checks.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "plan/fetch_pieces.h"
#include "plan/slot_tables.h"

namespace lamina::memory_node {

class SparseStream final : public AheadStream {
 public:
  // `int8`: slots are. References must outlive this.
  SparseStream(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed, UnitMeter& meter,
               kernels::KvReads& kv, bool int8);

 private:
  // Where the layer's tokens of a run lie: all, or with INT8 those of closed blocks, whole blocks
  // that have some, and those of the open one.
  struct Places {
    std::vector<Extent> slots;
    std::vector<Extent> blocks;
    std::vector<Extent> open;
  };

  // What a lane's step sends.
  struct Step {
    bool has_sets = false;             // They have come from the compute node.
    std::vector<plan::FetchRun> rows;  // The step's.
    std::vector<uint64_t> sets;        // All layers', as they came.
    // The layer's rows with as many tokens before them as are chosen, and their slots.
    std::vector<plan::FetchRun> runs;
    std::vector<Places> places;
    std::vector<RunTokens> tokens;    // Those tokens themselves.
    std::vector<Int8RunTokens> int8;  // In place of them.
    std::vector<TailCopy> copies;     // [rows], of rows that pass a tail.
  };

  bool Serves(plan::AttentionPath path) const override {
    return path == plan::AttentionPath::kSparse;
  }
  absl::Status Begin(const Lane& lane) override;
  void BeginLayer(const Lane& lane, uint32_t layer) override;
  // The token sets, as long as there are none; then credits.
  transport::SignalCondition Awaited(const Lane& lane) const override;
  absl::StatusOr<bool> GoOn(Lane& lane) override;
  absl::Status TakeSets(const Lane& lane, Step& step);
  // Errors: those of tokens that the run cannot have.
  absl::Status CheckSet(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                        const std::string& of) const;
  void PlaceInt8(const plan::SlotTables::Sequence& sequence, absl::Span<const uint64_t> set,
                 Step& step, uint32_t run) const;

  const QueryChecks& checks_;
  kernels::KvReads& kv_;
  const bool int8_;
  std::vector<Step> steps_;  // [lanes]
};

}  // namespace lamina::memory_node
