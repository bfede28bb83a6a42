// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_measures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "coordinator/core/policy_choice.h"

namespace lamina::coordinator {
namespace {

const MeasuredNode& SlowestAttending(const PolicyMeasures& measures) {
  return *std::min_element(measures.compute.begin(), measures.compute.end(),
                           [](const MeasuredNode& a, const MeasuredNode& b) {
                             return a.times.attention_local < b.times.attention_local;
                           });
}

// To memory nodes they add up; within a replica the slowest counts.
void AddLinks(const core::Member& member, const std::vector<core::Member>& all,
              const AttachedNode& node, PolicyMeasures& measures) {
  const std::vector<core::KnownLink> known = KnownLinksOf(node);
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i].bytes_per_second <= 0) {
      continue;
    }
    const double bandwidth = core::BelievedBandwidth(known[i]);
    const auto peer = std::find_if(all.begin(), all.end(), [&](const core::Member& other) {
      return other.name == node.links[i].peer;
    });
    cost::PartLink& parts = measures.parts;
    if (peer == all.end()) {
      continue;
    }
    if (peer->is_memory) {
      measures.link += bandwidth;
    } else if (!member.replica.empty() && peer->replica == member.replica) {
      parts.latency_seconds = std::max(parts.latency_seconds, core::BelievedLatency(known[i]));
      parts.bytes_per_second =
          parts.bytes_per_second == 0 ? bandwidth : std::min(parts.bytes_per_second, bandwidth);
    }
  }
}

}  // namespace

PolicyMeasures MeasuresOf(const core::Membership& membership, const AttachedNodes& nodes,
                          const ReplicaSplits& splits) {
  PolicyMeasures measures;
  for (const core::Member& member : membership.all()) {
    if (member.is_memory && membership.IsThere(member.name)) {
      const control::NodeIdentity& identity = nodes.at(member.name).hello.identity;
      measures.bandwidth[member.name] = identity.bandwidth_bytes_per_second;
      measures.memory += identity.capacity_bytes;
      measures.largest_memory = std::max(measures.largest_memory, identity.capacity_bytes);
      if (identity.policy_times.attention_local > 0) {
        measures.attention[member.name] = identity.policy_times.attention_local;
      }
    }
  }
  const std::vector<const core::Member*> compute = membership.compute_members();
  const std::vector<plan::Stage> stages = splits.RunBy(compute);
  for (size_t i = 0; i < compute.size(); ++i) {
    const AttachedNode& node = nodes.at(compute[i]->name);
    measures.compute.push_back({.name = compute[i]->name,
                                .stage = stages[i],
                                .times = node.hello.identity.policy_times,
                                .capacity = node.hello.identity.capacity_bytes});
    AddLinks(*compute[i], membership.all(), node, measures);
  }
  std::stable_sort(measures.compute.begin(), measures.compute.end(),
                   [](const MeasuredNode& a, const MeasuredNode& b) {
                     return std::pair(a.stage.replica, a.stage.first_layer) <
                            std::pair(b.stage.replica, b.stage.first_layer);
                   });
  return measures;
}

std::vector<PolicyMeasures> EndsOf(const PolicyMeasures& measures) {
  if (std::all_of(measures.compute.begin(), measures.compute.end(),
                  [](const MeasuredNode& node) { return node.times.ends.empty(); })) {
    return {};
  }
  std::vector<PolicyMeasures> ends(plan::kReadsEnds, measures);
  for (size_t end = 0; end < ends.size(); ++end) {
    for (size_t i = 0; i < measures.compute.size(); ++i) {
      const plan::PolicyTimes& times = measures.compute[i].times;
      if (!times.ends.empty()) {
        ends[end].compute[i].times = times.ends[end];
      }
    }
  }
  return ends;
}

std::string DescribeReads(const PolicyMeasures& measures) {
  const MeasuredNode* widest = nullptr;
  for (const MeasuredNode& node : measures.compute) {
    const plan::PolicyTimes& own = node.times;
    if (own.reads_low > 0 && (widest == nullptr || own.reads_high * widest->times.reads_low >
                                                       widest->times.reads_high * own.reads_low)) {
      widest = &node;
    }
  }
  return widest == nullptr
             ? ""
             : absl::StrFormat("%s read %.1f to %.1f GB/s while it was measured", widest->name,
                               widest->times.reads_low / 1e9, widest->times.reads_high / 1e9);
}

std::vector<cost::MeasuredReplica> ReplicasOf(const PolicyMeasures& measures,
                                              const std::vector<AttentionDescriptor>& layers,
                                              double context) {
  std::vector<cost::MeasuredReplica> replicas;
  const plan::Stage* before = nullptr;
  for (const MeasuredNode& node : measures.compute) {
    const plan::Stage& stage = node.stage;
    if (before == nullptr || before->replica != stage.replica) {
      replicas.emplace_back();
      before = nullptr;
    }
    std::vector<cost::ReplicaStage>& stages = replicas.back().stages;
    if (before == nullptr || before->first_layer != stage.first_layer) {
      // Slice 0 has next to nothing.
      stages.push_back({.slices = stage.layers - (stage.first_layer == 0 ? 1 : 0),
                        .tail = stage.first_layer + stage.layers == layers.size()});
    }
    stages.back().shards.push_back({.times = node.times,
                                    .kv_bytes_per_token = core::KvBytesReadPerToken(
                                        plan::LayersOfStage(layers, stage), context)});
    before = &stage;
  }
  return replicas;
}

LocalRoom LocalRoomOf(const PolicyMeasures& measures,
                      const std::vector<AttentionDescriptor>& layers) {
  std::map<uint32_t, std::pair<uint64_t, const MeasuredNode*>> replicas;  // The least of each.
  for (const MeasuredNode& node : measures.compute) {
    if (node.capacity == 0) {
      continue;
    }
    const uint64_t tokens =
        node.capacity / KvBytesPerToken(plan::LayersOfStage(layers, node.stage));
    const auto [least, is_new] = replicas.try_emplace(node.stage.replica, tokens, &node);
    if (!is_new && tokens < least->second.first) {
      least->second = {tokens, &node};
    }
  }
  LocalRoom room;
  for (const auto& [replica, least] : replicas) {
    const auto tokens = static_cast<double>(least.first);
    room.tokens += tokens;
    if (room.least_node.empty() || tokens < room.least) {
      room.least = tokens;
      room.least_node = least.second->name;
    }
  }
  return room;
}

double AttendedShare(const PolicyMeasures& measures) {
  const plan::PolicyTimes& slowest = SlowestAttending(measures).times;
  return slowest.read_bandwidth > 0
             ? std::min(1.0, slowest.attention_local / slowest.read_bandwidth)
             : 1;
}

}  // namespace lamina::coordinator
