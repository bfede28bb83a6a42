// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/silence.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace lamina::core {

void NodeSilence::Heard(const std::string& name) {
  heard_[name] = {.awake = awake_, .late = late_};
}

Nanos NodeSilence::Turn(Nanos now) {
  const Nanos turn = now - last_turn_;
  const Nanos counted = std::min(turn, kTurnMost);
  last_turn_ = now;
  awake_ += counted;
  late_ += turn - counted;
  return turn - counted;
}

std::vector<std::string> NodeSilence::Lost() const {
  std::vector<std::string> lost;
  if (most_ == 0) {
    return lost;
  }
  for (const auto& [name, mark] : heard_) {
    if (awake_ - mark.awake > most_) {
      lost.push_back(name);
    }
  }
  return lost;
}

std::string NodeSilence::OwnDelays(const std::string& name) const {
  const auto found = heard_.find(name);
  if (found == heard_.end() || found->second.late == late_) {
    return "";
  }
  return absl::StrFormat(
      "; its own event loop stood still for %.1f s of that time, which do not count",
      ToSeconds(late_ - found->second.late));
}

}  // namespace lamina::core
