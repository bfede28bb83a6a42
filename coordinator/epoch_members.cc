// SPDX-License-Identifier: Apache-2.0
#include "coordinator/epoch_members.h"

#include <vector>

namespace lamina::coordinator {
namespace {

std::vector<EpochMember> EpochMembersOf(const std::vector<const core::Member*>& members,
                                        const AttachedNodes& nodes) {
  std::vector<EpochMember> list;
  for (const core::Member* member : members) {
    const AttachedNode& node = nodes.at(member->name);
    list.push_back({.name = member->name,
                    .on_device = node.hello.identity.device != "cpu",
                    .fast_attention = node.hello.identity.fast_attention,
                    .slots = node.slots,
                    .capacity_bytes = node.hello.identity.capacity_bytes,
                    .spill = node.hello.identity.spill});
  }
  return list;
}

}  // namespace

EpochMembers EpochMembersOf(const core::Membership& membership, const AttachedNodes& nodes,
                            const ReplicaSplits& splits, const std::string& transport) {
  const std::vector<const core::Member*> compute = membership.compute_members();
  EpochMembers members{.epoch = membership.epoch(),
                       .transport = transport,
                       .local = membership.local(),
                       .compute = EpochMembersOf(compute, nodes),
                       .prefill_nodes = membership.prefill_members(),
                       .stages = splits.StagesOf(compute),
                       .kv = EpochMembersOf(membership.kv_members(), nodes)};
  std::vector<std::string> names;
  for (const EpochMember& member : members.kv) {
    names.push_back(member.name);
  }
  members.bandwidth = nodes.BandwidthOf(names);
  return members;
}

}  // namespace lamina::coordinator
