// SPDX-License-Identifier: Apache-2.0
//
// QueryChecks: what is wrong with a query window, if anything. Every refusal of a memory node is
// made, named and counted here.
//
// A raised signal over a header of the past means that somebody wrote who should not have: the rows
// cannot be trusted, nor the signal. So a stale window ends the epoch as any other wrong one does.
//
// Threading: the data thread. Allocation: none while windows are right.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "memory_node/node_epoch.h"
#include "plan/window_layout.h"

namespace lamina::memory_node {

class QueryChecks {
 public:
  explicit QueryChecks(const NodeEpoch& epoch) : epoch_(epoch) {}

  // Whether a header is the expected one. Errors: as plan::CheckHeader().
  absl::Status Header(const plan::WindowHeader& header, const plan::WindowHeader& expected) const;

  // Whether a header is as it was sealed, and the expected one. Errors: as plan::CheckSeal() and
  // plan::CheckHeader().
  absl::Status SealedHeader(const plan::WindowHeader& header,
                            const plan::WindowHeader& expected) const;

  // Whether it says what the signal value says that announced it.
  absl::Status BySignal(const plan::WindowHeader& header, uint32_t sender, const Lane& lane,
                        uint64_t value) const;

  // Whether it says what the lane's plan says of the layer.
  absl::Status ByPlan(const plan::WindowHeader& header, uint32_t sender, const Lane& lane,
                      uint32_t layer) const;
  plan::WindowHeader Planned(uint32_t sender, const Lane& lane, uint32_t layer) const;

  // Whether it is the sender's turn. Errors: kInternal.
  absl::Status Turn(uint32_t sender, uint32_t shard, const Lane& lane, uint32_t layer) const;

  // Refusals. The sender takes no part in the lane, or has no heads here:
  absl::Status NoPart(uint32_t sender, const Lane& lane) const;
  // The sender raised `value` before the unit before it was complete:
  absl::Status LeftUnit(uint32_t sender, const Lane& lane, uint64_t value) const;
  // The plan of the window's step has not come in time:
  absl::Status Unplanned(uint32_t sender, const Lane& lane, uint64_t value) const;
  // The device saw a header that was `stale`, or else another one, and since then it was
  // overwritten with the right one:
  absl::Status Overwritten(uint32_t sender, const Lane& lane, uint32_t layer, bool stale) const;

 private:
  absl::Status Refuse(telemetry::Refusal reason, absl::Status why) const;

  const NodeEpoch& epoch_;
};

}  // namespace lamina::memory_node
