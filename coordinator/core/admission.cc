// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/admission.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/check.h"
#include "cost/spill_cost.h"

namespace lamina::core {
namespace {

// How many of its first tokens a sequence stores bare.
uint32_t BareOf(const Sequence& sequence) {
  return sequence.path == plan::AttentionPath::kRecompute ? 0 : SequenceKv::kAllBare;
}

// Whether another sequence is making K and V of most of what this one would compute.
bool IsWorthWaiting(const PrefixCache::Found& found, const Sequence& sequence) {
  return 2 * uint64_t{found.pending} > sequence.tokens() - found.tokens;
}

}  // namespace

Admission::Admission(const SchedulerOptions& options, SequenceLife& life,
                     const SequenceLife::Places& places, const LaneBalance& balance,
                     StepMaker& maker, Placement& placement)
    : options_(options),
      life_(life),
      places_(places),
      balance_(balance),
      maker_(maker),
      placement_(placement),
      nodes_(options, life, places, placement) {}

void Admission::Admit(OpenSteps& open) {
  if (!survivors_known_) {
    FindSurvivors();
  }
  if (AdmitSurvivors(open)) {
    return;
  }
  // Who waits for tokens that another sequence computes, or for other lanes than those of prompts,
  // lets others pass.
  std::vector<const Sequence*> passed;
  while (Sequence* const next = FirstOfQueue(passed)) {
    const Outcome outcome = TryJoin(*next, /*found_min=*/0, open);
    if (outcome == Outcome::kWaitsForMaker || outcome == Outcome::kWaitsForRows) {
      passed.push_back(next);
    } else if (outcome != Outcome::kJoined) {
      return;
    }
  }
}

Sequence* Admission::FirstOfQueue(const std::vector<const Sequence*>& passed) const {
  constexpr size_t kPassedMax = 16;  // Each is looked at again for every plan.
  if (passed.size() > kPassedMax) {
    return nullptr;
  }
  for (Sequence* const sequence : life_.waiting()) {
    if (!absl::c_linear_search(passed, sequence)) {
      return sequence;
    }
  }
  return nullptr;
}

void Admission::FindSurvivors() {
  survivors_known_ = true;
  survivors_.clear();
  catching_up_.clear();
  std::deque<plan::SequenceId> with_rows;
  for (const Sequence* sequence : life_.waiting()) {
    if (sequence->committed.empty()) {
      continue;
    }
    uint64_t found = 0;  // On all nodes where it is cut, else on one.
    for (const PrefixCache::Found& there : nodes_.FoundOnNodes(*sequence)) {
      found =
          options_.span_tokens > 0 ? found + there.tokens : std::max<uint64_t>(found, there.tokens);
    }
    if (found > 0 && sequence->tokens() <= found + MissingOfSurvivor(*sequence)) {
      // Who has no tail may take anybody's.
      const bool has_all = sequence->tokens() == found + 1 &&
                           (!HasInt8(*sequence) || places_.tails.Has(sequence->request.id));
      (has_all ? survivors_ : with_rows).push_back(sequence->request.id);
    }
  }
  survivors_now_ = survivors_.size();
  survivors_.insert(survivors_.end(), with_rows.begin(), with_rows.end());
}

// It finds whole blocks of the cache, and its last token was never an input.
uint32_t Admission::MissingOfSurvivor(const Sequence& sequence) const {
  return HasInt8(sequence) ? options_.int8_block_tokens : options_.cached_block_tokens;
}

// A survivor stays where its K and V are, however little there is to do elsewhere. Where it is cut
// its parts say where.
uint32_t Admission::FoundBySurvivor(const Sequence& sequence) const {
  const uint32_t tokens = sequence.tokens();
  return options_.span_tokens > 0 ? 0 : tokens - std::min(tokens, MissingOfSurvivor(sequence));
}

// Others may have taken the slots of its blocks since the epoch began.
bool Admission::IsStillSurvivor(const Sequence& sequence) const {
  const uint32_t least = FoundBySurvivor(sequence);
  return least == 0 || absl::c_any_of(nodes_.FoundOnNodes(sequence),
                                      [least](const auto& found) { return found.tokens >= least; });
}

// The first of a path that has to wait does so for the others of that path, too.
void Admission::JoinSurvivors(OpenSteps& open) {
  std::vector<plan::AttentionPath> waiting;
  std::deque<plan::SequenceId> left;
  for (; survivors_now_ > 0; --survivors_now_) {
    const plan::SequenceId id = survivors_.front();
    survivors_.pop_front();
    Sequence* const next = life_.Find(id);
    if (next == nullptr || next->state != SequenceState::kWaiting) {
      continue;
    }
    const plan::AttentionPath path = life_.PathOf(next->request);
    if (absl::c_linear_search(waiting, path)) {
      left.push_back(id);
      continue;
    }
    const Outcome outcome =
        IsStillSurvivor(*next) ? TryJoin(*next, FoundBySurvivor(*next), open) : Outcome::kLacks;
    if (outcome == Outcome::kWaits || outcome == Outcome::kWaitsForRows) {
      waiting.push_back(path);
      left.push_back(id);
    } else if (outcome == Outcome::kJoined) {
      catching_up_.push_back(id);
    }
  }
  survivors_now_ = left.size();
  survivors_.insert(survivors_.begin(), left.begin(), left.end());
}

bool Admission::HasInt8(const Sequence& sequence) const {
  return options_.FormOf(life_.PathOf(sequence.request)) == KvForm::kInt8;
}

// In steps of their own, and before any prompt of others, so that what they compute is there
// soonest: the steps of lanes take turns, and one with a prompt is many times as long. So is one
// with the rows of an open block, which therefore waits for the tokens of the others, too.
bool Admission::AdmitSurvivors(OpenSteps& open) {
  std::erase_if(catching_up_, [this](plan::SequenceId id) {
    const Sequence* const sequence = life_.Find(id);
    return sequence == nullptr || sequence->state != SequenceState::kPrefilling;
  });
  if (survivors_now_ == 0 && catching_up_.empty()) {
    survivors_now_ = survivors_.size();
  }
  JoinSurvivors(open);
  // Who waits for more than the next token of these, as for a lane of another path, keeps nobody
  // waiting: that may take as long as answers do.
  return !catching_up_.empty();
}

Admission::Outcome Admission::TryJoin(Sequence& first, uint32_t found_min, OpenSteps& open) {
  if (places_.lanes.running() >= options_.running_max ||
      !HasTail(options_, places_, life_.PathOf(first.request), first.request.id)) {
    return Outcome::kWaits;
  }
  if (!life_.draining().empty() && life_.Before(**life_.draining().begin(), first)) {
    return Outcome::kWaits;  // The other one waits again in a moment, in front of this one.
  }
  if (!places_.lanes.has_prefill()) {
    return TryJoinIn(NewcomerLanes::kDecode, first, found_min, open);
  }
  // Behind half of its tokens the others are rows, although there are nodes for prompts.
  const uint32_t most = std::max(found_min, first.tokens() - first.tokens() / 2);
  const auto finds_most = [most](const auto& found) { return found.tokens >= most; };
  if (first.spill == 0 && absl::c_any_of(nodes_.FoundOnNodes(first), finds_most)) {
    const Outcome outcome = TryJoinIn(NewcomerLanes::kDecode, first, most, open);
    if (outcome != Outcome::kLacks) {
      return outcome == Outcome::kWaits ? Outcome::kWaitsForRows : outcome;
    }
  }
  return TryJoinIn(NewcomerLanes::kPrefill, first, found_min, open);
}

Admission::Outcome Admission::TryJoinIn(NewcomerLanes lanes, Sequence& first, uint32_t found_min,
                                        OpenSteps& open) {
  const auto lane = PickLaneToJoin(lanes, open, first, found_min);
  if (!lane) {
    return Outcome::kWaits;
  }
  OpenStep& step = open.at(*lane);
  if (maker_.TokensForNewcomer(step) == 0) {
    return Outcome::kWaits;  // Prompts before it have taken this step; the next one is soon.
  }
  if (!maker_.TakesJoin(first.tokens(), step)) {
    return Outcome::kWaits;  // Those that join before it bring all that a plan may have.
  }
  if (first.spill != 0) {
    return Restore(first, *lane, step) ? Outcome::kJoined : Outcome::kLacks;
  }
  const std::vector<uint32_t> nodes = nodes_.Pick(first, *lane, found_min);
  if (nodes.empty()) {
    return Outcome::kLacks;
  }
  if (HasInt8(first) && !places_.tails.MayJoin(first, nodes[0])) {
    return Outcome::kWaits;  // Its tail is on another node, and one here is relied on.
  }
  PrefixCache::Found found = nodes_.FoundWherePicked(first, nodes[0]);
  if (found.away > 0 && !cost::ReadPays(places_.spills.RatesOf(nodes[0]), found.away)) {
    found.away = 0;
  }
  if (lanes == NewcomerLanes::kDecode) {
    nodes_.TakeOpenBlock(first, nodes[0], found);
  } else if (IsWorthWaiting(found, first)) {
    return Outcome::kWaitsForMaker;
  } else {
    found = {};
    places_.kept.Drop(first);
  }
  const uint32_t there = places_.kept.NextMissing(first, found.tokens + found.away) +
                         places_.tails.TokensBehind(first, nodes[0], found.tokens + found.away);
  if (there > 0 && found.away == 0 && !maker_.HasRoom(step)) {
    return Outcome::kWaits;  // Rows follow a found prefix, and those of this step are given away.
  }
  if (IsWorthWaiting(found, first)) {
    return Outcome::kWaitsForMaker;
  }
  if (!nodes_.MakeRoomFor(first, nodes, found, /*shares=*/lanes == NewcomerLanes::kDecode)) {
    return Outcome::kLacks;
  }
  if (there == 0) {  // Else the rest of its prompt is rows.
    first.scratch_tokens = std::min(places_.kept.EndOfMissing(first, 0), options_.scratch_tokens);
    if (first.request.decode_from > 0 && lanes == NewcomerLanes::kDecode) {
      first.scratch_tokens = std::min(first.scratch_tokens, first.request.decode_from);
    }
    const auto offset = places_.borders.TakeScratch(*lane, first.scratch_tokens);
    if (!offset) {
      return Outcome::kLacks;
    }
    first.scratch_offset = *offset;
    first.has_scratch = true;
  }
  Join(first, *lane, nodes, found, step);
  return Outcome::kJoined;
}

std::optional<uint32_t> Admission::PickLaneToJoin(NewcomerLanes which, OpenSteps& open,
                                                  const Sequence& sequence, uint32_t found_min) {
  const plan::AttentionPath path = life_.PathOf(sequence.request);
  const Lanes& lanes = places_.lanes;
  std::vector<LaneLoad> loads = balance_.LoadsFor(path);
  for (uint32_t i = 0; i < loads.size(); ++i) {
    const auto step = open.find(i);
    loads[i].open = step != open.end();
    loads[i].tokens_left = loads[i].open ? maker_.TokensForNewcomer(step->second) : 0;
    if (loads[i].open && step->second.path.value_or(path) != path) {
      loads[i].has_room = false;  // Those with work in the step have been taken out since.
    }
    if (which == NewcomerLanes::kPrefill) {
      loads[i].has_room = lanes.IsPrefill(i) && balance_.HasRoomForRow(i);
    }
  }
  if (lanes.homes().bound()) {
    KeepLanesWithHome(sequence, found_min, loads);
  }
  if (which == NewcomerLanes::kDecode) {
    AvoidLongPrompts(loads);
  }
  return placement_.LaneOfNewcomer(loads, which == NewcomerLanes::kPrefill);
}

// Steps that prompts take whole have no token for a newcomer until the last of these is done, which
// may be minutes.
void Admission::AvoidLongPrompts(std::vector<LaneLoad>& loads) const {
  const auto is_full = [&](uint32_t lane) {
    if (loads[lane].open) {
      return loads[lane].tokens_left == 0;
    }
    uint64_t left = loads[lane].rows;
    for (const Sequence* prompt : places_.lanes[lane].prefilling) {
      left += prompt->join_tokens - prompt->chunked_tokens;
    }
    return left >= options_.step_tokens_max;
  };
  std::vector<bool> full(loads.size());
  bool any_else = false;
  for (uint32_t lane = 0; lane < loads.size(); ++lane) {
    full[lane] = loads[lane].has_room && is_full(lane);
    any_else |= loads[lane].has_room && !full[lane];
  }
  for (uint32_t lane = 0; any_else && lane < loads.size(); ++lane) {
    loads[lane].has_room &= !full[lane];
  }
}

// A node is compared by the work of its lanes: their rows take dense arithmetic there, too.
void Admission::KeepLanesWithHome(const Sequence& sequence, uint32_t found_min,
                                  std::vector<LaneLoad>& lanes) {
  const LaneHomes& homes = places_.lanes.homes();
  const size_t nodes = options_.memory_nodes.size();
  std::vector<uint64_t> work(nodes);
  std::vector<bool> has_lane(nodes);
  for (uint32_t lane = 0; lane < lanes.size(); ++lane) {
    const uint32_t node = homes.GroupOf(lane);
    work[node] += WorkOf(lanes[lane]);
    has_lane[node] = has_lane[node] || lanes[lane].has_room;
  }
  const uint32_t joins = options_.SlotsAtOnce(sequence.tokens());
  std::vector<NodeLoad>& loads =
      nodes_.Loads(sequence, joins, found_min, work, std::vector<uint32_t>(nodes),
                   nodes_.FoundOnNodes(sequence));
  for (uint32_t node = 0; node < nodes; ++node) {
    loads[node].fits =
        has_lane[node] &&
        (sequence.spill == 0 ? loads[node].fits : places_.spills.NodesOf(sequence).front() == node);
  }
  const auto reads = static_cast<uint32_t>(options_.windows.SeenIn(0, joins, joins));
  const std::optional<uint32_t> picked = placement_.NodeOfNewcomer(loads, reads);
  const bool keeps = picked.has_value() && loads[*picked].kept_tokens > 0;
  for (uint32_t lane = 0; lane < lanes.size(); ++lane) {
    const uint32_t node = homes.GroupOf(lane);
    lanes[lane].has_room &= loads[node].fits && (!keeps || node == *picked);
  }
}

// One that is cut and has parts that are kept leaves the cache alone.
std::vector<HeldExtent> Admission::ShareSpan(Sequence& sequence, uint32_t lane, size_t span,
                                             uint32_t node, const PrefixCache::Found& found) {
  const bool cut = options_.span_tokens > 0;
  std::vector<HeldExtent> slots;
  if (!cut || places_.kept.PartsOf(sequence).empty()) {
    const bool shares = cut ? found.tokens > 0 : !places_.lanes.IsPrefill(lane);
    slots = span == 0 ? places_.cache.Join(sequence, node, shares)
                      : places_.cache.JoinNextSpan(sequence);
  }
  for (const HeldExtent& kept : places_.kept.JoinSpan(sequence)) {
    slots.push_back(kept);
  }
  return slots;
}

// The first tokens that it computes itself, as many as its share has room for; those that it found
// were another one's, whose activations are gone. Short ones take a whole share too, since what is
// free between smaller ones would have room for nobody. None of a part that is kept behind missing
// tokens, or behind that. None, while the places of those that have left other lanes are not free
// yet.
plan::ResidentTokens Admission::TakeResident(const Sequence& sequence) {
  const uint32_t first = sequence.chunked_tokens;
  uint32_t end = sequence.slots_max();
  if (options_.span_tokens > 0) {
    const uint32_t part = places_.kept.EndOfMissing(sequence, first);
    end = part < sequence.tokens() ? std::min(part, end) : end;
  }
  const uint32_t computed = end - std::min(end, first);
  const uint32_t tokens = std::min(options_.ResidentOfEach(), computed);
  if (tokens == 0 || sequence.path != options_.resident_path) {
    return {};
  }
  const std::optional<uint32_t> place =
      places_.borders.TakeResident(sequence.lane, options_.ResidentOfEach());
  return place.has_value() ? plan::ResidentTokens{.first = first, .tokens = tokens, .place = *place}
                           : plan::ResidentTokens();
}

void Admission::Join(Sequence& sequence, uint32_t lane, const std::vector<uint32_t>& nodes,
                     const PrefixCache::Found& found, OpenStep& open) {
  life_.Begin(sequence, lane, nodes.back());
  const plan::SequenceId id = sequence.request.id;
  SequenceKv& kv = places_.kv;
  kv.Open(id, BareOf(sequence));
  const uint32_t joins = options_.SlotsAtOnce(sequence.join_tokens);
  std::vector<HeldExtent> slots;
  for (size_t span = 0; span < nodes.size(); ++span) {
    kv.BeginSpan(id, nodes[span]);
    const std::vector<HeldExtent> shared = ShareSpan(sequence, lane, span, nodes[span], found);
    slots.insert(slots.end(), shared.begin(), shared.end());
    const uint32_t left = joins - std::min(joins, kv.TokensOf(id));
    const auto allocated = kv.Append(id, std::min(kv.RoomInSpan(id), left));
    LAMINA_CHECK(allocated.ok());
    slots.insert(slots.end(), allocated->begin(), allocated->end());
  }
  const std::vector<PrefixCache::Read> reads = places_.cache.ReadBack(sequence, found.away);
  sequence.chunked_tokens =
      places_.kept.NextMissing(sequence, sequence.cached_tokens) +
      places_.tails.TokensBehind(sequence, sequence.node, sequence.cached_tokens);
  if (options_.span_tokens == 0 && reads.empty()) {
    sequence.stored_tokens = sequence.chunked_tokens;
  }
  places_.cache.Announce(sequence);
  sequence.resident = TakeResident(sequence);
  maker_.AddJoin(sequence, slots, open);
  life_.Settle(sequence);
  if (options_.span_tokens > 0) {
    places_.kept.Stored(sequence, 0, sequence.cached_tokens);
  }
  for (const PrefixCache::Read& read : reads) {
    open.plan.spills_in.push_back(
        places_.spills.InBlocks(read.copy, sequence, read.first, read.skip, read.tokens));
  }
  if (!reads.empty()) {
    sequence.restoring = true;  // Its work comes when they have been read.
    return;
  }
  JoinForks(sequence, open);
  maker_.AddNewcomer(sequence, open);
}

// Its work comes when they have been read. Blocks of the cache that it could share are not looked
// for: what was spilled is all that it needs.
bool Admission::Restore(Sequence& sequence, uint32_t lane, OpenStep& open) {
  Spills& spills = places_.spills;
  if (!spills.IsStored(sequence)) {
    return false;
  }
  const std::vector<uint32_t> nodes = nodes_.PlaceSpilled(sequence, lane);
  if (nodes.empty()) {
    return false;
  }
  life_.Begin(sequence, lane, nodes.back());
  const plan::SequenceId id = sequence.request.id;
  SequenceKv& kv = places_.kv;
  kv.Open(id, BareOf(sequence));
  std::vector<HeldExtent> slots;
  for (const uint32_t node : nodes) {
    kv.BeginSpan(id, node);
    const uint32_t left = sequence.join_tokens - kv.TokensOf(id);
    const auto allocated = kv.Append(id, std::min(kv.RoomInSpan(id), left));
    LAMINA_CHECK(allocated.ok());
    slots.insert(slots.end(), allocated->begin(), allocated->end());
  }
  maker_.AddJoin(sequence, slots, open);
  life_.Settle(sequence);
  sequence.restoring = true;
  open.plan.spills_in.push_back(spills.In(sequence));
  sequence.cached_tokens = open.plan.spills_in.back().tokens;
  sequence.chunked_tokens = sequence.cached_tokens;
  return true;
}

bool Admission::MayJoinWith(const Sequence& fork, const Sequence& parent) const {
  const uint32_t slots_max = options_.span_tokens == 0 ? options_.memory_nodes[parent.node].slots
                                                       : options_.SlotsOfLongest(parent.path);
  return fork.state == SequenceState::kWaiting && !fork.request.score && fork.committed.empty() &&
         fork.request.prompt == parent.request.prompt &&
         life_.PathOf(fork.request) == parent.path &&
         options_.SlotsAtOnce(fork.slots_max()) <= slots_max &&
         places_.lanes.running() < options_.running_max && balance_.HasRoomForRow(parent.lane) &&
         nodes_.HasRoom(parent.node, 0);
}

// Forks submitted by now join with their parent, as far as there is room for their rows. Those left
// over are served in their turn, as ordinary sequences.
void Admission::JoinForks(Sequence& parent, OpenStep& open) {
  if (options_.FormOf(parent.path) == KvForm::kInt8) {
    return;  // They would share an open block. Each finds the prompt's closed ones.
  }
  const bool whole = places_.kv.TokensOf(parent.request.id) == parent.join_tokens;
  if (parent.request.score || !parent.committed.empty() || !whole) {
    return;
  }
  for (const plan::SequenceId id : parent.forks) {
    Sequence* fork = life_.Find(id);
    if (fork == nullptr || !MayJoinWith(*fork, parent) || !maker_.TakesJoin(fork->tokens(), open)) {
      continue;
    }
    places_.kept.Drop(*fork);  // It has all that its parent has.
    life_.Begin(*fork, parent.lane, parent.node);
    life_.Attach(parent, *fork);
    maker_.AddJoin(*fork, places_.kv.Fork(parent.request.id, id, parent.join_tokens), open);
    places_.cache.JoinFork(*fork, parent);
    life_.Settle(*fork);
  }
}

}  // namespace lamina::core
