// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/beam_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "coordinator/core/placement.h"

namespace lamina::core {
namespace {

// Members' ids begin here: those of requests count from 1.
constexpr plan::SequenceId kMemberIds = plan::SequenceId{1} << 62;
// Who gives up slots that no node uses by this name needs no step to be done.
constexpr uint64_t kReleaseTicket = UINT64_MAX - 1;
constexpr uint32_t kCandidatesMax = 20;  // SamplingParams::logprobs.

SlotHolder HolderOf(plan::SequenceId member) { return {HolderKind::kBeam, member}; }

template <typename Members>
auto Find(Members& members, plan::SequenceId id) {
  return std::find_if(members.begin(), members.end(),
                      [id](const auto& member) { return member.id == id; });
}

// Those that are to join a lane with its next step.
template <typename Members>
uint32_t CountReady(const Members& members) {
  uint32_t ready = 0;
  for (const auto& member : members) {
    ready += member.continues != 0 ? 1 : 0;
  }
  return ready;
}

}  // namespace

BeamGroups::BeamGroups(const SchedulerOptions& options, SequenceLife& life,
                       const SequenceLife::Places& places, const LanePaths& paths,
                       const LaneBalance& balance, StepMaker& maker)
    : options_(options),
      life_(life),
      places_(places),
      paths_(paths),
      balance_(balance),
      maker_(maker),
      ids_(kMemberIds) {}

absl::Status BeamGroups::Check(const SequenceRequest& request) const {
  LAMINA_RETURN_IF_ERROR(request.beams.Validate());
  if (BeamCandidates(request.beams, request.end_tokens.size()) > kCandidatesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a beam search with ", request.beams.width, " beams and ", request.end_tokens.size(),
        " end and stop tokens needs the ", BeamCandidates(request.beams, request.end_tokens.size()),
        " most likely tokens of a row, at most ", kCandidatesMax,
        " are reported; ask for fewer beams or stop tokens"));
  }
  return absl::OkStatus();
}

void BeamGroups::Begin(SequenceRequest request) {
  LAMINA_CHECK(!request.answers.empty() && request.answers[0] == request.id);
  const auto top = static_cast<uint32_t>(std::max(0, request.sampling.logprobs));
  BeamLimits limits{.prompt_tokens = static_cast<uint32_t>(request.prompt.size()),
                    .tokens_max = request.tokens_max,
                    .tokens_min = request.tokens_min,
                    .end_tokens = request.end_tokens,
                    .top = top};
  const plan::SequenceId id = request.id;
  request.sampling.logprobs =
      static_cast<int32_t>(BeamCandidates(request.beams, request.end_tokens.size()));
  auto made = std::make_unique<Group>(std::move(request), std::move(limits));
  Group& group = *made;
  groups_.emplace(id, std::move(made));
  group.answers = group.request.answers;
  for (const plan::SequenceId answer : group.answers) {
    LAMINA_CHECK(answers_.emplace(answer, &group).second);
  }
  group.arrival = life_.ReserveArrivals(group.request.beams.width);
  group.members.push_back({.id = id});
  members_.emplace(id, &group);
  Enter(group, 0);
}

plan::SequenceId BeamGroups::AnswerOf(plan::SequenceId sequence) const {
  const auto found = members_.find(sequence);
  return found == members_.end() ? 0 : found->second->request.id;
}

// The member waits in the queue.
Sequence& BeamGroups::Enter(Group& group, size_t index) {
  Member& member = group.members[index];
  member.continues = 0;
  SequenceRequest request = group.request;
  request.id = member.id;
  request.beams = {};
  request.is_beam = true;
  request.answers.clear();
  std::vector<TokenId> committed;
  for (const BeamSearch::BeamToken& token : group.search.beams()[index].tokens) {
    committed.push_back(token.token);
  }
  return life_.Enter(std::move(request), group.arrival + index, std::move(committed));
}

uint32_t BeamGroups::Report(Sequence& sequence, const plan::SampledToken& token, Events& events) {
  Group& group = *members_.at(sequence.request.id);
  Member& member = *Find(group.members, sequence.request.id);
  if (token.finish == plan::FinishReason::kError) {
    Fail(group,
         absl::InternalError(
             absl::StrCat("the compute node could not sample position ", token.position)),
         events);
    return 0;
  }
  if (sequence.committed.empty()) {
    group.cached_tokens = sequence.cached_at_first;
  }
  if (sequence.runs()) {
    group.lane = LaneBehind(sequence);
    places_.cache.Stored(sequence, sequence.join_tokens);
    const uint32_t shared = SharedOf(sequence);
    if (sequence.held->released == 0 && shared > 0) {
      places_.kv.Fork(member.id, HolderOf(member.id), shared);
      member.kept = true;
      member.node = sequence.node;
    }
  }
  member.reported = true;
  member.next = token.top;
  life_.End(sequence);
  const bool all = std::all_of(group.members.begin(), group.members.end(),
                               [](const Member& one) { return one.reported; });
  return all ? Continue(group, events) : 0;
}

uint32_t BeamGroups::Continue(Group& group, Events& events) {
  LAMINA_CHECK(group.before.empty());
  std::vector<std::vector<plan::TokenLogprob>> rows;
  for (Member& member : group.members) {
    rows.push_back(std::move(member.next));
  }
  const std::vector<uint32_t> parents = group.search.Advance(rows);
  if (group.search.beams().empty()) {
    return Tell(group, events);
  }
  for (const Member& member : group.members) {
    members_.erase(member.id);
  }
  group.before = std::exchange(group.members, {});
  for (const uint32_t parent : parents) {
    const Member& from = group.before[parent];
    group.members.push_back({.id = ++ids_, .continues = from.kept ? from.id : 0});
    members_.emplace(ids_, &group);
  }
  for (size_t i = 0; i < group.members.size(); ++i) {
    if (group.members[i].continues == 0) {
      Enter(group, i);
    }
  }
  ReleaseUnshared(group);
  return 0;
}

uint32_t BeamGroups::Tell(Group& group, Events& events) {
  const auto prompt = static_cast<uint32_t>(group.request.prompt.size());
  const std::vector<BeamSearch::Answer>& found = group.search.answers();
  uint32_t told = 0;
  for (size_t i = 0; i < group.answers.size(); ++i) {
    const plan::SequenceId id = group.answers[i];
    if (id == 0) {
      continue;
    }
    if (i >= found.size()) {
      events.finished.push_back(
          {.sequence = id,
           .reason = plan::FinishReason::kError,
           .status = absl::InternalError(absl::StrCat("the beam search found ", found.size(),
                                                      " answers: no other token is possible"))});
      continue;
    }
    const BeamSearch::Answer& answer = found[i];
    const auto tokens = static_cast<uint32_t>(answer.tokens.size());
    for (uint32_t index = 0; index < tokens; ++index) {
      const BeamSearch::BeamToken& token = answer.tokens[index];
      events.tokens.push_back(
          {.sequence = id,
           .index = index,
           .cached_tokens = group.cached_tokens,
           .token = {.sequence = id,
                     .position = prompt + index,
                     .token = token.token,
                     .logprob = token.logprob,
                     .top = token.top,
                     .finish = index + 1 == tokens ? answer.reason : plan::FinishReason::kNone}});
    }
    events.finished.push_back({.sequence = id, .reason = answer.reason});
    told += tokens;
  }
  Forget(group);
  return told;
}

void BeamGroups::Fail(Group& group, const absl::Status& status, Events& events) {
  for (const plan::SequenceId id : group.answers) {
    if (id != 0) {
      events.finished.push_back(
          {.sequence = id, .reason = plan::FinishReason::kError, .status = status});
    }
  }
  Forget(group);
}

void BeamGroups::Forget(Group& group) {
  for (Member& member : group.members) {
    if (Sequence* sequence = life_.Find(member.id); sequence != nullptr) {
      life_.End(*sequence);
    }
    Release(member);
    members_.erase(member.id);
  }
  for (Member& member : group.before) {
    Release(member);
  }
  for (const plan::SequenceId answer : group.answers) {
    answers_.erase(answer);
  }
  groups_.erase(group.request.id);
}

bool BeamGroups::Finish(plan::SequenceId answer) {
  const auto found = answers_.find(answer);
  if (found == answers_.end()) {
    return false;
  }
  Group& group = *found->second;
  answers_.erase(found);
  std::replace(group.answers.begin(), group.answers.end(), answer, plan::SequenceId{0});
  if (std::all_of(group.answers.begin(), group.answers.end(),
                  [](plan::SequenceId id) { return id == 0; })) {
    Forget(group);
  }
  return true;
}

void BeamGroups::Release(Member& member) {
  if (std::exchange(member.kept, false)) {
    places_.kv.Release(HolderOf(member.id), kReleaseTicket);
    places_.kv.Recycle(kReleaseTicket);
  }
}

// Slots that nobody who has not joined yet will share.
void BeamGroups::ReleaseUnshared(Group& group) {
  std::erase_if(group.before, [&](Member& from) {
    if (std::any_of(group.members.begin(), group.members.end(),
                    [&](const Member& member) { return member.continues == from.id; })) {
      return false;
    }
    Release(from);
    return true;
  });
}

// Members that are ready need none: they join, or wait in the queue, with the next step.
void BeamGroups::GiveWay() {
  for (auto& [id, group] : groups_) {
    QueueWithoutLane(*group);
    const bool waits =
        std::any_of(group->members.begin(), group->members.end(), [&](const Member& member) {
          const Sequence* sequence = life_.Find(member.id);
          return sequence != nullptr && (!sequence->runs() || sequence->starving);
        });
    for (Member& member : group->members) {
      if (waits && member.reported) {
        Release(member);
      }
    }
  }
}

// The group may wait for ever where newcomers of other paths keep the lanes: in the queue it has a
// place before them.
void BeamGroups::QueueWithoutLane(Group& group) {
  const plan::AttentionPath path = life_.PathOf(group.request);
  for (uint32_t lane = 0; lane < places_.lanes.size(); ++lane) {
    if (Takes(lane, path)) {
      return;
    }
  }
  for (size_t i = 0; i < group.members.size(); ++i) {
    if (group.members[i].continues != 0) {
      Enter(group, i);
    }
  }
  ReleaseUnshared(group);
}

// With INT8 whole blocks: the last one is open, in a tail of who computed it.
uint32_t BeamGroups::SharedOf(const Sequence& sequence) const {
  const uint32_t tokens = sequence.join_tokens;
  return options_.FormOf(sequence.path) == KvForm::kBF16
             ? tokens
             : tokens - tokens % options_.int8_block_tokens;
}

// Beams go on in the lane where they were, those of a prefill lane in the one with the least work.
// Beams that are to join a lane count there: else all searches whose prompts end together would go
// on in one.
uint32_t BeamGroups::LaneBehind(const Sequence& sequence) const {
  if (!places_.lanes.IsPrefill(sequence.lane)) {
    return sequence.lane;
  }
  std::vector<LaneLoad> loads = balance_.LoadsFor(sequence.path);
  for (const auto& [id, group] : groups_) {
    const uint32_t ready = CountReady(group->members);
    LaneLoad& load = loads[group->lane];
    load.rows += ready;
    load.context_tokens += ready * options_.windows.SeenOf(group->request.prompt.size());
  }
  return PickLane(loads).value_or(0);
}

// Prefill lanes have no rows.
bool BeamGroups::Takes(uint32_t lane, plan::AttentionPath path) const {
  return !places_.lanes.IsPrefill(lane) && paths_.Takes(lane, path);
}

// In the lane where the group was, or in another one if that has no room any more, or where lanes
// are bound to nodes is not of the node that has the slots.
bool BeamGroups::JoinsHere(const Group& group, size_t index, const OpenStep& open) const {
  const plan::AttentionPath path = life_.PathOf(group.request);
  const uint32_t node = Find(group.before, group.members[index].continues)->node;
  const LaneHomes& homes = places_.lanes.homes();
  const size_t tokens = group.request.prompt.size() + group.search.beams()[index].tokens.size();
  return homes.MayLive(open.plan.lane, node) && places_.lanes.running() < options_.running_max &&
         maker_.TakesJoin(tokens, open) && HasTail(options_, places_, path, /*id=*/0) &&
         maker_.HasRoom(open) && balance_.HasRoomForRow(open.plan.lane) &&
         Takes(open.plan.lane, path) &&
         (open.plan.lane == group.lane || !balance_.HasRoomForRow(group.lane) ||
          !Takes(group.lane, path) || !homes.MayLive(group.lane, node));
}

// Slots for the next tokens behind those of `from`, which no starving row waits for.
bool BeamGroups::HasSlotsBehind(const Member& from, uint32_t tokens) {
  const auto has_slot = [&](uint32_t node) {
    const uint64_t wanted = uint64_t{places_.residents.Starving(node)} + tokens;
    if (places_.kv.directory().SlotsFree(node) < wanted) {
      places_.MakeRoom(node, wanted);
    }
    return places_.kv.directory().SlotsFree(node) >= wanted;
  };
  if (places_.kv.RoomInSpan(HolderOf(from.id)) > 0) {
    return has_slot(from.node);
  }
  // The next span may go to any node.
  for (uint32_t node = 0; node < options_.memory_nodes.size(); ++node) {
    if (!has_slot(node)) {
      return false;
    }
  }
  return true;
}

void BeamGroups::JoinOne(Group& group, size_t index, OpenStep& open) {
  const Member& from = *Find(group.before, group.members[index].continues);
  const uint32_t shared = places_.kv.TokensOf(HolderOf(from.id));
  Sequence& sequence = Enter(group, index);
  const uint32_t own = sequence.tokens() - shared;
  if (!HasSlotsBehind(from, own)) {
    return;
  }
  life_.Begin(sequence, open.plan.lane, from.node);
  sequence.chunked_tokens = shared;
  const plan::SequenceId id = sequence.request.id;
  std::vector<HeldExtent> slots = places_.kv.Fork(HolderOf(from.id), id, shared);
  if (own > 1 && places_.kv.RoomInSpan(id) > 0) {  // What begins a span comes with its rows.
    const auto appended = places_.kv.Append(id, own);
    LAMINA_CHECK(appended.ok());
    slots.insert(slots.end(), appended->begin(), appended->end());
  }
  maker_.AddJoin(sequence, slots, open);
  places_.cache.Stored(sequence, shared);
  life_.Settle(sequence);
  maker_.AddContinued(sequence, open);
}

void BeamGroups::Join(OpenStep& open) {
  for (auto& [id, group] : groups_) {
    bool joined = false;
    for (size_t i = 0; i < group->members.size(); ++i) {
      if (group->members[i].continues != 0 && JoinsHere(*group, i, open)) {
        JoinOne(*group, i, open);
        joined = true;
      }
    }
    if (joined) {
      ReleaseUnshared(*group);
    }
  }
  GiveWay();  // Those that found no slots wait for them now, maybe for nothing else to happen.
}

void BeamGroups::LeaveEpoch() {
  for (auto& [id, group] : groups_) {
    for (size_t i = 0; i < group->members.size(); ++i) {
      group->members[i].kept = false;
      if (group->members[i].continues != 0) {
        Enter(*group, i);
      }
    }
    group->before.clear();
    group->lane = 0;
  }
}

void BeamGroups::FailAll(const absl::Status& status, Events& events) {
  while (!groups_.empty()) {
    Fail(*groups_.begin()->second, status, events);
  }
}

void BeamGroups::Translate(Events& events) {
  if (groups_.empty()) {
    return;
  }
  for (plan::SequenceId& id : events.preempted) {
    if (const auto found = members_.find(id); found != members_.end()) {
      const std::vector<plan::SequenceId>& answers = found->second->answers;
      id = *std::find_if(answers.begin(), answers.end(),
                         [](plan::SequenceId answer) { return answer != 0; });
    }
  }
  std::map<plan::SequenceId, absl::Status> failed;  // By the request's id.
  std::erase_if(events.finished, [&](const FinishEvent& event) {
    const plan::SequenceId answer = AnswerOf(event.sequence);
    if (answer != 0) {
      failed.emplace(answer, event.status);
    }
    return answer != 0;
  });
  for (const auto& [id, status] : failed) {
    Fail(*groups_.at(id), status, events);
  }
}

std::vector<plan::AttentionPath> BeamGroups::PathsBetweenSteps() const {
  std::vector<plan::AttentionPath> paths;
  for (const auto& [id, group] : groups_) {
    paths.insert(paths.end(), CountReady(group->members), life_.PathOf(group->request));
  }
  return paths;
}

uint32_t BeamGroups::holders() const {
  uint32_t holders = 0;
  for (const auto& [id, group] : groups_) {
    for (const std::vector<Member>* members : {&group->members, &group->before}) {
      holders += static_cast<uint32_t>(
          std::count_if(members->begin(), members->end(), [](const Member& m) { return m.kept; }));
    }
  }
  return holders;
}

absl::Status BeamGroups::Audit() const {
  size_t members = 0;
  for (const auto& [id, group] : groups_) {
    const auto broken = [&id = id](absl::string_view what) {
      return absl::InternalError(absl::StrCat("beam search ", id, ": ", what));
    };
    if (group->members.size() != group->search.beams().size()) {
      return broken("has more or fewer members than beams");
    }
    members += group->members.size();
    for (const Member& member : group->members) {
      const bool lives = life_.Find(member.id) != nullptr;
      const bool ready = member.continues != 0;
      if ((lives ? 1 : 0) + (ready ? 1 : 0) + (member.reported ? 1 : 0) != 1) {
        return broken("a member is in two places, or in none");
      }
      if (member.kept != places_.kv.IsOpen(HolderOf(member.id)) ||
          (member.kept && !member.reported)) {
        return broken("miscounts slots that it holds");
      }
      if (ready && !places_.kv.IsOpen(HolderOf(member.continues))) {
        return broken("a member is to share slots that nobody holds");
      }
    }
    for (const Member& from : group->before) {
      if (!from.kept || !places_.kv.IsOpen(HolderOf(from.id))) {
        return broken("miscounts slots that it holds for who joins next");
      }
    }
  }
  return members == members_.size() ? absl::OkStatus()
                                    : absl::InternalError("a beam is of no search");
}

}  // namespace lamina::core
