// SPDX-License-Identifier: Apache-2.0
//
// StepMaker: makes the steps of lanes. A step is opened with what runs in the lane, as StepPacking
// packs it; newcomers join it while it is open; then it is closed and counts as planned.
//
// Threading: one thread.   Determinism: same calls, same answers.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/core/fetch_planning.h"
#include "coordinator/core/planned_steps.h"
#include "coordinator/core/row_slots.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence_life.h"
#include "coordinator/core/step_packing.h"
#include "coordinator/core/sub_batches.h"
#include "cost/layer_seconds.h"
#include "plan/attention_paths.h"
#include "plan/step_plan.h"

namespace lamina::core {

// A step being made.
struct OpenStep {
  plan::StepPlan plan;
  PlannedStep record;
  uint32_t tokens_left = 0;  // What is left of the step's token budget.
  // The path of those with work in the step, who may have been taken out of the lane meanwhile;
  // nothing: there is no work yet.
  std::optional<plan::AttentionPath> path;
  // While rows are packed: the memory node of each, and the row of each token of the record.
  std::vector<uint32_t> row_nodes;
  std::vector<uint32_t> token_rows;
  uint32_t rows_of_node = 0;  // The most rows that have their node in common.
  bool has_prompt_rows = false;
  // Sequences with rows; some may have been taken out of the lane meanwhile.
  uint32_t row_sequences = 0;
  uint64_t join_tokens = 0;  // Those that join bring so many.
};
using OpenSteps = std::map<uint32_t, OpenStep>;  // By lane.

class StepMaker {
 public:
  StepMaker(const SchedulerOptions& options, SequenceLife& life, const SequenceLife::Places& places,
            PlannedSteps& steps, RowSlots& slots, std::unique_ptr<StepPacking> packing,
            std::unique_ptr<FetchPlanning> fetching);

  // Opens the next step of a lane, without work yet.
  OpenStep Open(uint64_t epoch, uint32_t lane);
  // Packs what runs in the lane, and seals the step's leaves: who is taken out from here on leaves
  // a step later.
  void Pack(OpenStep& open);

  // Whether the step takes one more row.
  bool HasRoom(const OpenStep& open) const { return open.tokens_left > 0 && RoomForRows(open) > 0; }
  // Whether the plan has room for a sequence that joins with so many tokens.
  bool TakesJoin(uint64_t tokens, const OpenStep& open) const {
    return open.plan.joins.empty() || open.join_tokens + tokens <= options_.join_tokens_max;
  }
  // A sequence joins with these slots. Requires: cached_tokens is known of one that finds some.
  void AddJoin(const Sequence& sequence, const std::vector<HeldExtent>& slots,
               OpenStep& open) const;
  // The first tokens of one that joins and shares slots of all before them. Requires: HasRoom(),
  // and that it has slots for them, or that as many are free on each node.
  void AddContinued(Sequence& sequence, OpenStep& open);

  // Tokens that the step takes of a newcomer's prompt; 0: none may join.
  uint32_t TokensForNewcomer(OpenStep& open);
  // The first tokens of one that joins. Requires: TokensForNewcomer() > 0.
  void AddNewcomer(Sequence& sequence, OpenStep& open);

  // Counts the step as planned, unless it is empty.
  bool Close(OpenStep& open, const cost::LinkCosts& link, const cost::LaneCosts& costs);

  // What steps with rows are closed with from now on.
  void SetFetchRates(const FetchRates& rates) { fetch_rates_ = rates; }
  const FetchRates& fetch_rates() const { return fetch_rates_; }
  // Both are of the last step with rows; the first one of a path with something to choose.
  const FetchShare& fetch_share() const { return fetch_share_; }
  const SubBatchCount& sub_batches() const { return sub_batches_; }

 private:
  class Packed;
  bool AddRow(Sequence& sequence, OpenStep& open);
  uint32_t AddChunk(Sequence& sequence, uint32_t tokens_max, OpenStep& open);
  static uint32_t BeforeDecode(const Sequence& sequence);
  void AddPromptRows(const Sequence& sequence, uint32_t tokens, OpenStep& open);
  static void LeaveScratch(Sequence& sequence, OpenStep& open);
  static void AddToken(const Sequence& sequence, uint32_t position, uint32_t row, OpenStep& open);
  void EndPrompt(Sequence& sequence, uint32_t row, OpenStep& open);
  uint32_t RoomForRows(const OpenStep& open) const;  // For so many more, of one more sequence.
  void SortRows(OpenStep& open) const;
  void PlanFetching(OpenStep& open);
  SubBatchCount SubBatchesFor(const OpenStep& open, cost::LinkCosts link,
                              const cost::LaneCosts& costs) const;

  const SchedulerOptions& options_;
  SequenceLife& life_;
  SequenceLife::Places places_;
  PlannedSteps& steps_;
  RowSlots& slots_;
  std::unique_ptr<StepPacking> packing_;
  std::unique_ptr<FetchPlanning> fetching_;
  FetchRates fetch_rates_;
  SubBatchCount sub_batches_;
  FetchShare fetch_share_;
};

}  // namespace lamina::core
