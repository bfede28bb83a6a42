// SPDX-License-Identifier: Apache-2.0
//
// Who takes part: nodes that join, leave, fail and fall silent, and the epochs that follow.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "common/version.h"
#include "control/blame.h"
#include "control/transport_fault.h"
#include "coordinator/engine_internal.h"
#include "plan/epoch_topology.h"

namespace lamina::coordinator {

void Engine::Impl::AdvanceMembership() {
  for (;;) {
    switch (membership.Next()) {
      case core::MembershipAction::kNone:
        return;
      case core::MembershipAction::kConfigure:
        Configure();
        break;
      case core::MembershipAction::kConnect:
        Connect();
        break;
      case core::MembershipAction::kServe:
        LogInfo("serving epoch ", membership.epoch());
        break;
    }
  }
}

std::vector<std::string> Engine::Impl::NamesOf(const std::vector<const core::Member*>& members) {
  std::vector<std::string> names;
  for (const core::Member* member : members) {
    names.push_back(member->name);
  }
  return names;
}

void Engine::Impl::Configure() {
  SettlePolicy();
  const std::vector<const core::Member*> memory = membership.kv_members();
  auto shares = SharesOf(memory);
  if (const absl::Status split = SplitReplicas(); !split.ok()) {
    shares = split;
  }
  if (!shares.ok()) {
    LogError("cannot serve: ", shares.status().message());
    membership.CannotServe(shares.status().message());
    return StopServing(
        absl::UnavailableError(absl::StrCat("cannot serve: ", shares.status().message())));
  }
  const std::vector<std::string> names = NamesOf(memory);
  const std::vector<std::string> lost = std::exchange(lost_names, {});
  memory_names = names;
  shares_words = BandwidthOf(names).words;
  const plan::EpochConfig config = MakeConfig();
  const plan::EpochView epoch(config);
  schedule = epoch.Schedule();
  window_heads = epoch.window_heads_min();
  scheduler.SetLinkCosts(CostsOfLinks());
  chunks_planned.assign(config.lanes, {});
  reports.Reset(static_cast<uint32_t>(config.compute_nodes.size()), config.lanes, *schedule);
  core::Events events;
  // Without a prefill node prompts run inline.
  scheduler.StartEpoch(membership.epoch(), *shares, lost, events, epoch.prefill_lanes());
  Deliver(events);
  LogInfo("configuring epoch ", config.epoch, " compute ", absl::StrJoin(config.compute_nodes, ","),
          " memory ", absl::StrJoin(config.memory_nodes, ","), " partition ", partition,
          " prefill ", DescribePrefill(), " transport ", config.transport);
  const std::vector<const core::Member*> members = Members();
  for (auto& [name, node] : nodes) {
    node.links.clear();
    node.windows.clear();
    const bool takes_part =
        std::any_of(members.begin(), members.end(),
                    [&name = name](const core::Member* member) { return member->name == name; });
    if (takes_part) {
      threads.Asked(name, ThreadActivity::kPreparing, silence.awake());
      node.port->Configure(config);
    } else {
      threads.Answered(name, silence.awake());
      node.port->Leave("");
    }
  }
}

absl::StatusOr<std::vector<core::MemoryNodeShare>> Engine::Impl::SharesOf(
    const std::vector<const core::Member*>& members) {
  if (options.partition == Partition::kHead) {
    const std::vector<core::HeadNode> parts = HeadNodesOf(members);
    LAMINA_ASSIGN_OR_RETURN(
        head_split, core::ShareHeads(options.layers, parts, options.scheduler.sequence_tokens_max));
    partition = DescribePartition(absl::StrCat("head: ", core::DescribeSplit(*head_split, parts)));
    core::MemoryNodeShare whole{.name = absl::StrJoin(NamesOf(members), "+"),
                                .slots = head_split->slots};
    for (const core::HeadNode& part : parts) {
      whole.bandwidth_bytes_per_second += part.bandwidth;
    }
    return std::vector{whole};
  }
  std::vector<core::MemoryNodeShare> shares;
  const core::ServingBandwidth bandwidth = BandwidthOf(NamesOf(members));
  for (size_t i = 0; i < members.size(); ++i) {
    shares.push_back({.name = members[i]->name,
                      .slots = nodes.at(members[i]->name).slots,
                      .bandwidth_bytes_per_second = bandwidth.bytes_per_second[i]});
  }
  const uint32_t span_tokens = options.scheduler.span_tokens;
  if (span_tokens > 0) {
    LAMINA_RETURN_IF_ERROR(core::CheckSpans(options.layers, shares, span_tokens,
                                            options.scheduler.sequence_tokens_max));
  }
  partition = DescribePartition(span_tokens == 0 ? "request"
                                                 : absl::StrCat("token_range: spans of ",
                                                                span_tokens, " tokens over ",
                                                                shares.size(), " memory nodes"));
  return shares;
}

std::string Engine::Impl::DescribePartition(const std::string& words) const {
  if (options.policy_auto.has_value() && membership.local()) {
    return absl::StrCat(words, "; policy local: K and V stay on ",
                        membership.compute_members().front()->name, ", which attends itself");
  }
  return options.partition_why.empty() ? words : absl::StrCat(words, "; ", options.partition_why);
}

std::vector<core::HeadNode> Engine::Impl::HeadNodesOf(
    const std::vector<const core::Member*>& members) const {
  std::vector<core::HeadNode> parts;
  const core::ServingBandwidth bandwidth = BandwidthOf(NamesOf(members));
  for (size_t i = 0; i < members.size(); ++i) {
    parts.push_back({.name = members[i]->name,
                     .bandwidth = bandwidth.bytes_per_second[i],
                     .capacity_bytes = nodes.at(members[i]->name).hello.identity.capacity_bytes});
  }
  return parts;
}

void Engine::Impl::StopServing(const absl::Status& status) {
  core::Events events;
  scheduler.FailAll(status, events);
  Deliver(events);
}

plan::EpochConfig Engine::Impl::MakeConfig() const {
  const std::vector<plan::Stage> stages = StagesOf(membership.compute_members());
  const uint32_t prefill_lanes = PrefillLanes(stages);
  plan::EpochConfig config{.epoch = membership.epoch(),
                           .mode = options.mode,
                           .lanes = options.scheduler.lanes + prefill_lanes,
                           .plan_ahead = options.scheduler.plan_ahead,
                           .rows_max = options.scheduler.rows_max,
                           .chunk_tokens_max = options.scheduler.step_tokens_max,
                           .scratch_tokens = options.scheduler.scratch_tokens,
                           .sequence_tokens_max = options.scheduler.sequence_tokens_max,
                           .layers = options.layers,
                           .attention = options.attention,
                           .transport = transport.uri(),
                           .prefill_nodes = membership.prefill_members(),
                           .prefill_lanes = prefill_lanes};
  for (const core::Member* member : membership.compute_members()) {
    config.compute_nodes.push_back(member->name);
  }
  config.stages = stages;
  for (const std::string& name : memory_names) {
    config.memory_nodes.push_back(name);
    config.slots.push_back(head_split.has_value() ? head_split->slots : nodes.at(name).slots);
  }
  if (membership.local()) {
    config.attention_paths = {plan::AttentionPath::kLocal};
  }
  config.partition = options.partition;
  if (head_split.has_value()) {
    config.heads = head_split->heads;
  }
  config.span_tokens = options.scheduler.span_tokens;
  const auto on_device = [this](const std::string& name) {
    return nodes.at(name).hello.identity.device != "cpu";
  };
  const bool waits =
      options.device_waits && config.attention_paths.Has(plan::AttentionPath::kRemote);
  config.compute_waits =
      waits && std::any_of(config.compute_nodes.begin(), config.compute_nodes.end(), on_device);
  config.memory_waits =
      waits && std::any_of(config.memory_nodes.begin(), config.memory_nodes.end(), on_device);
  return config;
}

// As many for each replica as keep the one with the most stages busy.
uint32_t Engine::Impl::PrefillLanes(const std::vector<plan::Stage>& stages) const {
  const uint32_t nodes_for_prompts = membership.prefill_members();
  if (stages.empty()) {
    return nodes_for_prompts;
  }
  const auto replicas =
      plan::ByReplica(absl::MakeConstSpan(stages).subspan(stages.size() - nodes_for_prompts));
  uint32_t each = 0;
  for (const std::vector<plan::Stage>& replica : replicas) {
    const uint32_t count = replica.front().shard.count;
    each =
        std::max(each, plan::PrefillLanesOf(static_cast<uint32_t>(replica.size()) / count, count));
  }
  return static_cast<uint32_t>(replicas.size()) * each;
}

std::string Engine::Impl::DescribePrefill() const {
  std::vector<std::string> names;
  bool expected = false;
  for (const core::Member& member : membership.all()) {
    expected = expected || member.prefill;
  }
  absl::string_view replica;
  for (const core::Member* member : membership.compute_members()) {
    if (!member->prefill) {
      continue;
    }
    if (!member->replica.empty() && member->replica == replica) {
      absl::StrAppend(&names.back(), "+", member->name);
    } else {
      names.push_back(member->name);
    }
    replica = member->replica;
  }
  if (!names.empty()) {
    return absl::StrCat("dedicated: ", absl::StrJoin(names, ", "));
  }
  return expected ? "inline, for no prefill node is there" : "inline";
}

void Engine::Impl::Connect() {
  plan::EpochPeers peers{.epoch = membership.epoch()};
  for (const core::Member* member : membership.compute_members()) {
    peers.compute_regions.push_back(member->region);
  }
  for (const core::Member* member : membership.memory_members()) {
    peers.memory_regions.push_back(member->region);
  }
  for (const core::Member* member : Members()) {
    threads.Asked(member->name, ThreadActivity::kConnecting, silence.awake());
    nodes.at(member->name).port->Connect(peers);
  }
}

std::vector<const core::Member*> Engine::Impl::Members() const {
  std::vector<const core::Member*> members = membership.compute_members();
  const std::vector<const core::Member*> memory = membership.memory_members();
  members.insert(members.end(), memory.begin(), memory.end());
  return members;
}

absl::Status Engine::Impl::CheckHello(const NodeHello& hello) const {
  const control::NodeIdentity& identity = hello.identity;
  if (hello.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("node ", identity.name, " is of version ",
                                                      hello.version, ", the coordinator of ",
                                                      kVersion, "; install the same version"));
  }
  if (!identity.is_memory && identity.model_fingerprint != options.model_fingerprint) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model of ", identity.name, " is not the coordinator's; give both the same file"));
  }
  const uint64_t slots = identity.capacity_bytes / slot_bytes;
  const uint32_t least = options.scheduler.sequence_tokens_max;
  if (identity.is_memory && options.scheduler.span_tokens > 0) {
    // One span at least; whether a longest request has room, only all nodes together tell.
    return core::CheckSpans(
        options.layers,
        {{.name = identity.name,
          .slots = static_cast<uint32_t>(std::min<uint64_t>(slots, uint64_t{1} << 31))}},
        options.scheduler.span_tokens, options.scheduler.span_tokens);
  }
  if (identity.is_memory && options.partition == Partition::kHead) {
    // One head at least; whether all have room for all heads, only all of them tell.
    const uint64_t least_bytes = slot_bytes * least / options.layers[0].kv_heads;
    return identity.capacity_bytes >= least_bytes
               ? absl::OkStatus()
               : absl::FailedPreconditionError(absl::StrCat(
                     "memory node ", identity.name, " has ", FormatBytes(identity.capacity_bytes),
                     ", too little for its share: one KV head of one request of ", least,
                     " tokens (limits.sequence_tokens_max) takes ", FormatBytes(least_bytes),
                     "; raise its capacity or lower the limit"));
  }
  if (!identity.is_memory && identity.capacity_bytes == 0 && membership.HoldsKv(identity.name)) {
    return absl::FailedPreconditionError(
        absl::StrCat("compute node ", identity.name,
                     " has no capacity for KV, which policy local keeps there; start it with the "
                     "coordinator's cluster file"));
  }
  if (!identity.is_memory && options.policy_auto.has_value()) {
    LAMINA_RETURN_IF_ERROR(plan::CheckPolicyTimes(identity.policy_times));
    if (!identity.policy_times.measured()) {
      return absl::FailedPreconditionError(
          absl::StrCat("compute node ", identity.name,
                       " has measured nothing for policy auto; start it with the coordinator's "
                       "cluster file"));
    }
  }
  if (membership.HoldsKv(identity.name) && slots < least) {
    return absl::FailedPreconditionError(
        absl::StrCat(identity.is_memory ? "memory node " : "compute node ", identity.name, " has ",
                     FormatBytes(identity.capacity_bytes), ": room for ", slots,
                     " tokens, but one request may have ", least,
                     " (limits.sequence_tokens_max); raise its capacity to ",
                     FormatBytes(slot_bytes * least), " or lower the limit"));
  }
  return absl::OkStatus();
}

void Engine::Impl::NodeJoined(const NodeHello& hello, std::shared_ptr<NodePort> port) {
  const std::string& name = hello.identity.name;
  absl::Status status = CheckHello(hello);
  const std::optional<plan::Stage> layers = LayersToLoad(hello);
  if (status.ok() && layers.has_value() && nodes.contains(name)) {
    status = absl::AlreadyExistsError(
        absl::StrCat("a node named ", name, " is already part of this cluster; stop it first"));
  } else if (status.ok() && !layers.has_value()) {
    status = membership.Join(name, hello.identity.is_memory);
  }
  if (!status.ok()) {
    LogWarning("refused node ", name, ": ", status.message());
    port->Refuse(std::string(status.message()));
    return;
  }
  const auto slots = static_cast<uint32_t>(
      std::min<uint64_t>(hello.identity.capacity_bytes / slot_bytes, uint64_t{1} << 31));
  Node& node = nodes[name] = {
      .hello = hello, .port = std::move(port), .slots = slots, .loading = layers.has_value()};
  silence.Heard(name);
  if (node.loading) {
    LogInfo("loading layers ", name, " pid ", hello.pid);
    threads.Asked(name, ThreadActivity::kLoading, silence.awake());
    return node.port->LoadLayers(*layers);
  }
  transport.Reset();
  LogInfo("joined ", name, " pid ", hello.pid, " kernels ", hello.identity.kernels);
}

void Engine::Impl::NodeStatus(const std::string& name, double busy_share,
                              const telemetry::NodeCounters& counters) {
  Node& node = nodes.at(name);
  node.busy_share = busy_share;
  node.counters = counters;
  for (const auto& [part, seconds] : counters.parts) {
    if (part == "attend") {
      node.attention_rate.Update(counters.kv_bytes_read, seconds);
    }
  }
  silence.Heard(name);
  threads.Seen(name, counters.activity, counters.beats, silence.awake());
  scheduler.SetLaneCosts(CostsOfLanes());
  scheduler.SetLinkCosts(CostsOfLinks());
  UpdateBandwidths();
}

void Engine::Impl::NodeLeft(const NodeSource& from) {
  const std::string& name = from.name;
  const auto found = nodes.find(name);
  if (found == nodes.end() || found->second.port.get() != from.port) {
    return;  // Refused, or already replaced.
  }
  LogWarning("lost ", name);
  nodes.erase(found);
  silence.Forget(name);
  threads.Forget(name);
  NoteLosses([&] { membership.Leave(name); });
  if (membership.phase() == core::MembershipPhase::kWaiting) {
    StopServing(absl::UnavailableError(
        absl::StrCat("node ", name, " is gone and the cluster cannot go on without it")));
  }
}

// Remembers the members that the change takes away, for the epoch that follows.
void Engine::Impl::NoteLosses(const std::function<void()>& change) {
  const std::vector<std::string> before = NamesOf(Members());
  change();
  for (const std::string& name : before) {
    if (!membership.IsThere(name)) {  // Else it only has no part for now, like a stage that waits.
      lost_names.push_back(name);
    }
  }
}

void Engine::Impl::NodeReady(const std::string& name, uint64_t epoch) {
  if (epoch == membership.epoch()) {
    threads.Answered(name, silence.awake());
  }
  membership.Ready(name, epoch);
}

void Engine::Impl::NodeFault(const std::string& name, uint64_t epoch, const absl::Status& status) {
  std::string peer = control::BlamedIn(status);
  LogError("fault of ", name, " epoch ", epoch, peer.empty() ? "" : " blames ", peer, ": ",
           status.message());
  if (epoch == membership.epoch()) {
    threads.Answered(name, silence.awake());
  }
  if (control::IsTransportFault(status) && PassOverTransport(name, epoch, status)) {
    return;
  }
  // A node that says nothing of a peer failed by itself, unless it is the transport that failed.
  if (peer.empty() && !control::IsTransportFault(status)) {
    peer = name;
  }
  NoteLosses([&] { membership.Fault(name, epoch, status, peer); });
  if (membership.phase() == core::MembershipPhase::kWaiting) {
    StopServing(absl::UnavailableError(absl::StrCat("node ", name, ": ", status.message())));
  }
}

// What was set aside is tried again with the first transport, as a node that joins is.
void Engine::Impl::RetrySetAside() {
  if (membership.Tick(clock.Now())) {
    LogInfo("tries again what was set aside: ", membership.Describe());
    transport.Reset();
  }
}

// Whether another transport of the list is tried. A second node that says the same changes nothing.
bool Engine::Impl::PassOverTransport(const std::string& name, uint64_t epoch,
                                     const absl::Status& status) {
  core::TransportChoice next = transport;
  if (!next.PassOver(name, std::string(status.message())) || !membership.StartAnew(name, epoch)) {
    return false;
  }
  transport = next;
  LogWarning(transport.Warning());
  return true;
}

void Engine::Impl::NodePrepared(const std::string& name, uint64_t epoch,
                                const control::PreparedNode& prepared) {
  membership.Prepared(name, epoch, prepared.region);
  if (const auto node = nodes.find(name); node != nodes.end() && epoch == membership.epoch()) {
    node->second.windows = prepared.windows;
    threads.Answered(name, silence.awake());
    LogInfo("prepared ", name, " epoch ", epoch, " windows in ", prepared.windows);
  }
}

void Engine::Impl::NodeLinks(const std::string& name, uint64_t epoch,
                             std::vector<control::LinkReport> links) {
  const auto node = nodes.find(name);
  if (node == nodes.end() || epoch != membership.epoch()) {
    return;
  }
  for (const control::LinkReport& link : links) {
    LogInfo("link ", name, " ", link.peer, " by ", link.path,
            absl::StrFormat(" latency %.1f us bandwidth ", link.latency_seconds * 1e6),
            FormatBytes(static_cast<uint64_t>(link.bytes_per_second)), "/s");
  }
  node->second.links = std::move(links);
}

}  // namespace lamina::coordinator
