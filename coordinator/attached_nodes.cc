// SPDX-License-Identifier: Apache-2.0
#include "coordinator/attached_nodes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lamina::coordinator {

std::vector<core::KnownLink> KnownLinksOf(const AttachedNode& node) {
  std::vector<core::KnownLink> known;
  for (const control::LinkReport& link : node.links) {
    known.push_back({.path = link.path,
                     .latency_seconds = link.latency_seconds,
                     .bytes_per_second = link.bytes_per_second});
    for (const telemetry::LinkCount& used : node.counters.links) {
      if (used.peer == link.peer) {
        known.back().exchange_seconds = used.exchange_seconds;
        known.back().exchange_bytes_per_second = used.exchange_bytes_per_second;
        known.back().fetched_bytes_per_second_least = used.fetched_bytes_per_second_least;
        known.back().fetched_bytes_per_second_most = used.fetched_bytes_per_second_most;
        known.back().fetched_unbounded_seconds = used.fetched_unbounded_seconds;
      }
    }
  }
  return known;
}

AttachedNodes::AttachedNodes(const Limits& limits, Nanos now)
    : limits_(limits),
      silence_(limits.silence_max, now),
      threads_({.working = limits.stuck_after}) {}

AttachedNode& AttachedNodes::Add(AttachedNode node) {
  const std::string name = node.hello.identity.name;
  silence_.Heard(name);
  return nodes_[name] = std::move(node);
}

void AttachedNodes::Remove(const std::string& name) {
  nodes_.erase(name);
  silence_.Forget(name);
  threads_.Forget(name);
}

AttachedNode* AttachedNodes::Find(const std::string& name) {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : &found->second;
}

const AttachedNode* AttachedNodes::Find(const std::string& name) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? nullptr : &found->second;
}

bool AttachedNodes::Has(const NodeSource& from) const {
  const AttachedNode* node = Find(from.name);
  return node != nullptr && node->port.get() == from.port;
}

void AttachedNodes::Asked(const std::string& name, ThreadActivity activity) {
  threads_.Asked(name, activity, silence_.awake());
}

void AttachedNodes::Answered(const std::string& name) { threads_.Answered(name, silence_.awake()); }

void AttachedNodes::TakeStatus(const std::string& name, double busy_share,
                               const telemetry::NodeCounters& counters) {
  AttachedNode& node = nodes_.at(name);
  node.busy_share = busy_share;
  node.counters = counters;
  ++node.reports;
  for (const auto& [part, seconds] : counters.parts) {
    if (part == "attend") {
      node.attention_rate.Update(counters.kv_bytes_read, seconds);
    }
  }
  silence_.Heard(name);
  threads_.Seen(name, counters.activity, counters.beats, silence_.awake());
}

std::vector<AttachedNodes::Lost> AttachedNodes::Silent() const {
  std::vector<Lost> lost;
  for (const std::string& name : silence_.Lost()) {
    lost.push_back(
        {.name = name,
         .why = absl::StrCat("no sign of life from ", name, " for ", ToSeconds(limits_.silence_max),
                             " s", silence_.OwnDelays(name))});
  }
  return lost;
}

// A node whose data thread hangs is as good as gone, though its control threads answer.
std::vector<AttachedNodes::Lost> AttachedNodes::Stuck() const {
  std::vector<Lost> lost;
  for (const core::ThreadWatch::Stuck& stuck : threads_.Late(silence_.awake())) {
    lost.push_back({.name = stuck.name,
                    .why = absl::StrCat("left out ", stuck.name, ": ", core::Describe(stuck))});
  }
  return lost;
}

std::string AttachedNodes::DescribeJoining() const {
  std::vector<std::string> loading;
  std::vector<std::string> waiting;
  for (const auto& [name, node] : nodes_) {
    if (node.joining != Joining::kJoined) {
      (node.joining == Joining::kLoads ? loading : waiting).push_back(name);
    }
  }
  std::vector<std::string> words;
  if (!loading.empty()) {
    words.push_back(absl::StrCat(absl::StrJoin(loading, ", "),
                                 loading.size() == 1 ? " loads its layers" : " load their layers"));
  }
  if (!waiting.empty()) {
    words.push_back(absl::StrCat(absl::StrJoin(waiting, ", "),
                                 waiting.size() == 1
                                     ? " waits for the other nodes of its replica"
                                     : " wait for the other nodes of their replicas"));
  }
  return absl::StrJoin(words, "; ");
}

Nanos AttachedNodes::StillFor(const std::string& name) const {
  return threads_.StillFor(name, silence_.awake());
}

core::ServingBandwidth AttachedNodes::BandwidthOf(const std::vector<std::string>& names) const {
  std::vector<core::NodeSpeed> speeds;
  for (const std::string& name : names) {
    const AttachedNode& node = nodes_.at(name);
    speeds.push_back({.name = name,
                      .at_start = node.hello.identity.bandwidth_bytes_per_second,
                      .attending = node.attention_rate.bytes_per_second()});
  }
  return core::BandwidthOf(speeds);
}

}  // namespace lamina::coordinator
