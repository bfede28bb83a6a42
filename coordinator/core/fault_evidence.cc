// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/fault_evidence.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lamina::core {
namespace {

// The greater, the more speaks for setting the node aside.
struct Case {
  size_t accusers = 0;
  int64_t not_connected = 0;  // Minus the number of those that could connect to it.
  bool dispensable = false;

  auto operator<=>(const Case&) const = default;
};

bool IsDispensable(const std::vector<FaultEvidence::Suspect>& nodes, absl::string_view name) {
  return std::any_of(nodes.begin(), nodes.end(), [&](const FaultEvidence::Suspect& node) {
    return node.name == name && !node.needed;
  });
}

}  // namespace

void FaultEvidence::Accuse(const std::string& reporter, const std::string& accused, uint64_t epoch,
                           bool late, absl::string_view message) {
  Words& words = words_[{accused, reporter}];
  if (epoch >= words.epoch) {
    words.epoch = epoch;
    words.message = std::string(message);
  }
  if (!late) {
    words.in_time = std::max(epoch, words.in_time);
  }
}

void FaultEvidence::Connected(const std::string& name, bool is_memory, uint64_t epoch) {
  Connection& connection = connected_[name];
  connection = {.is_memory = is_memory, .epoch = std::max(epoch, connection.epoch)};
}

void FaultEvidence::Forget(const std::string& name) {
  connected_.erase(name);
  std::erase_if(words_, [&](const auto& entry) {
    return entry.first.first == name || entry.first.second == name;
  });
}

void FaultEvidence::Clear() {
  connected_.clear();
  words_.clear();
}

bool FaultEvidence::Blames(const std::string& reporter, const std::string& accused,
                           uint64_t since) const {
  const auto found = words_.find({accused, reporter});
  return found != words_.end() && found->second.epoch >= since;
}

std::vector<std::string> FaultEvidence::AccusersOf(const std::string& name, uint64_t since) const {
  std::vector<std::string> accusers;
  for (const auto& [pair, words] : words_) {
    const auto& [accused, reporter] = pair;
    if (accused == name && words.epoch >= since &&
        (words.in_time >= since || Blames(accused, reporter, since))) {
      accusers.push_back(reporter);
    }
  }
  return accusers;
}

// Memory nodes open regions of compute nodes alone.
uint32_t FaultEvidence::ConnectedTo(const Suspect& node, uint64_t since) const {
  return static_cast<uint32_t>(
      std::count_if(connected_.begin(), connected_.end(), [&](const auto& entry) {
        const auto& [name, connection] = entry;
        return name != node.name && connection.epoch >= since &&
               !(connection.is_memory && node.is_memory);
      }));
}

std::optional<FaultEvidence::Verdict> FaultEvidence::Decide(const std::vector<Suspect>& nodes,
                                                            uint64_t since) const {
  const Suspect* worst = nullptr;
  Case against;
  bool guess = false;
  for (const Suspect& node : nodes) {
    const Case own{.accusers = AccusersOf(node.name, since).size(),
                   .not_connected = -int64_t{ConnectedTo(node, since)},
                   .dispensable = !node.needed};
    if (own.accusers == 0 || (worst != nullptr && own < against)) {
      continue;
    }
    const bool tie = worst != nullptr && own == against;
    guess = tie && node.needed;
    if (!tie || node.is_memory >= worst->is_memory) {
      worst = &node;
      against = own;
    }
  }
  if (worst == nullptr || guess) {
    return std::nullopt;
  }
  const std::vector<std::string> accusers = AccusersOf(worst->name, since);
  const std::string& message = words_.at({worst->name, accusers.front()}).message;
  const bool alone = accusers.size() == 1 && accusers.front() == worst->name;
  if (worst->needed && accusers.size() == 1 && !alone && IsDispensable(nodes, accusers.front())) {
    return Verdict{.name = accusers.front(),
                   .problem = absl::StrCat("blames ", worst->name,
                                           ", without which nothing can serve: ", message)};
  }
  return Verdict{
      .name = worst->name,
      .problem = alone ? message
                       : absl::StrCat("blamed by ", absl::StrJoin(accusers, ", "), ": ", message)};
}

}  // namespace lamina::core
