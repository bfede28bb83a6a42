// SPDX-License-Identifier: Apache-2.0
#include "coordinator/departures.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/log.h"

namespace lamina::coordinator {

void Departures::Asked(const NodeSource& node, Nanos now) {
  const auto known = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const NodeSource& other) { return other.port == node.port; });
  if (known != nodes_.end()) {
    return;
  }
  LogInfo(node.name, " was told to stop, and asks to be let go");
  if (nodes_.empty()) {
    first_ = now;
  }
  nodes_.push_back(node);
}

void Departures::Keep(const std::function<bool(const NodeSource&)>& is_there) {
  std::erase_if(nodes_, [&](const NodeSource& node) { return !is_there(node); });
  if (nodes_.empty()) {
    held_.clear();
  }
}

std::vector<std::string> Departures::Due(Nanos now) const {
  return !nodes_.empty() && now >= first_ + kTogether ? asking() : std::vector<std::string>();
}

std::vector<std::string> Departures::asking() const {
  std::vector<std::string> names;
  for (const NodeSource& node : nodes_) {
    names.push_back(node.name);
  }
  return names;
}

void Departures::Hold(bool hold) {
  const std::string before = held_;
  held_ = hold ? absl::StrJoin(nodes_, ", ",
                               [](std::string* out, const NodeSource& node) { *out += node.name; })
               : "";
  if (!held_.empty() && held_ != before) {
    LogInfo("the cluster cannot serve without ", held_,
            ": new requests are refused, and they go when the others have finished");
  }
}

}  // namespace lamina::coordinator
