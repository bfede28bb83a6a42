// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/sim_nodes.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_slots.h"

namespace lamina::sim {

namespace {

constexpr uint32_t kNoSlot = UINT32_MAX;  // Stands for a token that has given up its own.

bool Overlap(const plan::ResidentTokens& a, const plan::ResidentTokens& b) {
  return a.place < b.place + b.tokens && b.place < a.place + a.tokens;
}

}  // namespace

SimNodes::SimNodes(const core::SchedulerOptions& options, uint64_t epoch, uint64_t seed,
                   const SimArenas& arenas)
    : options_(options),
      epoch_(epoch),
      random_(seed),
      tier_(options.memory_nodes),
      scratch_(std::max(1u, options.prefill_lanes.replicas),
               std::vector<TokenId>(options.scratch_tokens, -1)),
      step_started_(options.lanes + options.prefill_lanes.count()) {
  for (const core::MemoryNodeShare& node : options.memory_nodes) {
    const auto kept = arenas.find(MemoryOf(node));
    SimArena arena = kept == arenas.end() ? MakeArena(options, node) : kept->second;
    arena.tails.owners.BeginEpoch();
    slots_.push_back(std::move(arena.slots));
    tails_.push_back(std::move(arena.tails));
    for (Slot& slot : slots_.back()) {
      slot.owners.clear();
      slot.moves = 0;
    }
  }
}

void SimNodes::BindLanes(const core::LaneHomes& homes) {
  homes_ = homes;
  scratch_.resize(std::max<size_t>(scratch_.size(), homes.groups()),
                  std::vector<TokenId>(options_.scratch_tokens, -1));
}

SimArenas SimNodes::Arenas() const {
  SimArenas arenas;
  for (size_t node = 0; node < slots_.size(); ++node) {
    if (const uint64_t arena = MemoryOf(options_.memory_nodes[node]); arena != 0) {
      arenas[arena] = {.slots = slots_[node], .tails = tails_[node]};
    }
  }
  return arenas;
}

void SimNodes::Fail(const std::string& what) {
  if (failure_.empty()) {
    failure_ = absl::StrCat("nodes: ", what);
  }
}

// A sequence may change lanes when no step with a row of it is under way.
SimNodes::Entry* SimNodes::Find(const plan::StepPlan& plan, plan::SequenceId id) {
  const auto it = table_.find(id);
  const bool there = it != table_.end();
  if (!there ||
      (it->second.lane != plan.lane && (!it->second.prefilled || it->second.row_under_way))) {
    Fail(absl::StrCat("sequence ", id, " is not in the tables of lane ", plan.lane));
    return nullptr;
  }
  it->second.lane = plan.lane;
  return &it->second;
}

void SimNodes::Start(const plan::StepPlan& plan) {
  StartLane(plan);
  for (const auto& [spill] : plan.spill_drops) {
    tier_.Drop(spill);
  }
  for (const plan::SpillOut& spill : plan.spills_out) {
    SpillOut(plan, spill);
  }
  for (const auto& [id] : plan.leaves) {
    Leave(plan, id);
  }
  for (const plan::SlotRelease& release : plan.releases) {
    Release(plan, release);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    Join(plan, join);
  }
  for (const plan::SlotAllocation& allocation : plan.allocations) {
    Allocate(plan, allocation);
  }
  for (const plan::SpillIn& spill : plan.spills_in) {
    SpillIn(plan, spill);
  }
  CheckAllocationsOfJoins(plan);
  CheckWorkOfJoins(plan);
  CheckRoles(plan);
  CheckPaths(plan);
  CheckRows(plan);
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    StartChunk(plan, chunk);
  }
}

void SimNodes::StartLane(const plan::StepPlan& plan) {
  if (plan.epoch != epoch_ || plan.lane >= step_started_.size() ||
      plan.step != step_started_[plan.lane] + 1) {
    return Fail(absl::StrCat("lane ", plan.lane, " step ", plan.step, " is out of order"));
  }
  step_started_[plan.lane] = plan.step;
  size_t tokens = plan.rows.size();
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    tokens += chunk.tokens;
  }
  if (tokens > options_.step_tokens_max ||
      plan.rows.size() > options_.rows_max + options_.prompt_rows_max) {
    Fail("the step is over its budget");
  }
  if (tokens == 0 && plan.leaves.empty() && plan.releases.empty() && plan.spills_in.empty() &&
      plan.spill_drops.empty()) {
    Fail("the step is empty");
  }
}

// Prefill nodes have no rows, and where there are some the others have no chunks.
void SimNodes::CheckRoles(const plan::StepPlan& plan) {
  if (options_.prefill_lanes.count() == 0) {
    return;
  }
  const bool prefill = plan.lane >= options_.lanes;
  if (prefill ? !plan.rows.empty() : !plan.chunks.empty()) {
    Fail(absl::StrCat("lane ", plan.lane, " has what is not for its nodes"));
  }
}

void SimNodes::Leave(const plan::StepPlan& plan, plan::SequenceId id) {
  Entry* entry = Find(plan, id);
  if (entry == nullptr) {
    return;
  }
  for (size_t i = entry->released; i < entry->slots.size(); ++i) {
    std::erase(SlotOf(*entry, i).owners, id);
  }
  for (uint32_t node = 0; entry->tail != nullptr && node < tails_.size(); ++node) {
    if (node == entry->join.memory_node || !entry->tails.empty()) {
      tails_[node].owners.Leave(id);
    }
  }
  left_places_.push_back({.lane = plan.lane, .step = plan.step, .places = entry->join.resident});
  table_.erase(id);
}

uint32_t SimNodes::FirstSeen(uint32_t position) const {
  const uint32_t window = options_.windows.longest();
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

// Who reads a token later that has no slot any more is found out then.
void SimNodes::Release(const plan::StepPlan& plan, const plan::SlotRelease& release) {
  Entry* entry = Find(plan, release.sequence);
  if (entry == nullptr) {
    return;
  }
  if (release.tokens <= entry->released || release.tokens > entry->slots.size() ||
      release.tokens % options_.release_tokens != 0) {
    return Fail(absl::StrCat("sequence ", release.sequence, " releases ", release.tokens, " of ",
                             entry->slots.size(), " tokens, ", entry->released, " before"));
  }
  for (; entry->released < release.tokens; ++entry->released) {
    std::erase(SlotOf(*entry, entry->released).owners, release.sequence);
    entry->slots[entry->released] = kNoSlot;
  }
}

void SimNodes::Join(const plan::StepPlan& plan, const plan::SequenceJoin& join) {
  if (join.tokens.empty() || join.prompt_tokens > join.tokens.size() ||
      join.memory_node >= slots_.size() || (!join.score && join.tokens.size() >= join.tokens_max)) {
    return Fail(absl::StrCat("the join of sequence ", join.id, " makes no sense"));
  }
  if (join.parent != 0) {
    const Entry* parent = Find(plan, join.parent);
    if (parent == nullptr || parent->join.tokens != join.tokens || parent->chunk_started > 0 ||
        (options_.span_tokens == 0 && parent->join.memory_node != join.memory_node)) {
      return Fail(absl::StrCat("sequence ", join.id, " cannot be a fork of ", join.parent));
    }
  }
  const plan::ResidentTokens& places = join.resident;
  if (places.place + places.tokens > options_.resident_tokens) {
    return Fail(absl::StrCat("sequence ", join.id, " leaves the places for activations"));
  }
  if (places.tokens > 0 && (join.path != options_.resident_path || join.parent != 0)) {
    return Fail(absl::StrCat("sequence ", join.id, " has places, and stores no activations there"));
  }
  for (const auto& [id, other] : table_) {
    if (Overlap(places, other.join.resident)) {
      return Fail(absl::StrCat("sequences ", join.id, " and ", id, " share places"));
    }
  }
  for (const LeftPlaces& left : left_places_) {
    if (left.lane != plan.lane && Overlap(places, left.places)) {
      return Fail(absl::StrCat("sequence ", join.id, " has places that lane ", left.lane,
                               " gives up in step ", left.step));
    }
  }
  const auto [joined, fresh] =
      table_.emplace(join.id, Entry{.join = join, .lane = plan.lane, .tokens = join.tokens});
  if (!fresh) {
    return Fail(
        absl::StrCat("sequence ", join.id, " joins while another life of it is in the tables"));
  }
  CheckForm(joined->second);
}

void SimNodes::Allocate(const plan::StepPlan& plan, const plan::SlotAllocation& allocation) {
  Entry* entry = Find(plan, allocation.sequence);
  if (entry == nullptr) {
    return;
  }
  const uint32_t node = NodeOf(*entry, allocation);
  if (!failure_.empty()) {
    return;
  }
  std::vector<Slot>& slots = slots_[node];
  const Entry* parent = entry->join.parent == 0 || !table_.contains(entry->join.parent)
                            ? nullptr
                            : &table_.at(entry->join.parent);
  for (uint32_t i = 0; i < allocation.extent.tokens; ++i) {
    const uint32_t slot = allocation.extent.first_slot + i;
    const size_t index = entry->slots.size();
    if (slot >= slots.size()) {
      return Fail(absl::StrCat("slot ", slot, " does not exist"));
    }
    const bool prefix = entry->join.parent != 0 && index < entry->join.tokens.size();
    const bool shared =
        prefix && parent != nullptr && index < parent->slots.size() && parent->slots[index] == slot;
    // What others have stored of the same tokens.
    const bool kept = index < entry->join.tokens.size() &&
                      slots[slot].history == HistoryOf(entry->join.tokens, index + 1);
    const bool own_move = ahead_slots_.erase(std::pair(allocation.sequence, slot)) > 0;
    const bool taken = !slots[slot].owners.empty() || (slots[slot].moves > 0 && !own_move);
    if (prefix != shared || (!shared && !kept && taken)) {
      return Fail(absl::StrCat("slot ", slot, " of node ", node, " is given to sequence ",
                               allocation.sequence, " while another one holds it"));
    }
    const size_t block = options_.int8_block_tokens;
    const size_t block_end = (index / block + 1) * block;
    if (options_.FormOf(entry->join.path) == KvForm::kInt8 && !slots[slot].owners.empty() &&
        block_end > entry->join.tokens.size()) {
      return Fail(absl::StrCat("slot ", slot, " of an open block is given to sequence ",
                               allocation.sequence, " while another one holds it"));
    }
    slots[slot].owners.push_back(allocation.sequence);
    entry->slots.push_back(slot);
    entry->nodes.push_back(node);
  }
}

void SimNodes::CheckAllocationsOfJoins(const plan::StepPlan& plan) {
  for (const plan::SequenceJoin& join : plan.joins) {
    const auto it = table_.find(join.id);
    const size_t tokens = join.tokens.size();
    const size_t least = options_.windows.longest() > 0 ? std::min<size_t>(tokens, 1) : tokens;
    if (it != table_.end() &&
        (it->second.slots.size() < least || it->second.slots.size() > tokens)) {
      Fail(absl::StrCat("sequence ", join.id, " joins with ", it->second.slots.size(),
                        " slots for ", join.tokens.size(), " tokens"));
    }
  }
}

// Who joins has work in the same step, if only its parent's.
void SimNodes::CheckWorkOfJoins(const plan::StepPlan& plan) {
  for (const plan::SequenceJoin& join : plan.joins) {
    const auto is_its = [id = join.id](const auto& work) { return work.sequence == id; };
    if (join.parent == 0 && std::none_of(plan.rows.begin(), plan.rows.end(), is_its) &&
        std::none_of(plan.chunks.begin(), plan.chunks.end(), is_its) &&
        std::none_of(plan.spills_in.begin(), plan.spills_in.end(), is_its)) {
      Fail(absl::StrCat("sequence ", join.id, " joins without a row or a chunk"));
    }
  }
}

void SimNodes::CheckRows(const plan::StepPlan& plan) {
  // Nodes have as many signal values as the last chunk of a unit leaves room for.
  if (plan.chunking.chunks == 0 || plan.chunking.chunks > plan::kSubBatchesMax ||
      (plan.rows.empty() && plan.chunking != plan::Chunking())) {
    return Fail(absl::StrCat("rows go in ", plan.chunking.chunks, " chunks"));
  }
  std::map<plan::SequenceId, uint32_t> seen;  // Its last position.
  uint32_t last_node = 0;
  for (const plan::DecodeRow& row : plan.rows) {
    Entry* entry = Find(plan, row.sequence);
    if (entry == nullptr) {
      return;
    }
    const auto [last, first] = seen.emplace(row.sequence, row.position);
    // Where sequences are cut, their rows go to several nodes.
    const uint32_t node = options_.span_tokens == 0 ? entry->join.memory_node : 0;
    if ((!first && (entry->prefilled || row.position != ++last->second)) || node < last_node) {
      return Fail("rows are doubled, or not sorted by memory node");
    }
    last_node = node;
    StartRow(*entry, row);
  }
  if (seen.size() > options_.rows_max) {
    Fail("the step has rows of more sequences than a lane has");
  }
}

void SimNodes::StartRow(Entry& entry, const plan::DecodeRow& row) {
  entry.row_under_way = true;
  if (entry.prefilled) {
    if (entry.slots.size() != row.position + size_t{1}) {
      Fail(
          absl::StrCat("the row of sequence ", row.sequence, " at ", row.position, " has no slot"));
    }
    return;
  }
  if (row.position >= entry.slots.size()) {
    return Fail(
        absl::StrCat("the row of sequence ", row.sequence, " at ", row.position, " has no slot"));
  }
  // The first row of its prompt may be anywhere: what is before it, it reads. Cut, any may leave
  // out what is there, and a prompt's scratch ends with what is missing at its beginning.
  const bool cut = options_.span_tokens > 0;
  entry.has_scratch &= !cut;
  if (row.position >= entry.join.tokens.size() || entry.join.parent != 0 || entry.has_scratch ||
      (entry.chunk_started > 0 &&
       (cut ? row.position < entry.chunk_started : row.position != entry.chunk_started))) {
    Fail(absl::StrCat("the row of sequence ", row.sequence, " at ", row.position,
                      " does not continue the one before"));
  }
  // Tokens [chunk_started, position) are left out.
  if (const plan::ResidentTokens& resident = entry.join.resident;
      resident.tokens > 0 && std::max(resident.first, entry.chunk_started) <
                                 std::min(resident.first + resident.tokens, row.position)) {
    Fail(absl::StrCat("sequence ", row.sequence, " computes tokens from ", row.position,
                      " on, and activations of ", resident.tokens, " from ", resident.first,
                      " on are said to stay"));
  }
  entry.chunk_started = row.position + 1;
}

void SimNodes::StartChunk(const plan::StepPlan& plan, const plan::PrefillChunk& chunk) {
  Entry* entry = Find(plan, chunk.sequence);
  if (entry == nullptr) {
    return;
  }
  const uint32_t end = chunk.first_token + chunk.tokens;
  if (chunk.tokens == 0 || chunk.tokens > options_.chunk_tokens || entry->join.parent != 0 ||
      chunk.first_token != entry->chunk_started || end > entry->slots.size() ||
      chunk.last != (end == entry->join.tokens.size())) {
    return Fail(absl::StrCat("the chunk of sequence ", chunk.sequence, " at ", chunk.first_token,
                             " does not continue the one before"));
  }
  entry->chunk_started = end;
  if (chunk.first_token == 0) {
    ClaimScratch(*entry, chunk);
  } else if (!entry->has_scratch || entry->scratch_offset != chunk.scratch_offset) {
    Fail(absl::StrCat("sequence ", chunk.sequence, " moved in the scratch"));
  }
}

void SimNodes::ClaimScratch(Entry& entry, const plan::PrefillChunk& chunk) {
  const size_t begin = chunk.scratch_offset;
  const size_t end = begin + ScratchTokensOf(entry);
  for (const auto& [id, other] : table_) {
    if (options_.span_tokens == 0 && other.has_scratch &&
        &ScratchOf(other.lane) == &ScratchOf(entry.lane) && other.scratch_offset < end &&
        begin < other.scratch_offset + ScratchTokensOf(other)) {
      return Fail(absl::StrCat("sequences ", chunk.sequence, " and ", id, " share scratch"));
    }
  }
  if (options_.span_tokens == 0 && end > ScratchOf(entry.lane).size()) {
    return Fail(absl::StrCat("sequence ", chunk.sequence, " leaves the scratch"));
  }
  entry.has_scratch = true;
  entry.scratch_offset = chunk.scratch_offset;
}

}  // namespace lamina::sim
