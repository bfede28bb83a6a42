// SPDX-License-Identifier: Apache-2.0
//
// What a step is made of: decode rows first, then chunks of prompts already in prefill, then those
// of newcomers, within the step's token budget.
//
// Why rows that get no slot cannot wait for each other for ever: on every memory node, slots go to
// starving rows in service order before anybody else gets one (GrowByOne, NodeHasRoom), and as long
// as too few slots are in quarantine for all of them, the last sequence in service order gives up
// its own (Starve). So the first in service order always gets its slot, at the latest when it is
// alone; and Submit let it in only because it fits alone.

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "coordinator/core/scheduler_internal.h"

namespace lamina::core {

void Scheduler::Plan(std::vector<plan::StepPlan>& plans) {
  impl_->BalanceLanes();
  // Lanes in turn, one step each, so that newcomers find every lane at the same stage.
  for (bool planned = true; planned;) {
    std::map<uint32_t, OpenStep> open;
    for (uint32_t lane = 0; lane < impl_->lanes.size(); ++lane) {
      if (impl_->lanes[lane].in_flight.size() < impl_->options.plan_ahead) {
        open.emplace(lane, impl_->BeginStep(lane));
      }
    }
    impl_->Admit(open);
    planned = false;
    for (auto& [lane, step] : open) {
      if (impl_->FinishStep(lane, step)) {
        plans.push_back(std::move(step.plan));
        planned = true;
      }
    }
  }
}

// Plans what is running, and seals the leaves: who is taken out from here on leaves a step later.
OpenStep Scheduler::Impl::BeginStep(uint32_t lane_index) {
  Lane& lane = lanes[lane_index];
  OpenStep open;
  open.plan.epoch = epoch;
  open.plan.lane = lane_index;
  open.plan.step = lane.step_planned + 1;
  open.record.step = open.plan.step;
  open.tokens_left = options.step_tokens_max;
  if (!IsPrefillLane(lane_index)) {  // There who has no prompt left waits for room in another lane.
    PlanRows(lane, open);
  }
  PlanChunks(lane, open);
  StepBorder border = std::exchange(lane.border, {});
  border.scratch.insert(border.scratch.end(), open.record.border.scratch.begin(),
                        open.record.border.scratch.end());
  open.record.border = std::move(border);
  return open;
}

void Scheduler::Impl::PlanRows(Lane& lane, OpenStep& open) {
  // A copy: a row that starves may take out others of this lane. Sequences stay alive meanwhile.
  const std::vector<Sequence*> running = lane.running;
  for (Sequence* sequence : running) {
    const bool more = sequence->planned_tokens < sequence->request.tokens_max;
    const bool leaving = sequence->next_lane != sequence->lane;
    if (sequence->state != SequenceState::kDecoding || !more || leaving ||
        !GrowByOne(*sequence, open)) {
      continue;
    }
    open.plan.rows.push_back(
        {.sequence = sequence->request.id, .position = sequence->planned_tokens - 1});
    open.record.tokens.push_back(
        {.sequence = sequence->request.id, .position = sequence->planned_tokens});
    ++sequence->planned_tokens;
    sequence->last_step = open.plan.step;
    --open.tokens_left;
  }
  std::stable_sort(open.plan.rows.begin(), open.plan.rows.end(),
                   [this](const plan::DecodeRow& a, const plan::DecodeRow& b) {
                     return Find(a.sequence)->node < Find(b.sequence)->node;
                   });
}

// Grants the slot of the next row; false when the row has to sit out.
bool Scheduler::Impl::GrowByOne(Sequence& sequence, OpenStep& open) {
  const bool new_span = kv->RoomInSpan(sequence.request.id) == 0;
  if (new_span) {
    const uint32_t node = PickNextNode(sequence);
    if (node != sequence.node) {
      ClearStarving(sequence);
      sequence.node = node;
    }
  }
  const std::vector<Sequence*>& others = starving[sequence.node];
  const auto ahead = std::count_if(others.begin(), others.end(),
                                   [&](const Sequence* other) { return before(other, &sequence); });
  if (kv->directory().SlotsFree(sequence.node) <= static_cast<uint64_t>(ahead)) {
    Starve(sequence);
    return false;
  }
  ClearStarving(sequence);
  if (new_span) {
    kv->BeginSpan(sequence.request.id, sequence.node);
  }
  const auto granted = kv->Append(sequence.request.id, 1);
  LAMINA_CHECK(granted.ok());
  open.plan.grants.push_back(granted->front());
  Lane& lane = lanes[sequence.lane];
  ++lane.context_tokens[sequence.node];
  ++lane.context_tokens_all;
  return true;
}

void Scheduler::Impl::Starve(Sequence& sequence) {
  const uint32_t node = sequence.node;
  if (!sequence.starving) {
    sequence.starving = true;
    starving[node].push_back(&sequence);
  }
  // Free slots that older starving rows will take count as coming, like those in quarantine.
  const KvDirectory& slots = kv->directory();
  while (sequence.starving &&
         slots.SlotsFree(node) + slots.SlotsQuarantined(node) < starving[node].size()) {
    Sequence* last = nullptr;
    for (const Lane& lane : lanes) {
      for (Sequence* other : lane.running) {
        if (LivesOn(*other, node) && (last == nullptr || before(last, other))) {
          last = other;
        }
      }
    }
    Preempt(*last);
  }
}

void Scheduler::Impl::PlanChunks(Lane& lane, OpenStep& open) {
  for (Sequence* sequence : lane.running) {
    if (sequence->state == SequenceState::kPrefilling && sequence->parent == 0 &&
        sequence->chunked_tokens < sequence->join_tokens && open.tokens_left > 0) {
      PlanChunk(*sequence, open);
    }
  }
}

void Scheduler::Impl::PlanChunk(Sequence& sequence, OpenStep& open) {
  const uint32_t rest = sequence.join_tokens - sequence.chunked_tokens;
  const uint32_t tokens = std::min({rest, options.chunk_tokens, open.tokens_left});
  const plan::SequenceId id = sequence.request.id;
  const bool last = tokens == rest;
  open.plan.chunks.push_back({.sequence = id,
                              .first_token = sequence.chunked_tokens,
                              .tokens = tokens,
                              .scratch_offset = sequence.scratch_offset,
                              .last = last});
  sequence.chunked_tokens += tokens;
  open.tokens_left -= tokens;
  if (sequence.request.score) {
    open.record.scores.push_back({.sequence = id, .last = last});
  }
  if (!last) {
    return;
  }
  // The chunk's step is the last one to read the scratch.
  open.record.border.scratch.push_back(sequence.scratch_offset);
  sequence.has_scratch = false;
  if (sequence.request.score) {
    return;
  }
  open.record.tokens.push_back({.sequence = id, .position = sequence.join_tokens});
  sequence.planned_tokens = sequence.join_tokens + 1;
  for (const plan::SequenceId fork : sequence.attached) {
    open.record.tokens.push_back({.sequence = fork, .position = sequence.join_tokens});
    Find(fork)->planned_tokens = sequence.join_tokens + 1;
  }
}

void Scheduler::Impl::Admit(std::map<uint32_t, OpenStep>& open) {
  while (AdmitFirst(open)) {
  }
}

// Lets the first waiting sequence in, unless something is missing: strictly in service order, so
// that nobody waits for ever behind smaller ones.
bool Scheduler::Impl::AdmitFirst(std::map<uint32_t, OpenStep>& open) {
  if (waiting.empty() || Running() >= options.running_max) {
    return false;
  }
  Sequence& first = **waiting.begin();
  if (!draining.empty() && before(*draining.begin(), &first)) {
    return false;  // It waits again in a moment, in front of this one.
  }
  const auto lane = PickLaneToJoin(open);
  if (!lane) {
    return false;
  }
  const auto step = open.find(*lane);
  if (step->second.tokens_left == 0) {
    return false;  // Prompts before it have taken this step; the next one is soon.
  }
  const std::vector<uint32_t> nodes = PickNodesFor(first, ContextBeside(*lane));
  if (nodes.empty()) {
    return false;
  }
  const auto offset = ScratchOf(*lane).Take(first.tokens());
  if (!offset) {
    return false;
  }
  first.scratch_offset = *offset;
  first.has_scratch = true;
  Join(first, *lane, nodes, step->second);
  return true;
}

std::optional<uint32_t> Scheduler::Impl::PickLaneToJoin(
    const std::map<uint32_t, OpenStep>& open) const {
  if (options.prefill_lanes.count() == 0) {
    std::vector<LaneLoad> loads = LaneLoads();
    for (uint32_t i = 0; i < loads.size(); ++i) {
      loads[i].open = open.contains(i);
    }
    return PickLane(loads);
  }
  std::optional<uint32_t> best;
  uint32_t most_left = 0;
  for (const auto& [lane, step] : open) {
    if (IsPrefillLane(lane) && step.tokens_left > most_left && HasRoomForRow(lane)) {
      best = lane;
      most_left = step.tokens_left;
    }
  }
  return best;
}

bool Scheduler::Impl::HasRoomForRow(uint32_t lane) const {
  const LaneLoad load = LaneLoads()[lane];
  return IsPrefillLane(lane) ? load.rows < std::min(options.rows_max, options.step_tokens_max)
                             : load.has_room;
}

std::vector<uint64_t> Scheduler::Impl::ContextBeside(uint32_t lane) const {
  if (!IsPrefillLane(lane)) {
    return lanes[lane].context_tokens;
  }
  std::vector<uint64_t> all(options.memory_nodes.size());
  for (const Lane& each : lanes) {
    for (uint32_t node = 0; node < all.size(); ++node) {
      all[node] += each.context_tokens[node];
    }
  }
  return all;
}

uint32_t Scheduler::Impl::RowsOn(uint32_t node) const {
  size_t rows = 0;
  for (const Lane& lane : lanes) {
    rows += std::count_if(lane.running.begin(), lane.running.end(),
                          [&](const Sequence* sequence) { return LivesOn(*sequence, node); });
  }
  return static_cast<uint32_t>(rows);
}

// Room for the tokens, the next one, and a few for everybody who is already there: without these a
// newcomer would be preempted, and recomputed, within a few steps.
bool Scheduler::Impl::NodeHasRoom(uint32_t node, uint32_t tokens) const {
  if (!starving[node].empty()) {
    return false;
  }
  const uint64_t headroom = uint64_t{options.admission_headroom} * RowsOn(node);
  const uint64_t needed =
      std::min<uint64_t>(tokens + 1 + headroom, options.memory_nodes[node].slots);
  return kv->directory().SlotsFree(node) >= needed;
}

// Span by span. What this sequence takes on a node counts for its next span: a node holds so many
// whole spans of one sequence as fit beside each other, so that the sequence can grow to its end
// when it is alone.
std::vector<uint32_t> Scheduler::Impl::PickNodesFor(
    const Sequence& sequence, const std::vector<uint64_t>& context_tokens) const {
  const uint32_t span_max = options.span_tokens == 0 ? sequence.slots_max() : options.span_tokens;
  std::vector<uint32_t> taken(options.memory_nodes.size());
  std::vector<uint32_t> nodes;
  for (uint32_t left = sequence.tokens(); left > 0;) {
    const uint32_t tokens = options.span_tokens == 0 ? left : std::min(left, options.span_tokens);
    std::vector<NodeLoad> loads;
    for (uint32_t node = 0; node < taken.size(); ++node) {
      const MemoryNodeShare& share = options.memory_nodes[node];
      loads.push_back({.lane_context_tokens = context_tokens[node] + taken[node],
                       .bandwidth = share.bandwidth_bytes_per_second,
                       .fits = taken[node] + uint64_t{span_max} <= share.slots &&
                               NodeHasRoom(node, taken[node] + tokens)});
    }
    const auto picked = PickMemoryNode(loads, tokens);
    if (!picked) {
      return {};
    }
    nodes.push_back(*picked);
    taken[*picked] += tokens;
    left -= tokens;
  }
  return nodes;
}

// Submit() let the sequence in only if all its spans fit beside each other, so there is a node that
// they leave room on. If others fill it, that is the one where room is made.
uint32_t Scheduler::Impl::PickNextNode(const Sequence& sequence) const {
  const Lane& lane = lanes[sequence.lane];
  std::vector<NodeLoad> loads;
  uint32_t roomiest = 0;
  uint64_t room_most = 0;
  for (uint32_t node = 0; node < options.memory_nodes.size(); ++node) {
    const MemoryNodeShare& share = options.memory_nodes[node];
    const uint64_t room = share.slots - kv->TokensOn(sequence.request.id, node);
    loads.push_back({.lane_context_tokens = lane.context_tokens[node],
                     .bandwidth = share.bandwidth_bytes_per_second,
                     .fits = room >= options.span_tokens && starving[node].empty() &&
                             kv->directory().SlotsFree(node) > 0});
    if (room > room_most) {
      roomiest = node;
      room_most = room;
    }
  }
  return PickMemoryNode(loads, options.span_tokens).value_or(roomiest);
}

namespace {

void Enter(Sequence& sequence, uint32_t lane, uint32_t node) {
  sequence.state = SequenceState::kPrefilling;
  sequence.lane = lane;
  sequence.next_lane = lane;
  sequence.last_step = 0;
  sequence.node = node;
  sequence.join_tokens = sequence.tokens();
  sequence.planned_tokens = sequence.join_tokens;
  sequence.logprobs.clear();
  sequence.ranks.clear();
}

void AppendJoin(const Sequence& sequence, const std::vector<plan::SlotGrant>& slots,
                plan::StepPlan& plan) {
  const SequenceRequest& request = sequence.request;
  plan::SequenceJoin join{.id = request.id,
                          .tokens = request.prompt,
                          .prompt_tokens = static_cast<uint32_t>(request.prompt.size()),
                          .parent = sequence.parent,
                          .sampling = request.sampling,
                          .tokens_max = request.tokens_max,
                          .end_tokens = request.end_tokens,
                          .tokens_min = request.tokens_min,
                          .memory_node = sequence.node,
                          .score = request.score};
  join.tokens.insert(join.tokens.end(), sequence.committed.begin(), sequence.committed.end());
  plan.joins.push_back(std::move(join));
  plan.grants.insert(plan.grants.end(), slots.begin(), slots.end());
}

}  // namespace

void Scheduler::Impl::Join(Sequence& sequence, uint32_t lane, const std::vector<uint32_t>& nodes,
                           OpenStep& open) {
  waiting.erase(&sequence);
  Enter(sequence, lane, nodes.back());
  sequence.chunked_tokens = 0;
  const plan::SequenceId id = sequence.request.id;
  kv->Open(id);
  std::vector<plan::SlotGrant> slots;
  for (const uint32_t node : nodes) {
    kv->BeginSpan(id, node);
    const auto granted =
        kv->Append(id, std::min(kv->RoomInSpan(id), sequence.join_tokens - kv->TokensOf(id)));
    LAMINA_CHECK(granted.ok());
    slots.insert(slots.end(), granted->begin(), granted->end());
  }
  AppendJoin(sequence, slots, open.plan);
  AddToLane(sequence);
  JoinForks(sequence, open);
  PlanChunk(sequence, open);
}

// Forks submitted by now join with their parent, as far as there is room for their rows. Those left
// over are served in their turn, as ordinary sequences.
void Scheduler::Impl::JoinForks(Sequence& parent, OpenStep& open) {
  if (parent.request.score || !parent.committed.empty()) {
    return;
  }
  for (const plan::SequenceId id : parent.forks) {
    Sequence* fork = Find(id);
    if (fork == nullptr || fork->state != SequenceState::kWaiting || fork->request.score ||
        !fork->committed.empty() || fork->request.prompt != parent.request.prompt ||
        fork->slots_max() > (options.span_tokens == 0 ? options.memory_nodes[parent.node].slots
                                                      : TokensOfLongest()) ||
        Running() >= options.running_max || !HasRoomForRow(parent.lane) ||
        !NodeHasRoom(parent.node, 0)) {
      continue;
    }
    waiting.erase(fork);
    Enter(*fork, parent.lane, parent.node);
    fork->chunked_tokens = fork->join_tokens;  // None of its own.
    fork->parent = parent.request.id;
    parent.attached.push_back(id);
    AppendJoin(*fork, kv->Fork(parent.request.id, id, parent.join_tokens), open.plan);
    AddToLane(*fork);
  }
}

void Scheduler::Impl::AddToLane(Sequence& sequence) {
  Lane& lane = lanes[sequence.lane];
  lane.running.insert(std::upper_bound(lane.running.begin(), lane.running.end(), &sequence, before),
                      &sequence);
  AddContext(sequence, lane);
}

// Counts the step as planned, unless it is empty.
bool Scheduler::Impl::FinishStep(uint32_t lane_index, OpenStep& open) {
  plan::StepPlan& plan = open.plan;
  plan.leaves = open.record.border.leaves;
  if (plan.leaves.empty() && plan.rows.empty() && plan.chunks.empty()) {
    return false;
  }
  Lane& lane = lanes[lane_index];
  if (!plan.rows.empty()) {
    counters.row_chunks = RowChunksFor(lane, plan);
    plan.chunking = counters.row_chunks.cut;
  }
  lane.step_planned = plan.step;
  lane.in_flight.push_back(std::move(open.record));
  return true;
}

RowChunkCount Scheduler::Impl::RowChunksFor(const Lane& lane, const plan::StepPlan& plan) {
  cost::LinkCosts link = link_costs;
  link.measured = link.measured && lane_costs.measured;
  const auto rows = static_cast<uint32_t>(plan.rows.size());
  const double context = static_cast<double>(lane.context_tokens_all);
  std::vector<uint32_t> of_node(options.memory_nodes.size());
  for (const plan::DecodeRow& row : plan.rows) {
    ++of_node[Find(row.sequence)->node];
  }
  // Spans of a row may lie on all.
  const uint32_t most =
      options.span_tokens > 0 ? rows : *std::max_element(of_node.begin(), of_node.end());
  return ChooseRowChunks(
      options.row_chunks, link,
      {.rows = rows,
       .rows_of_node = most,
       .attention_seconds = lane_costs.attention_fixed + lane_costs.attention_per_token * context,
       .slice_seconds = lane_costs.slice_fixed + lane_costs.slice_per_row * rows});
}

}  // namespace lamina::core
