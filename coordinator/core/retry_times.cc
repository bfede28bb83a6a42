// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/retry_times.h"

#include <algorithm>

namespace lamina::core {

Nanos RetryTimes::SetAside(const std::string& name, Nanos now) {
  Entry& entry = entries_[name];
  const bool again = entry.pause != 0 && now - entry.tried < kMost;
  entry.pause = again ? std::min(2 * entry.pause, kMost) : kFirst;
  entry.due = now + entry.pause;
  entry.aside = true;
  entry.trial = false;
  return entry.pause;
}

std::vector<std::string> RetryTimes::Due(Nanos now) {
  std::vector<std::string> due;
  for (auto& [name, entry] : entries_) {
    if (entry.aside && entry.due <= now) {
      entry.aside = false;
      entry.trial = true;
      entry.tried = now;
      due.push_back(name);
    }
  }
  return due;
}

bool RetryTimes::OnTrial(const std::string& name) const {
  const auto found = entries_.find(name);
  return found != entries_.end() && found->second.trial;
}

void RetryTimes::NoteLeft(const std::string& name, bool soon) {
  Entry& entry = entries_[name];
  const uint32_t leaves = soon ? entry.leaves + 1 : 0;
  if (leaves < kLeavesMax) {
    entry = {};
  }
  entry.leaves = leaves;
  entry.aside = entry.trial = false;
}

bool RetryTimes::ComesAndGoes(const std::string& name) const {
  const auto found = entries_.find(name);
  return found != entries_.end() && found->second.leaves >= kLeavesMax;
}

void RetryTimes::NoteProgress() {
  for (auto& [name, entry] : entries_) {
    entry.trial = false;
  }
}

}  // namespace lamina::core
