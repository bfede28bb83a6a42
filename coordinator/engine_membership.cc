// SPDX-License-Identifier: Apache-2.0
//
// Who takes part: nodes that join, leave, fail and fall silent, and the epochs that follow.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/units.h"
#include "common/version.h"
#include "coordinator/engine_internal.h"

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

void Engine::Impl::Configure() {
  std::vector<std::string> names;
  std::vector<core::MemoryNodeShare> shares;
  for (const core::Member* member : membership.memory_members()) {
    const Node& node = nodes.at(member->name);
    names.push_back(member->name);
    shares.push_back(
        {.name = member->name,
         .slots = node.slots,
         .bandwidth_bytes_per_second = node.hello.identity.bandwidth_bytes_per_second});
  }
  std::vector<std::string> lost;
  for (const std::string& name : memory_names) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      lost.push_back(name);
    }
  }
  memory_names = names;
  chunks_planned.assign(options.scheduler.lanes, {});
  reports.Reset(static_cast<uint32_t>(membership.compute_members().size()),
                options.scheduler.lanes);
  core::Events events;
  scheduler.StartEpoch(membership.epoch(), shares, lost, events);
  Deliver(events);
  const control::EpochConfig config = MakeConfig(shares);
  LogInfo("configuring epoch ", config.epoch, " compute ", absl::StrJoin(config.compute_nodes, ","),
          " memory ", absl::StrJoin(config.memory_nodes, ","));
  for (const core::Member* member : Members()) {
    nodes.at(member->name).port->Configure(config);
  }
}

control::EpochConfig Engine::Impl::MakeConfig(
    const std::vector<core::MemoryNodeShare>& shares) const {
  control::EpochConfig config{.epoch = membership.epoch(),
                              .mode = options.mode,
                              .lanes = options.scheduler.lanes,
                              .plan_ahead = options.scheduler.plan_ahead,
                              .rows_max = options.scheduler.rows_max,
                              .chunk_tokens_max = options.scheduler.step_tokens_max,
                              .scratch_tokens = options.scheduler.scratch_tokens,
                              .sequence_tokens_max = options.scheduler.sequence_tokens_max,
                              .layers = options.layers,
                              .transport = options.transport};
  for (const core::Member* member : membership.compute_members()) {
    config.compute_nodes.push_back(member->name);
  }
  for (const core::MemoryNodeShare& share : shares) {
    config.memory_nodes.push_back(share.name);
    config.slots.push_back(share.slots);
  }
  return config;
}

void Engine::Impl::Connect() {
  control::EpochPeers peers{.epoch = membership.epoch()};
  for (const core::Member* member : membership.compute_members()) {
    peers.compute_regions.push_back(member->region);
  }
  for (const core::Member* member : membership.memory_members()) {
    peers.memory_regions.push_back(member->region);
  }
  for (const core::Member* member : Members()) {
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
  if (identity.is_memory && slots < least) {
    return absl::FailedPreconditionError(
        absl::StrCat("memory node ", identity.name, " has ", FormatBytes(identity.capacity_bytes),
                     ": room for ", slots, " tokens, but one request may have ", least,
                     " (limits.sequence_tokens_max); raise its capacity to ",
                     FormatBytes(slot_bytes * least), " or lower the limit"));
  }
  return absl::OkStatus();
}

void Engine::Impl::NodeJoined(const NodeHello& hello, std::shared_ptr<NodePort> port) {
  const std::string& name = hello.identity.name;
  absl::Status status = CheckHello(hello);
  if (status.ok()) {
    status = membership.Join(name, hello.identity.is_memory);
  }
  if (!status.ok()) {
    LogWarning("refused node ", name, ": ", status.message());
    port->Refuse(std::string(status.message()));
    return;
  }
  const auto slots = static_cast<uint32_t>(
      std::min<uint64_t>(hello.identity.capacity_bytes / slot_bytes, uint64_t{1} << 31));
  nodes[name] = {
      .hello = hello, .port = std::move(port), .slots = slots, .last_heard = clock.Now()};
  LogInfo("joined ", name, " pid ", hello.pid, " kernels ", hello.identity.kernels);
}

void Engine::Impl::NodeLeft(const std::string& name, const NodePort* port) {
  const auto found = nodes.find(name);
  if (found == nodes.end() || found->second.port.get() != port) {
    return;  // Refused, or already replaced.
  }
  LogWarning("lost ", name);
  nodes.erase(found);
  membership.Leave(name);
  if (membership.phase() == core::MembershipPhase::kWaiting) {
    core::Events events;
    scheduler.FailAll(absl::UnavailableError(absl::StrCat(
                          "node ", name, " is gone and the cluster cannot go on without it")),
                      events);
    Deliver(events);
  }
}

void Engine::Impl::DropSilentNodes() {
  if (options.node_silence_max == 0) {
    return;
  }
  const Nanos oldest = clock.Now() - options.node_silence_max;
  std::vector<std::pair<std::string, std::shared_ptr<NodePort>>> silent;
  for (const auto& [name, node] : nodes) {
    if (node.last_heard < oldest) {
      silent.emplace_back(name, node.port);
    }
  }
  for (const auto& [name, port] : silent) {
    LogWarning("no sign of life from ", name, " for ", ToSeconds(options.node_silence_max), " s");
    port->End();
    NodeLeft(name, port.get());
  }
}

void Engine::Impl::NodeFault(const std::string& name, uint64_t epoch, const absl::Status& status,
                             const std::string& peer) {
  LogError("fault of ", name, " epoch ", epoch, peer.empty() ? "" : " blames ", peer, ": ",
           status.message());
  membership.Fault(name, epoch, status, peer);
  if (membership.phase() == core::MembershipPhase::kWaiting) {
    core::Events events;
    scheduler.FailAll(absl::UnavailableError(absl::StrCat("node ", name, ": ", status.message())),
                      events);
    Deliver(events);
  }
}

}  // namespace lamina::coordinator
