// SPDX-License-Identifier: Apache-2.0
//
// SimNodes: the nodes of one epoch, as a model that knows nothing but plans. It keeps the tables
// that real nodes keep, stores tokens in slots and in the scratch, computes the next token from
// what it finds there, and checks every promise of step_plan.h on the way.
//
// A step has two moments: Start applies the changes to the tables, End reads and writes. Between
// them, steps of other lanes may start and end.

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/scheduler.h"
#include "tests/sim/fake_model.h"
#include "tests/sim/planted_bug.h"
#include "tests/sim/sim_slots.h"
#include "tests/sim/sim_tier.h"

namespace lamina::sim {

class SimNodes {
 public:
  // Nodes whose arena is in `arenas` find there what they had.
  SimNodes(const core::SchedulerOptions& options, uint64_t epoch, uint64_t seed,
           const SimArenas& arenas = {});

  // Lanes are bound to nodes, each of which has a scratch for them. Before the first plan.
  void BindLanes(const core::LaneHomes& homes);

  // Is called for each token that a row of `reader` reads and another sequence has stored.
  using Read = std::function<void(plan::SequenceId reader, plan::SequenceId maker)>;
  void OnReadOfOthers(Read read) { read_of_others_ = std::move(read); }
  // The nodes have this bug, if it is one of theirs. Before the first plan.
  void Plant(PlantedBug bug) { bug_ = bug; }

  SimArenas Arenas() const;

  void Start(const plan::StepPlan& plan);
  plan::StepResult End(const plan::StepPlan& plan);
  // What a plan whose step is still to start reads back, into slots that it gives to its joins.
  void ReadAhead(const plan::StepPlan& plan);
  bool WasReadAhead(const plan::StepPlan& plan, uint64_t spill) const {
    return ahead_.contains({plan.lane, plan.step, spill});
  }
  // Where what a plan has spilled is being written or read.
  std::vector<uint32_t> NodesAt(uint64_t spill) const { return tier_.NodesAt(spill); }
  // The node has written or read it.
  void EndSpill(uint64_t spill, uint32_t node, bool ok) {
    tier_.End(spill, node, ok, slots_[node]);
    tails_[node].owners.EndMove(spill);
  }

  // The first broken promise.
  const std::string& failure() const { return failure_.empty() ? tier_.failure() : failure_; }
  bool TablesEmpty() const { return table_.empty(); }
  bool IsCopy(uint64_t spill) const { return copies_.contains(spill); }
  size_t spilled() const { return tier_.size(); }

 private:
  struct Entry {
    plan::SequenceJoin join;
    uint32_t lane = 0;
    std::vector<TokenId> tokens;           // Known on the compute node.
    std::vector<uint32_t> slots;           // By token,
    std::vector<uint32_t> nodes;           // and whose they are.
    uint32_t released = 0;                 // The first ones, which have none any more.
    std::vector<SimSlot>* tail = nullptr;  // INT8: its open block.
    // Cut, it has one on each memory node, for the last block that it fills there.
    std::vector<std::vector<SimSlot>*> tails = {};
    uint32_t chunked = 0;  // Prefix tokens whose chunk has ended.
    uint32_t chunk_started = 0;
    bool prefilled = false;  // Ended its last chunk, or its parent's.
    bool finished = false;   // Rows are discarded.
    bool row_under_way = false;
    bool has_scratch = false;
    uint32_t scratch_offset = 0;
    // INT8: the open block that the token is in, or was.
    std::vector<SimSlot>& TailWith(size_t token) const {
      return tails.empty() ? *tail : *tails[nodes[token]];
    }
  };
  using Table = std::map<plan::SequenceId, Entry>;
  // Places for activations of one that has left with a step. Until it ends, the lane's own joins
  // alone may have them.
  struct LeftPlaces {
    uint32_t lane = 0;
    uint64_t step = 0;
    plan::ResidentTokens places;
  };

  void Fail(const std::string& what);
  void StartLane(const plan::StepPlan& plan);
  void SpillOut(const plan::StepPlan& plan, const plan::SpillOut& spill);
  void CopyOut(const plan::SpillOut& spill);
  void SpillIn(const plan::StepPlan& plan, const plan::SpillIn& spill);
  std::map<uint32_t, SimPlaces> PlacesOf(const Entry& entry, uint32_t first, uint32_t tokens,
                                         uint64_t spill);
  void StartRow(Entry& entry, const plan::DecodeRow& row);
  void ScoreRow(Entry& entry, const plan::DecodeRow& row, plan::StepResult& result);
  uint32_t ScratchTokensOf(const Entry& entry) const {
    return std::min(static_cast<uint32_t>(entry.join.tokens.size()), options_.scratch_tokens);
  }
  void EndPrompt(Entry& entry, plan::StepResult& result);
  void Leave(const plan::StepPlan& plan, plan::SequenceId id);
  void Join(const plan::StepPlan& plan, const plan::SequenceJoin& join);
  void Allocate(const plan::StepPlan& plan, const plan::SlotAllocation& allocation);
  // The node of the slots, which are those of the sequence's next tokens.
  uint32_t NodeOf(const Entry& entry, const plan::SlotAllocation& allocation);
  void Release(const plan::StepPlan& plan, const plan::SlotRelease& release);
  // The first token that a query at `position` reads.
  uint32_t FirstSeen(uint32_t position) const;
  void CheckAllocationsOfJoins(const plan::StepPlan& plan);
  void CheckWorkOfJoins(const plan::StepPlan& plan);
  void CheckRows(const plan::StepPlan& plan);
  void StartChunk(const plan::StepPlan& plan, const plan::PrefillChunk& chunk);
  void ClaimScratch(Entry& entry, const plan::PrefillChunk& chunk);
  void CheckRoles(const plan::StepPlan& plan);
  void CheckPaths(const plan::StepPlan& plan);
  void CheckForm(Entry& entry);
  std::vector<SimSlot>* TailOf(uint32_t node, uint32_t tail) {
    return &tails_[node].blocks[bug_ == PlantedBug::kTailShared ? 0 : tail];
  }
  // How many of a sequence's first `tokens` tokens are in its open block of INT8.
  uint32_t OpenOf(plan::AttentionPath path, uint32_t tokens) const {
    return options_.FormOf(path) == KvForm::kInt8 ? tokens % options_.int8_block_tokens : 0;
  }
  // What the row at `position` finds of a token of its sequence that is not behind it.
  const SimSlot& Seen(const Entry& entry, size_t token, size_t position) const;
  void Store(Entry& entry, size_t token, const SimSlot& stored);
  static bool StoresBare(const Entry& entry) {
    return entry.join.path != plan::AttentionPath::kRecompute;
  }
  void CheckActivations(const Entry& entry, uint32_t position);
  void EndRow(const plan::DecodeRow& row, plan::StepResult& result);
  void CheckReads(const Entry& entry, uint32_t position);
  void EndChunk(const plan::PrefillChunk& chunk, plan::StepResult& result);
  void Score(const Entry& entry, const plan::PrefillChunk& chunk, plan::StepResult& result);
  void Sample(Entry& entry, const FakeModel& model, plan::StepResult& result);
  Entry* Find(const plan::StepPlan& plan, plan::SequenceId id);
  std::vector<TokenId>& ScratchOf(uint32_t lane) {
    return scratch_[lane >= options_.lanes ? options_.prefill_lanes.ReplicaOf(lane - options_.lanes)
                                           : homes_.GroupOf(lane)];
  }

  core::SchedulerOptions options_;
  uint64_t epoch_;
  Prng random_;
  Table table_;
  std::vector<LeftPlaces> left_places_;
  using Slot = SimSlot;
  const Slot& SlotOf(const Entry& entry, size_t token) const {
    return slots_[entry.nodes[token]][entry.slots[token]];
  }
  Slot& SlotOf(const Entry& entry, size_t token) {
    return slots_[entry.nodes[token]][entry.slots[token]];
  }
  std::vector<std::vector<Slot>> slots_;  // By memory node.
  std::vector<SimTails> tails_;           // As well.
  std::set<uint64_t> copies_;             // Spills that are copies of cached blocks.
  SimTier tier_;
  std::set<std::tuple<uint32_t, uint64_t, uint64_t>> ahead_;     // (lane, step, spill)
  std::set<std::pair<plan::SequenceId, uint32_t>> ahead_slots_;  // Until it gets them,
  std::map<plan::SequenceId, uint32_t> ahead_tails_;             // and its tail.
  core::LaneHomes homes_;
  // By replica for prompts, or by the node that lanes are bound to, or one of all lanes.
  std::vector<std::vector<TokenId>> scratch_;
  std::vector<uint64_t> step_started_;  // By lane.
  Read read_of_others_;
  PlantedBug bug_ = PlantedBug::kNone;
  std::string failure_;
};

}  // namespace lamina::sim
