// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/thread_watch.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace lamina::core {

void ThreadWatch::Seen(const std::string& name, ThreadActivity activity, uint64_t beats,
                       Nanos now) {
  const auto [found, is_new] = nodes_.try_emplace(name);
  Node& node = found->second;
  if (is_new || node.beats != beats || node.activity != activity) {
    node.beats = beats;
    node.activity = activity;
    node.moved = now;
  }
}

void ThreadWatch::Asked(const std::string& name, ThreadActivity activity, Nanos now) {
  Node& node = nodes_[name];
  node.asked = activity;
  node.moved = now;
}

void ThreadWatch::Answered(const std::string& name, Nanos now) {
  if (const auto found = nodes_.find(name); found != nodes_.end()) {
    found->second.asked = ThreadActivity::kNone;
    found->second.moved = now;
  }
}

// What was asked counts, whatever the node says: the thread that is to answer may be the one that
// hangs. Only weights may be loaded on the way.
ThreadActivity ThreadWatch::DoneBy(const Node& node) {
  return node.asked == ThreadActivity::kNone || node.activity == ThreadActivity::kLoading
             ? node.activity
             : node.asked;
}

Nanos ThreadWatch::LimitOf(ThreadActivity activity) const {
  switch (activity) {
    case ThreadActivity::kNone:
      return INT64_MAX;
    case ThreadActivity::kIdle:  // It beats between naps.
    case ThreadActivity::kWorking:
      return limits_.working;
    case ThreadActivity::kLoading:
      return std::max(limits_.working, limits_.loading);
    case ThreadActivity::kPreparing:
      return std::max(limits_.working, limits_.preparing);
    case ThreadActivity::kConnecting:
      return std::max(limits_.working, limits_.connecting);
  }
  return INT64_MAX;
}

std::vector<ThreadWatch::Stuck> ThreadWatch::Late(Nanos now) const {
  std::vector<Stuck> late;
  if (limits_.working == 0) {
    return late;
  }
  for (const auto& [name, node] : nodes_) {
    const ThreadActivity doing = DoneBy(node);
    if (now - node.moved > LimitOf(doing)) {
      late.push_back({.name = name, .doing = doing, .still = now - node.moved});
    }
  }
  return late;
}

Nanos ThreadWatch::StillFor(const std::string& name, Nanos now) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? 0 : now - found->second.moved;
}

std::string Describe(const ThreadWatch::Stuck& stuck) {
  return absl::StrFormat("its data thread has not moved for %.1f s, %s", ToSeconds(stuck.still),
                         NameOf(stuck.doing));
}

}  // namespace lamina::core
