// SPDX-License-Identifier: Apache-2.0
//
// PolicyTurn: one of several turns in which a compute node measures for policy auto all that its
// steps may consist of, so that what is compared with each other ran within a fraction of a second;
// and what such turns say together.
//
// On a host whose reads have two speeds (reads_seen.h) times differ by turn, and with them, often,
// which policy is faster. So a turn knows the reads before it and behind it. One in which they
// changed says nothing of either speed, for one policy's parts met one speed and the other's the
// other. Of the others, those with slow reads and those with fast ones are put together each by
// itself, by medians; figures of the two are never mixed.
//
// Threading: plain values.   Determinism: pure functions.

#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "plan/policy_times.h"

namespace lamina::compute_node {

struct PolicyTurn {
  double reads_before = 0;  // Bytes a second that all threads read, 0: not known; right before it
  double reads_after = 0;   // and right after it.
  // What was measured in it, of the same numbers of rows in each turn; its read_bandwidth, reads
  // and ends are not looked at.
  plan::PolicyTimes times = {};
};

// The figures of the larger one of the groups of turns, of slow reads if both are alike; with the
// lowest and highest reads before and after any turn, and, where there are two groups, with both as
// its ends. Where reads changed within every turn, all turns count as one group.
// Requires: at least one turn; reads >= 0.
plan::PolicyTimes TimesOfTurns(absl::Span<const PolicyTurn> turns);

}  // namespace lamina::compute_node
