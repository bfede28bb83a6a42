// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/membership_owner.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lamina::sim {
namespace {

using core::MembershipAction;
using core::MembershipPhase;

// The coordinator's limits: kNodeSilenceMax of coordinator/cluster_options.cc,
constexpr Nanos kSilenceMost = Seconds(10);
// and Departures::kTogether.
constexpr Nanos kTogether = Seconds(1);

std::vector<std::string> Transports(uint32_t count) {
  std::vector<std::string> uris;
  for (uint32_t i = 0; i < count; ++i) {
    uris.push_back(absl::StrCat("t", i, "://"));
  }
  return uris;
}

std::vector<std::string> NamesOf(const std::vector<const core::Member*>& members) {
  std::vector<std::string> names;
  for (const core::Member* member : members) {
    names.push_back(member->name);
  }
  return names;
}

}  // namespace

MembershipOwner::MembershipOwner(const Options& options, SimPorts& nodes)
    : options_(options),
      nodes_(nodes),
      membership_(options.expected, options.bug),
      auditor_(options.expected, membership_.get()),
      transport_(Transports(options.transports)),
      silence_(kSilenceMost, 0),
      threads_(core::ThreadWatch::Limits{}) {}

bool MembershipOwner::IsFrom(const SimSource& from) const {
  const auto found = attached_.find(from.name);
  return found != attached_.end() && found->second == from.stream;
}

void MembershipOwner::Audit(const MembershipEvent& event) { auditor_.After(event, now_); }

void MembershipOwner::Turn(Nanos now) {
  now_ = now;
  silence_.Turn(now);
  const bool again = membership_.Tick(now);
  Audit({.call = MembershipCall::kTick, .done = again});
  if (again) {
    nodes_.Trace(absl::StrCat("tries again: ", membership().Describe()));
    ++counts_.tried_again;
    ForgetFailures();
  }
  std::vector<std::function<void()>> batch;
  batch.swap(inbox_);
  for (const std::function<void()>& event : batch) {
    event();
  }
  DropLostNodes();
  LetGo();
  WatchLoad();
  Advance();
  auditor_.EndTurn();
  if (membership().phase() == MembershipPhase::kServing) {
    nodes_.PlanSteps(membership().epoch());
  }
}

void MembershipOwner::ForgetFailures() {
  transport_.Reset();
  left_out_.reset();
}

// --- Who comes and goes ---

void MembershipOwner::Joined(const SimSource& from) {
  const bool is_memory = from.name.front() == 'm';
  const absl::Status joined = membership_.Join(from.name, is_memory);
  Audit({.call = MembershipCall::kJoin, .name = from.name, .done = joined.ok()});
  if (!joined.ok()) {
    ++counts_.refused;
    counts_.unknown += absl::IsNotFound(joined) ? 1 : 0;
    return nodes_.End(from);
  }
  nodes_.Trace(absl::StrCat("joined ", from.name));
  attached_[from.name] = from.stream;
  silence_.Heard(from.name);
  ForgetFailures();
}

void MembershipOwner::Remove(const std::string& name) {
  attached_.erase(name);
  silence_.Forget(name);
  threads_.Forget(name);
}

void MembershipOwner::Left(const SimSource& from) {
  if (!IsFrom(from)) {
    return;
  }
  nodes_.Trace(absl::StrCat("lost ", from.name));
  Remove(from.name);
  membership_.Leave(from.name);
  Audit({.call = MembershipCall::kLeave, .name = from.name});
}

void MembershipOwner::LeaveOut(const std::string& name) {
  const SimSource source = {.name = name, .stream = attached_.at(name)};
  nodes_.End(source);
  Left(source);
}

void MembershipOwner::DropLostNodes() {
  for (const std::string& name : silence_.Lost()) {
    ++counts_.silent;
    LeaveOut(name);
  }
  for (const core::ThreadWatch::Stuck& stuck : threads_.Late(silence_.awake())) {
    ++counts_.stuck;
    LeaveOut(stuck.name);
  }
}

void MembershipOwner::Leaving(const SimSource& from) {
  const bool asked = std::any_of(leaving_.begin(), leaving_.end(), [&](const SimSource& other) {
    return other.stream == from.stream;
  });
  if (!IsFrom(from) || asked) {
    return;
  }
  if (leaving_.empty()) {
    first_leaving_ = now_;
  }
  leaving_.push_back(from);
}

// All who ask go together. No request keeps them.
void MembershipOwner::LetGo() {
  std::erase_if(leaving_, [this](const SimSource& source) { return !IsFrom(source); });
  if (leaving_.empty() || now_ < first_leaving_ + kTogether) {
    return;
  }
  const std::vector<SimSource> released = std::exchange(leaving_, {});
  for (const SimSource& source : released) {
    nodes_.Trace(absl::StrCat("lets go ", source.name));
    nodes_.End(source);
    Remove(source.name);
    ++counts_.let_go;
  }
  for (const SimSource& source : released) {
    membership_.Leave(source.name);
    Audit({.call = MembershipCall::kLeave, .name = source.name});
  }
}

void MembershipOwner::Expect(const std::string& name) {
  nodes_.Trace(absl::StrCat("expects ", name));
  membership_.Expect({.name = name, .is_memory = true});
  Audit({.call = MembershipCall::kExpect, .name = name});
  ++counts_.added;
}

// MemberChanges::Drain(), without the trial of what would be left.
bool MembershipOwner::Drain(const std::string& name) {
  uint32_t others = 0;
  uint32_t others_there = 0;
  bool known = false;
  for (const core::Member& member : membership().all()) {
    known = known || member.name == name;
    if (member.is_memory && member.name != name) {
      ++others;
      others_there += membership().IsThere(member.name) ? 1 : 0;
    }
  }
  const bool changes =
      membership().phase() != MembershipPhase::kWaiting && membership().epoch_ended();
  if (!known || others < options_.kv_least || others_there == 0 || changes) {
    return false;
  }
  nodes_.Trace(absl::StrCat("drains ", name));
  if (const auto found = attached_.find(name); found != attached_.end()) {
    nodes_.End({.name = name, .stream = found->second});
    Remove(name);
  }
  membership_.Dismiss(name);
  Audit({.call = MembershipCall::kDismiss, .name = name});
  ++counts_.drained;
  return true;
}

// --- What nodes say ---

void MembershipOwner::Prepared(const SimSource& from, uint64_t epoch) {
  if (!IsFrom(from)) {
    return;
  }
  counts_.late_reports += epoch != membership().epoch() ? 1 : 0;
  membership_.Prepared(from.name, epoch, "region");
  Audit({.call = MembershipCall::kPrepared, .name = from.name, .epoch = epoch});
  if (epoch == membership().epoch()) {
    threads_.Answered(from.name, silence_.awake());
  }
}

void MembershipOwner::Ready(const SimSource& from, uint64_t epoch) {
  if (!IsFrom(from)) {
    return;
  }
  if (epoch == membership().epoch()) {
    threads_.Answered(from.name, silence_.awake());
  }
  counts_.late_reports += epoch != membership().epoch() ? 1 : 0;
  membership_.Ready(from.name, epoch);
  Audit({.call = MembershipCall::kReady, .name = from.name, .epoch = epoch});
}

void MembershipOwner::Fault(const SimSource& from, const SimFault& fault) {
  if (!IsFrom(from)) {
    return;
  }
  const std::string& name = from.name;
  nodes_.Trace(absl::StrCat("fault of ", name, " epoch ", fault.epoch, " blames ",
                            fault.peer.empty() ? "nobody" : fault.peer,
                            fault.transport ? ": transport" : ""));
  if (fault.epoch == membership().epoch()) {
    threads_.Answered(name, silence_.awake());
  }
  counts_.late_reports += fault.epoch != membership().epoch() ? 1 : 0;
  if (PassOver(name, fault)) {
    ++counts_.passed_over;
    return;
  }
  std::string peer = fault.peer;
  if (peer.empty() && !fault.transport) {
    peer = name;
  }
  const bool waited = membership().phase() == MembershipPhase::kWaiting;
  membership_.Fault(name, fault.epoch, absl::InternalError("broken"), peer);
  Audit({.call = MembershipCall::kFault, .name = name, .epoch = fault.epoch, .peer = peer});
  if (!waited && membership().phase() == MembershipPhase::kWaiting && !membership().epoch_ended()) {
    ++counts_.cluster_waits;
  }
}

bool MembershipOwner::StartAnew(const std::string& name, uint64_t epoch) {
  const bool begins = membership_.StartAnew(name, epoch);
  Audit({.call = MembershipCall::kStartAnew, .name = name, .epoch = epoch, .done = begins});
  return begins;
}

bool MembershipOwner::PassOver(const std::string& name, const SimFault& fault) {
  if (fault.transport) {
    core::TransportChoice next = transport_;
    if (!next.PassOver(name, "broken") || !StartAnew(name, fault.epoch)) {
      return false;
    }
    transport_ = next;
    return true;
  }
  if (!options_.policy_auto || fault.epoch != membership().epoch() || membership().epoch_ended() ||
      membership().phase() != MembershipPhase::kPreparing) {
    return false;
  }
  const bool local = membership().local();
  if (left_out_.has_value() || (local && !HasMemoryNodes())) {
    return false;  // There is no other place.
  }
  left_out_ = local;
  return StartAnew(name, fault.epoch);
}

void MembershipOwner::StepDone(const SimSource& from, uint64_t epoch) {
  if (!IsFrom(from) || epoch != membership().epoch() || membership().epoch_ended()) {
    return;
  }
  const std::vector<std::string> compute = NamesOf(membership().compute_members());
  if (std::find(compute.begin(), compute.end(), from.name) == compute.end()) {
    return;
  }
  membership_.NoteProgress();
  Audit({.call = MembershipCall::kProgress});
  ++counts_.steps;
  last_step_ = now_;
  last_step_epoch_ = epoch;
}

void MembershipOwner::Status(const SimSource& from, ThreadActivity activity, uint64_t beats) {
  if (IsFrom(from)) {
    silence_.Heard(from.name);
    threads_.Seen(from.name, activity, beats, silence_.awake());
  }
}

// --- Epochs ---

bool MembershipOwner::HasMemoryNodes() const {
  const std::vector<core::Member>& all = membership().all();
  return std::any_of(all.begin(), all.end(), [this](const core::Member& member) {
    return member.is_memory && membership().IsThere(member.name);
  });
}

// Whether on compute nodes: as the load wants it, but for what failed and what there is not.
bool MembershipOwner::PlaceOfKv() const {
  const bool local =
      left_out_.has_value() && *left_out_ == wants_local_ ? !wants_local_ : wants_local_;
  return local || !HasMemoryNodes();
}

// Worlds have no requests, so that none ever runs.
void MembershipOwner::WatchLoad() {
  if (options_.policy_auto && membership().phase() == MembershipPhase::kServing &&
      PlaceOfKv() != membership().local()) {
    const bool begins = membership_.StartAnew();
    Audit({.call = MembershipCall::kStartAnew, .done = begins});
  }
}

void MembershipOwner::Advance() {
  while (auditor_.failure().empty()) {
    const MembershipAction action = membership_.Next();
    if (action == MembershipAction::kConfigure && options_.policy_auto) {
      membership_.KeepKvOnCompute(PlaceOfKv());
    }
    Audit({.call = MembershipCall::kNext, .action = action});
    switch (action) {
      case MembershipAction::kNone:
        return;
      case MembershipAction::kConfigure:
        Configure();
        break;
      case MembershipAction::kConnect:
        Connect();
        break;
      case MembershipAction::kServe:
        nodes_.Trace(absl::StrCat("serving epoch ", membership().epoch()));
        ++counts_.serving;
        break;
    }
  }
}

std::vector<std::string> MembershipOwner::MemberNames() const {
  std::vector<std::string> names = NamesOf(membership().compute_members());
  for (const core::Member* member : membership().memory_members()) {
    names.push_back(member->name);
  }
  return names;
}

void MembershipOwner::Configure() {
  if (membership().kv_members().size() < options_.kv_least) {
    nodes_.Trace("cannot form an epoch");
    membership_.CannotServe("too few nodes hold KV");
    Audit({.call = MembershipCall::kCannotServe});
    ++counts_.cannot_form;
    return;
  }
  const std::vector<std::string> members = MemberNames();
  nodes_.Trace(absl::StrCat("configuring epoch ", membership().epoch(), " of ",
                            absl::StrJoin(members, ",")));
  const auto epoch = std::make_shared<const SimEpoch>(
      SimEpoch{.epoch = membership().epoch(),
               .compute = NamesOf(membership().compute_members()),
               .memory = NamesOf(membership().memory_members()),
               .first_transport = transport_.uri() == Transports(1).front()});
  ++counts_.epochs;
  counts_.epochs_local += membership().local() ? 1 : 0;
  for (const auto& [name, stream] : attached_) {
    const SimSource to = {.name = name, .stream = stream};
    if (std::find(members.begin(), members.end(), name) != members.end()) {
      threads_.Asked(name, ThreadActivity::kPreparing, silence_.awake());
      nodes_.Configure(to, epoch);
    } else {
      threads_.Answered(name, silence_.awake());
      nodes_.Leave(to);
    }
  }
}

void MembershipOwner::Connect() {
  for (const std::string& name : MemberNames()) {
    threads_.Asked(name, ThreadActivity::kConnecting, silence_.awake());
    nodes_.Connect({.name = name, .stream = attached_.at(name)}, membership().epoch());
  }
}

}  // namespace lamina::sim
