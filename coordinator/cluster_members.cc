// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster_members.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/units.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "coordinator/epoch_members.h"
#include "coordinator/node_costs.h"

namespace lamina::coordinator {
namespace {

std::vector<std::string> NamesOf(const std::vector<const core::Member*>& members) {
  std::vector<std::string> names;
  for (const core::Member* member : members) {
    names.push_back(member->name);
  }
  return names;
}

std::vector<const core::Member*> MembersOf(const core::Membership& membership) {
  std::vector<const core::Member*> members = membership.compute_members();
  const std::vector<const core::Member*> memory = membership.memory_members();
  members.insert(members.end(), memory.begin(), memory.end());
  return members;
}

// How many bytes all nodes that hold K and V have for them.
uint64_t CapacityOf(const core::Membership& membership, const AttachedNodes& nodes) {
  uint64_t capacity = 0;
  for (const core::Member* member : membership.kv_members()) {
    capacity += nodes.at(member->name).hello.identity.capacity_bytes;
  }
  return capacity;
}

// How many of these bytes are for slots of fetch_hybrid.
uint64_t HybridBytesOf(const EngineOptions& options, uint64_t capacity) {
  const uint32_t percent = options.fetch.hybrid->percent;
  return percent == 0 ? capacity : capacity / 100 * percent;
}

HybridMeasures HybridMeasuresOf(const EngineOptions& options, const ClusterMembers& members) {
  const MeasuredNodes nodes = MeasuredNodesOf(members);
  return {.rates = FetchRatesOf(options, *members.epoch(), nodes),
          .making = FetchFitsOf(nodes).making,
          .slice = MeanUnit(nodes.compute),
          .capacity = HybridBytesOf(options, CapacityOf(members.membership(), members.nodes()))};
}

// Slots were counted for K and V alone.
void UsePolicy(const EngineOptions& options, const EpochPolicy& policy, EpochMembers& members) {
  members.policy = policy.policy;
  members.fetch = policy.fetch;
  members.activation_share = policy.activation_share;
  members.fetch_why = policy.words;
  const uint64_t slot =
      SlotBytes(policy.fetch, options.layers.size(), KvBytesPerToken(options.layers));
  for (EpochMember& member : members.kv) {
    member.slots =
        static_cast<uint32_t>(std::min<uint64_t>(member.slots, member.capacity_bytes / slot));
  }
}

// Transports and policies that failed may be tried again: other nodes may manage them.
void ForgetFailures(core::TransportChoice& transport, std::optional<PolicyAuto>& policy) {
  transport.Reset();
  if (policy.has_value()) {
    policy->ForgetFailures();
  }
}

}  // namespace

ClusterMembers::ClusterMembers(const EngineOptions& options, const Clock& clock, EpochOwner& owner)
    : options_(options),
      clock_(clock),
      owner_(owner),
      admission_(options),
      forming_(options),
      membership_(options.nodes),
      transport_(options.transports),
      nodes_({.silence_max = options.node_silence_max, .stuck_after = options.stuck_after},
             clock.Now()),
      splits_(options),
      loading_(options, nodes_, splits_) {
  if (options.policy_auto.has_value()) {
    policy_.emplace(options);
  }
  if (options.fetch.hybrid.has_value()) {
    hybrid_.emplace(options);
  }
}

// What was set aside is tried again with the first transport, as a node that joins is.
void ClusterMembers::BeginTurn() {
  if (const Nanos late = nodes_.Turn(clock_.Now()); late > 0) {
    LogWarning("the coordinator itself stood still for ", ToSeconds(late),
               " s; it does not count that time as silence of its nodes");
  }
  if (membership_.Tick(clock_.Now())) {
    LogInfo("tries again what was set aside: ", membership_.Describe());
    ForgetFailures(transport_, policy_);
  }
}

void ClusterMembers::DropLostNodes() {
  for (const AttachedNodes::Lost& lost : nodes_.Silent()) {
    LeaveOut(lost);
  }
  for (const AttachedNodes::Lost& lost : nodes_.Stuck()) {
    LeaveOut(lost);
  }
}

void ClusterMembers::LeaveOut(const AttachedNodes::Lost& lost) {
  LogWarning(lost.why);
  const std::shared_ptr<NodePort> port = nodes_.at(lost.name).port;
  port->Leave(lost.why);
  port->End();
  Left({.name = lost.name, .port = port.get()});
}

void ClusterMembers::WatchLoad(bool works, const std::function<Load()>& load) {
  if (!serving()) {
    return;
  }
  const Nanos now = clock_.Now();
  if (hybrid_.has_value() && works && hybrid_->WantsLoad(now)) {
    const Load seen = load();
    const uint32_t rows = seen.rows > seen.prefilling ? seen.rows : 0;  // Else none decodes.
    hybrid_->SawLoad(now,
                     {.rows = rows, .lanes = seen.lanes, .context_tokens = seen.context_tokens});
  } else if (hybrid_.has_value() && !works && !membership_.epoch_ended()) {
    if (hybrid_->Settle(now, HybridMeasuresOf(options_, *this)) && membership_.StartAnew()) {
      LogInfo("nothing runs: an epoch begins with ", hybrid_->why());
    }
    epoch_->fetch_why = hybrid_->why();
  }
  if (!policy_.has_value()) {
    return;
  }
  if (works) {
    if (policy_->SawWork(now)) {
      const Load seen = load();
      policy_->SawLoad(now, seen.rows, seen.context_tokens);
      policy_->SawSteps(now, {.policy = epoch_->policy,
                              .activation_share = epoch_->config().activation_share,
                              .rows = seen.rows,
                              .context_tokens = seen.context_tokens,
                              .tokens = seen.tokens,
                              .prompts = seen.prompts,
                              .prompt_tokens = seen.prompt_tokens});
    }
    return;
  }
  const PolicyMeasures measures = MeasuresOf(membership_, nodes_, splits_);
  if (!policy_->SawNothing(now, measures)) {
    return;
  }
  const core::PolicyChoice& choice = policy_->Choose(epoch_->policy, measures);
  if (policy_->WorthAnEpoch(epoch_->policy, epoch_->config().activation_share) &&
      membership_.StartAnew()) {
    LogInfo("nothing runs: an epoch of policy ", cost::KvPolicyName(choice.policy), " begins");
  }
}

void ClusterMembers::Advance() {
  for (;;) {
    switch (membership_.Next()) {
      case core::MembershipAction::kNone:
        return;
      case core::MembershipAction::kConfigure:
        Configure();
        break;
      case core::MembershipAction::kConnect:
        Connect();
        break;
      case core::MembershipAction::kServe:
        LogInfo("serving epoch ", membership_.epoch());
        owner_.EpochServes(*epoch_);
        break;
    }
  }
}

void ClusterMembers::Configure() {
  SettlePolicy();
  const absl::Status split = loading_.Split();
  absl::StatusOr<FormedEpoch> formed =
      split.ok() ? forming_.Form(MembersFor(membership_)) : absl::StatusOr<FormedEpoch>(split);
  if (!formed.ok()) {
    LogError("cannot serve: ", formed.status().message());
    membership_.CannotServe(formed.status().message());
    return owner_.StopServing(
        absl::UnavailableError(absl::StrCat("cannot serve: ", formed.status().message())));
  }
  epoch_ = *std::move(formed);
  if (hybrid_.has_value()) {
    hybrid_->BeginEpoch();
  }
  owner_.BeginEpoch(*epoch_, std::exchange(lost_, {}));
  const plan::EpochConfig& config = epoch_->config();
  LogInfo("configuring epoch ", config.epoch, " compute ", absl::StrJoin(config.compute_nodes, ","),
          " memory ", absl::StrJoin(config.memory_nodes, ","), " partition ", epoch_->partition,
          " prefill ", DescribePrefill(membership_), " transport ", config.transport);
  TellMembers();
}

EpochMembers ClusterMembers::MembersFor(const core::Membership& membership) const {
  EpochMembers members = EpochMembersOf(membership, nodes_, splits_, transport_.uri());
  members.fetch = options_.fetch;
  if (hybrid_.has_value()) {
    members.activation_share = hybrid_->share();
    members.fetch_why = hybrid_->why();
  }
  if (policy_.has_value() && policy_->choice().has_value()) {
    UsePolicy(options_, policy_->Epoch(), members);
  }
  return members;
}

// Members get the configuration; who is attached and has no part is told so.
void ClusterMembers::TellMembers() {
  const std::vector<std::string> members = NamesOf(MembersOf(membership_));
  for (auto& [name, node] : nodes_.all()) {
    node.links.clear();
    node.windows.clear();
    if (std::find(members.begin(), members.end(), name) != members.end()) {
      nodes_.Asked(name, ThreadActivity::kPreparing);
      node.port->Configure(epoch_->config());
    } else if (node.joining == Joining::kJoined) {
      nodes_.Answered(name);
      node.port->Leave("");
    }
  }
}

void ClusterMembers::Connect() {
  const plan::EpochPeers peers = PeersOf(membership_);
  for (const core::Member* member : MembersOf(membership_)) {
    nodes_.Asked(member->name, ThreadActivity::kConnecting);
    nodes_.at(member->name).port->Connect(peers);
  }
}

void ClusterMembers::SettlePolicy() {
  if (!policy_.has_value()) {
    return;
  }
  const core::PolicyChoice& choice =
      policy_->Choose(policy_->current(), MeasuresOf(membership_, nodes_, splits_));
  LogInfo("policy ", cost::KvPolicyName(choice.policy), " ", choice.why);
  membership_.KeepKvOnCompute(choice.local());
}

void ClusterMembers::Joined(const NodeHello& hello, std::shared_ptr<NodePort> port) {
  const control::NodeIdentity& identity = hello.identity;
  const std::string& name = identity.name;
  absl::Status status = admission_.Check(hello, membership_.HoldsKv(name));
  status.Update(admission_.CheckShards(hello, nodes_));
  const bool loads = !identity.is_memory && splits_.JoinsLoaded(name);
  if (status.ok() && loads && nodes_.Find(name) != nullptr) {
    status = absl::AlreadyExistsError(
        absl::StrCat("a node named ", name, " is already part of this cluster; stop it first"));
  } else if (status.ok() && !loads) {
    status = membership_.Join(name, identity.is_memory);
  }
  if (!status.ok()) {
    LogWarning("refused node ", name, ": ", status.message());
    port->Refuse(status);
    return;
  }
  nodes_.Add({.hello = hello,
              .port = std::move(port),
              .slots = admission_.SlotsOf(hello),
              .joining = loads ? Joining::kAwaitsLayers : Joining::kJoined});
  if (loads) {
    if (const absl::Status begun = loading_.Begin(); !begun.ok()) {
      RefuseJoined(name, begun);
    }
    return;
  }
  ForgetFailures(transport_, policy_);
  LogInfo("joined ", name, " pid ", hello.pid, " kernels ", identity.kernels);
}

void ClusterMembers::RefuseJoined(const std::string& name, const absl::Status& why) {
  LogError("refused node ", name, ": ", why.message());
  nodes_.at(name).port->Refuse(why);
  nodes_.Remove(name);
}

void ClusterMembers::Loaded(const std::string& name,
                            const absl::StatusOr<plan::PolicyTimes>& times) {
  if (!loading_.End(name)) {
    return;
  }
  AttachedNode& node = nodes_.at(name);
  absl::Status joined = times.ok() ? admission_.CheckMeasured(name, *times) : times.status();
  if (joined.ok()) {
    node.hello.identity.policy_times = *times;
    joined = membership_.Join(name, /*is_memory=*/false);
  }
  if (!joined.ok()) {
    return RefuseJoined(name, joined);
  }
  ForgetFailures(transport_, policy_);
  LogInfo("joined ", name, " pid ", node.hello.pid, " with its layers");
}

void ClusterMembers::Left(const NodeSource& from) {
  if (!nodes_.Has(from)) {
    return;
  }
  const std::string name = from.name;
  LogWarning("lost ", name);
  nodes_.Remove(name);
  NoteLosses([&] { membership_.Leave(name); });
  StopIfWaiting(absl::StrCat("node ", name, " is gone and the cluster cannot go on without it"));
}

void ClusterMembers::Release(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    LogInfo("lets go ", name);
    const std::shared_ptr<NodePort> port = nodes_.at(name).port;
    port->Leave("");
    port->End();
    nodes_.Remove(name);
  }
  NoteLosses([&] {
    for (const std::string& name : names) {
      membership_.Leave(name);
    }
  });
  StopIfWaiting(absl::StrCat("the cluster cannot go on without ", absl::StrJoin(names, ", "),
                             ", told to stop"));
}

void ClusterMembers::Expect(const std::string& name) {
  LogInfo("memory node ", name, " may join");
  membership_.Expect({.name = name, .is_memory = true});
}

// Requests that ran on it have not lost it: nothing speaks against them.
void ClusterMembers::Dismiss(const std::string& name) {
  LogInfo("drained ", name);
  if (const AttachedNode* node = nodes_.Find(name); node != nullptr) {
    const std::shared_ptr<NodePort> port = node->port;
    port->Dismiss();
    nodes_.Remove(name);
  }
  membership_.Dismiss(name);
  StopIfWaiting(absl::StrCat("the cluster cannot go on without ", name, ", which was drained"));
}

void ClusterMembers::NoteLosses(const std::function<void()>& change) {
  const std::vector<std::string> before = NamesOf(MembersOf(membership_));
  change();
  for (const std::string& name : before) {
    if (!membership_.IsThere(name)) {  // Else it only has no part for now, like a stage that waits.
      lost_.push_back(name);
    }
  }
}

void ClusterMembers::StopIfWaiting(const std::string& why) {
  if (membership_.phase() == core::MembershipPhase::kWaiting) {
    owner_.StopServing(absl::UnavailableError(why));
  }
}

void ClusterMembers::Ready(const std::string& name, uint64_t epoch) {
  if (epoch == membership_.epoch()) {
    nodes_.Answered(name);
  }
  membership_.Ready(name, epoch);
}

void ClusterMembers::Fault(const std::string& name, uint64_t epoch, const absl::Status& status) {
  std::string peer = control::BlamedIn(status);
  LogError("fault of ", name, " epoch ", epoch, peer.empty() ? "" : " blames ", peer, ": ",
           status.message());
  if (epoch == membership_.epoch()) {
    nodes_.Answered(name);
  }
  if (PassOver(name, epoch, status)) {
    return;
  }
  // A node that says nothing of a peer failed by itself, unless it is the transport that failed.
  if (peer.empty() && !control::IsTransportFault(status)) {
    peer = name;
  }
  NoteLosses([&] { membership_.Fault(name, epoch, status, peer); });
  StopIfWaiting(absl::StrCat("node ", name, ": ", status.message()));
}

bool ClusterMembers::PassOver(const std::string& name, uint64_t epoch, const absl::Status& status) {
  if (control::IsTransportFault(status)) {
    core::TransportChoice next = transport_;
    if (!next.PassOver(name, std::string(status.message())) ||
        !membership_.StartAnew(name, epoch)) {
      return false;
    }
    transport_ = next;
    LogWarning(transport_.Warning());
    return true;
  }
  if (!policy_.has_value() || epoch != membership_.epoch() || membership_.epoch_ended() ||
      membership_.phase() != core::MembershipPhase::kPreparing) {
    return false;
  }
  if (!policy_->PassOver(absl::StrCat(name, ": ", status.message())) ||
      !membership_.StartAnew(name, epoch)) {
    return false;
  }
  LogWarning("policy auto leaves out ", cost::KvPolicyName(epoch_->policy),
             " until nodes come: ", name, " could not prepare it");
  return true;
}

void ClusterMembers::Prepared(const std::string& name, uint64_t epoch,
                              const control::PreparedNode& prepared) {
  membership_.Prepared(name, epoch, prepared.region);
  if (epoch == membership_.epoch()) {
    nodes_.at(name).windows = prepared.windows;
    nodes_.at(name).kv_arena = prepared.kv_arena;
    nodes_.Answered(name);
    LogInfo("prepared ", name, " epoch ", epoch, " windows in ", prepared.windows);
  }
}

void ClusterMembers::Links(const std::string& name, uint64_t epoch,
                           std::vector<control::LinkReport> links) {
  if (epoch != membership_.epoch()) {
    return;
  }
  for (const control::LinkReport& link : links) {
    LogInfo("link ", name, " ", link.peer, " by ", link.path,
            absl::StrFormat(" latency %.1f us bandwidth ", link.latency_seconds * 1e6),
            FormatBytes(static_cast<uint64_t>(link.bytes_per_second)), "/s");
  }
  nodes_.at(name).links = std::move(links);
}

void ClusterMembers::TakeStatus(const std::string& name, double busy_share,
                                const telemetry::NodeCounters& counters) {
  nodes_.TakeStatus(name, busy_share, counters);
}

}  // namespace lamina::coordinator
