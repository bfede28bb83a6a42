// SPDX-License-Identifier: Apache-2.0
//
// The clock, the network and the nodes; what goes wrong is in membership_troubles.cc.

#include "tests/sim/membership_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lamina::sim {
namespace {

constexpr size_t kTraceLines = 50;
constexpr uint64_t kEventsMax = 400'000;

}  // namespace

void MembershipWorld::Trace(absl::string_view line) {
  std::string text = absl::StrCat(ToSeconds(now_), " s ", line);
  for (const char c : text) {
    report_.trace_hash = (report_.trace_hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  }
  report_.trace.push_back(std::move(text));
  if (report_.trace.size() > kTraceLines) {
    report_.trace.pop_front();
  }
}

void MembershipWorld::Fail(absl::string_view what) {
  if (report_.failure.empty()) {
    report_.failure = absl::StrCat(what, " (at ", ToSeconds(now_), " s)");
  }
}

MembershipSimReport MembershipWorld::Run() {
  for (auto& [name, node] : nodes_) {
    At(Between(0, Seconds(3)), [this, who = name] { Start(who); });
  }
  At(Seconds(1), [this] { Idle(); });
  At(Seconds(4), [this] { MakeTrouble(); });
  while (stage_ != Stage::kDone && report_.failure.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.time;
    event.happen();
    if (const std::string& wrong = owner_.auditor().failure(); !wrong.empty()) {
      Fail(wrong);
    }
    if (++report_.events > kEventsMax) {
      Fail("too many events");
    }
  }
  report_.counts = owner_.counts();
  report_.set_aside = owner_.auditor().set_aside();
  report_.held_back = owner_.auditor().held_back();
  return report_;
}

void MembershipWorld::At(Nanos time, std::function<void()> happen) {
  queue_.push({.time = time, .sequence = ++events_, .happen = std::move(happen)});
}

Nanos MembershipWorld::Between(Nanos least, Nanos most) {
  return least + static_cast<Nanos>(random_.Below(static_cast<uint64_t>(most - least + 1)));
}

// Words take long at times, while much goes wrong.
Nanos MembershipWorld::Delay() {
  const bool late = stage_ == Stage::kTroubled && random_.Below(20) == 0;
  return late ? Between(Millis(50), Seconds(3)) : Between(Micros(50), Millis(30));
}

// The owner's loop turns when something has come; what comes meanwhile is of the same turn.
void MembershipWorld::Post(std::function<void()> event) {
  owner_.Post(std::move(event));
  if (!turn_due_) {
    turn_due_ = true;
    At(now_ + Between(0, Millis(3)), [this] {
      turn_due_ = false;
      owner_.Turn(now_);
    });
  }
}

// A turn at least once a second, in which nodes have told how they are.
void MembershipWorld::Idle() {
  owner_.Post([this] {
    for (auto& [name, node] : nodes_) {
      if (node.stream != 0 && now_ >= node.hangs_until) {
        node.beats += now_ >= node.sticks_until ? 1 : 0;
        owner_.Status({.name = name, .stream = node.stream},
                      node.works ? ThreadActivity::kWorking : ThreadActivity::kNone, node.beats);
      }
    }
  });
  owner_.Turn(now_);
  Watch();
  At(now_ + Seconds(1), [this] { Idle(); });
}

void MembershipWorld::Say(SimNode& node, std::function<void(const SimSource&)> word) {
  const SimSource source = {.name = node.role.name, .stream = node.stream};
  const Nanos at = now_ + Delay();
  node.said = in_any_order_ ? at : std::max(node.said, at);
  At(node.said, [this, source, word = std::move(word)] { Post([source, word] { word(source); }); });
}

void MembershipWorld::Tell(const SimSource& to, std::function<void(SimNode&)> what) {
  SimNode& node = nodes_.at(to.name);
  node.told = std::max(node.told, now_ + Delay());
  At(node.told, [this, to, what = std::move(what)] { Hear(to, what); });
}

void MembershipWorld::Hear(const SimSource& to, const std::function<void(SimNode&)>& what) {
  SimNode& node = nodes_.at(to.name);
  if (node.stream != to.stream) {
    return;
  }
  if (now_ < node.hangs_until) {
    At(node.hangs_until, [this, to, what] { Hear(to, what); });
    return;
  }
  what(node);
}

// --- Nodes ---

void MembershipWorld::Start(const std::string& name, bool drained) {
  SimNode& node = nodes_.at(name);
  if (node.gone != drained || node.stream != 0) {
    return;
  }
  node.stream = ++streams_;
  Say(node, [this](const SimSource& from) { owner_.Joined(from); });
}

void MembershipWorld::EndEpoch(SimNode& node) {
  node.epoch = nullptr;
  node.works = node.doubts = false;
  ++node.job;
}

// Another process comes after `down`. The owner sees the stream end.
void MembershipWorld::Die(SimNode& node, Nanos down) {
  if (node.stream == 0) {
    return;
  }
  Trace(absl::StrCat(node.role.name, " dies"));
  Say(node, [this](const SimSource& from) { owner_.Left(from); });
  EndEpoch(node);
  node.stream = 0;
  node.hangs_until = node.sticks_until = 0;
  At(now_ + down, [this, name = node.role.name] { Start(name); });
}

void MembershipWorld::End(const SimSource& to) {
  Tell(to, [this](SimNode& node) {
    EndEpoch(node);
    node.stream = 0;
    node.sticks_until = 0;  // A process whose thread does not end is ended.
    At(now_ + Between(Millis(200), Seconds(2)), [this, name = node.role.name] { Start(name); });
  });
}

void MembershipWorld::Leave(const SimSource& to) {
  Tell(to, [this](SimNode& node) { EndEpoch(node); });
}

void MembershipWorld::Configure(const SimSource& to, std::shared_ptr<const SimEpoch> epoch) {
  Tell(to, [this, to, epoch = std::move(epoch)](SimNode& node) {
    EndEpoch(node);
    node.epoch = epoch;
    Work(to, node.job, now_ + node.slow * Between(Millis(20), Millis(500)),
         [this](SimNode& ready) { Prepare(ready); });
  });
}

void MembershipWorld::Connect(const SimSource& to, uint64_t epoch) {
  Tell(to, [this, to, epoch](SimNode& node) {
    if (node.epoch != nullptr && node.epoch->epoch == epoch) {
      Work(to, node.job, now_ + node.slow * Between(Millis(5), Millis(200)),
           [this](SimNode& ready) { Open(ready); });
    }
  });
}

// Does it at `at`, or when the node's thread moves again.
void MembershipWorld::Work(const SimSource& who, uint64_t job, Nanos at,
                           const std::function<void(SimNode&)>& what) {
  At(at, [this, who, job, what] {
    SimNode& node = nodes_.at(who.name);
    if (node.stream != who.stream || node.job != job) {
      return;
    }
    const Nanos held = std::max(node.hangs_until, node.sticks_until);
    if (now_ < held) {
      return Work(who, job, held, what);
    }
    what(node);
  });
}

void MembershipWorld::Prepare(SimNode& node) {
  const uint64_t epoch = node.epoch->epoch;
  if (now_ < node.comes_and_goes_until) {
    return Die(node, Between(Millis(100), Seconds(1)));
  }
  if (now_ < transport_broken_until_ && node.epoch->first_transport) {
    return Report(node, {.epoch = epoch, .peer = node.role.name, .transport = true});
  }
  if (now_ < node.not_prepared_until) {
    return Report(node, {.epoch = epoch, .peer = node.role.name});
  }
  Say(node, [this, epoch](const SimSource& from) { owner_.Prepared(from, epoch); });
}

// Regions of those that have left the epoch are gone.
void MembershipWorld::Open(SimNode& node) {
  const uint64_t epoch = node.epoch->epoch;
  for (const std::string& name : Peers(node)) {
    const SimNode& peer = nodes_.at(name);
    if (peer.stream == 0 || peer.epoch == nullptr || peer.epoch->epoch != epoch ||
        !Hears(node, peer)) {
      return Report(node, {.epoch = epoch, .peer = name, .transport = true});
    }
  }
  node.works = true;
  Say(node, [this, epoch](const SimSource& from) { owner_.Ready(from, epoch); });
}

// Memory nodes open regions of compute nodes; these, those of memory nodes and of other nodes of
// their replica.
std::vector<std::string> MembershipWorld::Peers(const SimNode& node) const {
  if (node.role.is_memory) {
    return node.epoch->compute;
  }
  std::vector<std::string> peers = node.epoch->memory;
  for (const std::string& name : node.epoch->compute) {
    if (name != node.role.name && !node.role.replica.empty() &&
        nodes_.at(name).role.replica == node.role.replica) {
      peers.push_back(name);
    }
  }
  return peers;
}

bool MembershipWorld::CanWork(const SimNode& node, uint64_t epoch) const {
  return node.stream != 0 && node.epoch != nullptr && node.epoch->epoch == epoch && node.works &&
         now_ >= node.hangs_until && now_ >= node.sticks_until;
}

bool MembershipWorld::Hears(const SimNode& node, const SimNode& peer) const {
  const auto deaf = deaf_.find({node.role.name, peer.role.name});
  return (deaf == deaf_.end() || now_ >= deaf->second) && now_ >= node.unreachable_until &&
         now_ >= peer.unreachable_until;
}

// --- Steps ---

void MembershipWorld::PlanSteps(uint64_t epoch) {
  if (steps_of_ == epoch) {
    return;
  }
  steps_of_ = epoch;
  At(now_ + Between(Millis(50), Millis(500)), [this, epoch] { EndStep(epoch); });
}

// All members work on it together. Who waits for another one in vain says so after a while.
void MembershipWorld::EndStep(uint64_t epoch) {
  const core::Membership& membership = owner_.membership();
  if (membership.epoch() != epoch || membership.epoch_ended() ||
      membership.phase() != core::MembershipPhase::kServing) {
    return;
  }
  bool done = true;
  SimNode* failing = nullptr;
  for (const auto& members : {membership.compute_members(), membership.memory_members()}) {
    for (const core::Member* member : members) {
      SimNode& node = nodes_.at(member->name);
      if (!CanWork(node, epoch)) {
        done = false;
        continue;
      }
      failing = now_ < node.fails_until ? &node : failing;
      for (const std::string& name : Peers(node)) {
        const SimNode& peer = nodes_.at(name);
        if (!CanWork(peer, epoch) || !Hears(node, peer)) {
          done = false;
          Doubt(node, name);
          break;
        }
      }
    }
  }
  if (done && (failing == nullptr || failing->fails_late)) {
    Say(nodes_.at(membership.compute_members().front()->name),
        [this, epoch](const SimSource& from) { owner_.StepDone(from, epoch); });
  }
  if (failing != nullptr) {
    Report(*failing, {.epoch = epoch});
  }
  const bool quiet = stage_ == Stage::kQuiet;
  At(now_ + (quiet ? Between(Seconds(2), Seconds(4)) : Between(Millis(100), Seconds(1))),
     [this, epoch] { EndStep(epoch); });
}

void MembershipWorld::Doubt(SimNode& node, const std::string& peer) {
  if (node.doubts) {
    return;
  }
  node.doubts = true;
  const SimSource who = {.name = node.role.name, .stream = node.stream};
  At(now_ + Between(Millis(300), Seconds(4)), [this, who, epoch = node.epoch->epoch, peer] {
    SimNode& waiting = nodes_.at(who.name);
    if (waiting.stream != who.stream || waiting.epoch == nullptr || waiting.epoch->epoch != epoch) {
      return;
    }
    waiting.doubts = false;
    const SimNode& other = nodes_.at(peer);
    if (CanWork(waiting, epoch) && !(CanWork(other, epoch) && Hears(waiting, other))) {
      Report(waiting, {.epoch = epoch, .peer = peer});
    }
  });
}

// The node's data thread has ended.
void MembershipWorld::Report(SimNode& node, SimFault fault) {
  node.works = false;
  if (stage_ == Stage::kTroubled && random_.Below(16) == 0) {
    fault.peer = random_.Below(4) == 0 ? "" : Any()->role.name;  // It is mistaken.
  }
  Say(node, [this, fault = std::move(fault)](const SimSource& from) { owner_.Fault(from, fault); });
}

}  // namespace lamina::sim
