// SPDX-License-Identifier: Apache-2.0
//
// Refusals: windows that a node did not take, counted by what was wrong with them.
//
// Threading: Count() from one thread, reading from any.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/window_layout.h"

namespace lamina::telemetry {

enum class Refusal : uint8_t {
  kDamaged,  // No header, or another header or other data than were sent.
  kStale,    // It belongs to an earlier epoch, step or layer.
  kEpoch,    // It belongs to a later epoch.
  kLane,
  kStep,
  kLayer,
  kRows,  // More or fewer than planned.
  kSender,
  kSchedule,   // Right, but not this sender's turn.
  kUnplanned,  // Right, but no plan of its step came in time.
};
inline constexpr int kRefusals = static_cast<int>(Refusal::kUnplanned) + 1;

// Why CheckHeader() refuses `header`. Requires: it does.
Refusal RefusalOf(const plan::WindowHeader& header, const plan::WindowHeader& expected);

class Refusals {
 public:
  void Count(Refusal reason);
  uint64_t total() const;
  // Every reason with its count: "stale", 0.
  std::vector<std::pair<std::string, uint64_t>> ByReason() const;

 private:
  std::array<std::atomic<uint64_t>, kRefusals> counts_{};
};

}  // namespace lamina::telemetry
