// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/sequence_life.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::core {
namespace {

FinishEvent ErrorEvent(plan::SequenceId id, absl::Status status) {
  return {.sequence = id, .reason = plan::FinishReason::kError, .status = std::move(status)};
}

}  // namespace

SequenceLife::SequenceLife(ServiceBefore before, const Places& places)
    : before_(before), places_(places), waiting_(before), draining_(before) {}

Sequence* SequenceLife::Find(plan::SequenceId id) {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

const Sequence* SequenceLife::Find(plan::SequenceId id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

uint64_t SequenceLife::ReserveArrivals(uint32_t count) {
  arrivals_ += count;
  return arrivals_ - count + 1;
}

Sequence& SequenceLife::Enter(SequenceRequest request, uint64_t arrival,
                              std::vector<TokenId> committed) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  const SequenceRequest& kept = sequence->request;
  LAMINA_CHECK(kept.id != 0 && Find(kept.id) == nullptr);
  sequence->arrival = arrival;
  sequence->committed = std::move(committed);
  if (Sequence* parent = Find(kept.fork_of); parent != nullptr) {
    parent->forks.push_back(kept.id);
  }
  const bool entered = waiting_.insert(sequence.get()).second;
  LAMINA_CHECK(entered);
  const plan::SequenceId id = kept.id;
  if (seats_free_.empty()) {
    seats_free_.push_back(static_cast<uint32_t>(seats_.size()));
    seats_.emplace_back();
  }
  sequence->seat = seats_free_.back();
  seats_free_.pop_back();
  seats_[sequence->seat] = {.id = id, .sequence = sequence.get()};
  return *sequences_.emplace(id, std::move(sequence)).first->second;
}

void SequenceLife::Forget(Sequence& sequence) {
  places_.spills.Drop(sequence);
  places_.kept.Drop(sequence);
  places_.tails.Drop(sequence);
  seats_[sequence.seat] = {};
  seats_free_.push_back(sequence.seat);
  sequences_.erase(sequence.request.id);
}

void SequenceLife::Begin(Sequence& sequence, uint32_t lane, uint32_t node) {
  LAMINA_CHECK(waiting_.erase(&sequence) == 1);
  sequence.state = SequenceState::kPrefilling;
  sequence.path = PathOf(sequence.request);
  sequence.lane = lane;
  sequence.next_lane = lane;
  sequence.last_step = 0;
  sequence.last_work = 0;
  sequence.node = node;
  sequence.join_tokens = sequence.tokens();
  sequence.chunked_tokens = 0;
  sequence.cached_tokens = 0;
  sequence.stored_tokens = 0;
  ++sequence.times_joined;
  sequence.planned_tokens = sequence.join_tokens;
  sequence.logprobs.clear();
  sequence.ranks.clear();
}

void SequenceLife::Settle(Sequence& sequence) {
  sequence.held = places_.kv.Get(sequence.request.id);
  sequence.slots = sequence.held->tokens;
  places_.lanes.Add(sequence, places_.kv);
  places_.residents.Add(sequence, places_.kv);
  places_.tails.Joined(sequence);
}

void SequenceLife::Attach(Sequence& parent, Sequence& fork) {
  fork.chunked_tokens = fork.join_tokens;  // None of its own.
  fork.parent = parent.request.id;
  parent.attached.push_back(fork.request.id);
}

std::vector<Sequence*> SequenceLife::Detach(Sequence& sequence) {
  if (Sequence* parent = Find(std::exchange(sequence.parent, 0)); parent != nullptr) {
    std::erase(parent->attached, sequence.request.id);
  }
  std::vector<Sequence*> forks;
  for (const plan::SequenceId id : std::exchange(sequence.attached, {})) {
    forks.push_back(Find(id));
    forks.back()->parent = 0;
  }
  return forks;
}

void SequenceLife::Decode(Sequence& sequence) {
  places_.lanes.Decode(sequence);
  places_.cache.Stored(sequence, sequence.join_tokens);
  places_.kept.Drop(sequence);
  places_.tails.Settled(sequence);
  Detach(sequence);
}

// It leaves what is stored of it to the cache.
void SequenceLife::Keep(Sequence& sequence) {
  if (sequence.runs() && sequence.spill == 0) {
    const bool decodes = sequence.state == SequenceState::kDecoding;
    const uint32_t inputs = sequence.tokens() - 1;  // The last one was never an input.
    places_.cache.Stored(sequence, decodes ? inputs : std::min(inputs, sequence.stored_tokens),
                         /*leaves=*/true);
  }
  places_.cache.Leave(sequence);
}

void SequenceLife::TakeOut(Sequence& sequence) {
  places_.lanes.Remove(sequence);
  places_.residents.Remove(sequence);
  if (std::exchange(sequence.restoring, false)) {
    places_.spills.Leave(sequence);
  }
  Keep(sequence);
  places_.kept.Drop(sequence);
  places_.tails.Settled(sequence);
  places_.borders.Leave(sequence);
  sequence.held = nullptr;
  const bool sampled = sequence.chunked_tokens == sequence.join_tokens;
  for (Sequence* fork : Detach(sequence)) {
    if (!sampled) {
      Preempt(*fork);
    }
  }
}

void SequenceLife::Preempt(Sequence& sequence) {
  TakeOut(sequence);
  sequence.state = SequenceState::kDraining;
  draining_.insert(&sequence);
  places_.borders.WaitAfter(sequence);
  preempted_.push_back(sequence.request.id);
  ++preemptions_;
}

// What the tier has nobody else finds: blocks of the cache that are nobody else's go with it.
void SequenceLife::Spill(Sequence& sequence) {
  const plan::SpillOut spill = places_.spills.Out(sequence);
  places_.cache.Forget(sequence);
  Preempt(sequence);
  places_.borders.Spill(sequence, spill);
}

void SequenceLife::WaitAgain(const std::vector<plan::SequenceId>& drained) {
  for (const plan::SequenceId id : drained) {
    Sequence* sequence = Find(id);
    if (sequence != nullptr) {  // Neither finished by a last result nor cancelled.
      draining_.erase(sequence);
      sequence->state = SequenceState::kWaiting;
      waiting_.insert(sequence);
    }
  }
}

void SequenceLife::End(Sequence& sequence) {
  switch (sequence.state) {
    case SequenceState::kWaiting:
      waiting_.erase(&sequence);
      break;
    case SequenceState::kPrefilling:
    case SequenceState::kDecoding:
      TakeOut(sequence);
      break;
    case SequenceState::kDraining:
      draining_.erase(&sequence);
      break;
  }
  Forget(sequence);
}

std::vector<Sequence*> SequenceLife::Running() const {
  std::vector<Sequence*> running;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->runs()) {
      running.push_back(sequence.get());
    }
  }
  return running;
}

// Everything that nodes know of or wait for, in service order.
std::vector<Sequence*> SequenceLife::TakenFromNodes() const {
  std::vector<Sequence*> taken = Running();
  taken.insert(taken.end(), draining_.begin(), draining_.end());
  std::sort(taken.begin(), taken.end(), before_);
  return taken;
}

void SequenceLife::LeaveEpoch(const std::string& lost, Events& events) {
  for (Sequence* sequence : waiting_) {
    sequence->spill = 0;  // Tiers are empty in the next one.
  }
  const std::vector<Sequence*> taken = TakenFromNodes();
  draining_.clear();
  // Blocks of the last in service order count as used first, and give way first.
  for (auto sequence = taken.rbegin(); sequence != taken.rend(); ++sequence) {
    Keep(**sequence);
  }
  for (Sequence* sequence : taken) {
    places_.kept.Save(*sequence);
    places_.tails.Save(*sequence);
    sequence->spill = 0;
    if (!lost.empty()) {
      sequence->losses.Add(lost);
    }
    if (sequence->losses.TooMany()) {
      const plan::SequenceId id = sequence->request.id;
      events.finished.push_back(ErrorEvent(id, sequence->losses.Why()));
      Forget(*sequence);
      continue;
    }
    sequence->state = SequenceState::kWaiting;
    sequence->restoring = false;
    sequence->reading.clear();
    sequence->starving = false;
    sequence->has_scratch = false;
    sequence->resident = {};
    sequence->parent = 0;
    sequence->attached.clear();
    sequence->lives_on.clear();
    sequence->held = nullptr;
    waiting_.insert(sequence);
  }
}

void SequenceLife::EndLongerThan(const SchedulerOptions& options, Events& events) {
  const std::vector<Sequence*> waiting(waiting_.begin(), waiting_.end());
  for (Sequence* sequence : waiting) {
    const uint32_t slots = options.SlotsOfLongest(PathOf(sequence->request));
    if (options.SlotsAtOnce(sequence->slots_max()) > slots) {
      events.finished.push_back(
          ErrorEvent(sequence->request.id,
                     absl::UnavailableError(absl::StrCat(
                         "the request can grow to ", options.SlotsAtOnce(sequence->slots_max()),
                         " slots, the largest memory node left has ", slots))));
      End(*sequence);
    }
  }
}

void SequenceLife::FailAll(const absl::Status& status, Events& events) {
  std::vector<Sequence*> all = TakenFromNodes();
  all.insert(all.end(), waiting_.begin(), waiting_.end());
  for (Sequence* sequence : all) {
    Detach(*sequence);  // Forks end too; they need no prefill of their own.
  }
  for (Sequence* sequence : all) {
    events.finished.push_back(ErrorEvent(sequence->request.id, status));
    End(*sequence);
  }
}

void SequenceLife::TellPreempted(Events& events) {
  for (const plan::SequenceId id : std::exchange(preempted_, {})) {
    if (Find(id) != nullptr) {
      events.preempted.push_back(id);
    }
  }
}

absl::Status SequenceLife::AuditSequence(const Sequence& sequence) const {
  const plan::SequenceId id = sequence.request.id;
  const auto broken = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("sequence ", id, ": ", what));
  };
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the sets hold mutable pointers.
  Sequence* self = const_cast<Sequence*>(&sequence);
  const bool waits = sequence.state == SequenceState::kWaiting;
  const bool drains = sequence.state == SequenceState::kDraining;
  if (waiting_.contains(self) != waits || draining_.contains(self) != drains) {
    return broken("is not in the queue of its state");
  }
  const bool runs = sequence.runs();
  // One that waits may remember a lane of an earlier epoch.
  const Lanes& lanes = places_.lanes;
  const bool listed = sequence.lane < lanes.size() && lanes[sequence.lane].running.contains(self);
  if (listed != runs) {
    return broken("runs and does not, or the reverse");
  }
  if (places_.kv.IsOpen(id) != runs) {
    return broken("holds slots without running, or the reverse");
  }
  const bool reads = sequence.spill != 0 || !sequence.reading.empty();
  if ((sequence.restoring && (!reads || !runs)) ||
      (!sequence.restoring && !sequence.reading.empty())) {
    return broken("is read back from nowhere");
  }
  if (!sequence.request.score && sequence.tokens() >= sequence.request.tokens_max) {
    return broken("goes on beyond its last token");
  }
  if (!runs) {
    return !sequence.has_scratch && sequence.resident.tokens == 0 && !sequence.starving &&
                   sequence.lives_on.empty()
               ? absl::OkStatus()
               : broken("waits, and holds something");
  }
  const uint32_t slots = places_.kv.TokensOf(id);
  if (sequence.state == SequenceState::kDecoding && slots + 1 != sequence.planned_tokens) {
    return broken("has more or fewer slots than planned inputs");
  }
  if (sequence.state == SequenceState::kPrefilling &&
      (slots < sequence.chunked_tokens || slots > sequence.join_tokens)) {
    return broken("has fewer slots than planned prompt tokens, or more than prompt tokens");
  }
  return absl::OkStatus();
}

absl::Status SequenceLife::Audit() const {
  for (const auto& [id, sequence] : sequences_) {
    LAMINA_RETURN_IF_ERROR(AuditSequence(*sequence));
    if (Find(id, sequence->seat) != sequence.get()) {
      return absl::InternalError(absl::StrCat("sequence ", id, ": another one is in its seat"));
    }
  }
  if (seats_.size() != sequences_.size() + seats_free_.size()) {
    return absl::InternalError("a seat is taken by nobody");
  }
  if (places_.lanes.running() != Running().size()) {
    return absl::InternalError("a lane has a sequence that does not run");
  }
  return absl::OkStatus();
}

}  // namespace lamina::core
