// SPDX-License-Identifier: Apache-2.0
//
// SimNodes: the nodes of one epoch, as a model that knows nothing but plans. It keeps the tables
// that real nodes keep, stores tokens in slots and in the scratch, computes the next token from
// what it finds there, and checks every promise of step_plan.h on the way.
//
// A step has two moments: Start applies the changes to the tables, End reads and writes. Between
// them, steps of other lanes may start and end.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/scheduler.h"

namespace lamina::sim {

class SimNodes {
 public:
  SimNodes(const core::SchedulerOptions& options, uint64_t epoch, uint64_t seed);

  void Start(const core::StepPlan& plan);
  core::StepResult End(const core::StepPlan& plan);

  // The first broken promise.
  const std::string& failure() const { return failure_; }
  bool TablesEmpty() const { return table_.empty(); }

 private:
  struct Entry {
    core::SequenceJoin join;
    uint32_t lane = 0;
    std::vector<TokenId> tokens;  // Known on the compute node.
    std::vector<uint32_t> slots;  // By token.
    uint32_t chunked = 0;         // Prefix tokens whose chunk has ended.
    uint32_t chunk_started = 0;
    bool prefilled = false;  // Ended its last chunk, or its parent's.
    bool finished = false;   // Rows are dead.
    bool row_under_way = false;
    bool has_scratch = false;
    uint32_t scratch_offset = 0;
  };
  using Table = std::map<core::SequenceId, Entry>;

  void Fail(const std::string& what);
  void StartLane(const core::StepPlan& plan);
  void Leave(const core::StepPlan& plan, core::SequenceId id);
  void Join(const core::StepPlan& plan, const core::SequenceJoin& join);
  void Grant(const core::StepPlan& plan, const core::SlotGrant& grant);
  void CheckGrantsOfJoins(const core::StepPlan& plan);
  void CheckRows(const core::StepPlan& plan);
  void StartChunk(const core::StepPlan& plan, const core::PrefillChunk& chunk);
  void ClaimScratch(Entry& entry, const core::PrefillChunk& chunk);
  void CheckRoles(const core::StepPlan& plan);
  void EndRow(const core::DecodeRow& row, core::StepResult& result);
  void EndChunk(const core::PrefillChunk& chunk, core::StepResult& result);
  void Score(const Entry& entry, const core::PrefillChunk& chunk, core::StepResult& result);
  void Sample(Entry& entry, TokenId token, core::StepResult& result);
  Entry* Find(const core::StepPlan& plan, core::SequenceId id);
  std::vector<TokenId>& ScratchOf(uint32_t lane) {
    return scratch_[lane >= options_.lanes ? options_.prefill_lanes.ReplicaOf(lane - options_.lanes)
                                           : 0];
  }

  core::SchedulerOptions options_;
  uint64_t epoch_;
  Prng random_;
  Table table_;
  struct Slot {
    std::vector<core::SequenceId> owners;
    TokenId token = -1;
  };
  std::vector<std::vector<Slot>> slots_;  // By memory node.
  // By replica for prompts, or one of all lanes.
  std::vector<std::vector<TokenId>> scratch_;
  std::vector<uint64_t> step_started_;  // By lane.
  std::string failure_;
};

}  // namespace lamina::sim
