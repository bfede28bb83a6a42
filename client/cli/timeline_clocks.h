// SPDX-License-Identifier: Apache-2.0
//
// One clock for a timeline of several nodes.

#pragma once

#include <vector>

#include "client/tracing.h"
#include "common/clock.h"

namespace lamina::cli {

// How a node's times were moved.
struct NodeClock {
  Nanos measured = 0;  // What the control plane measured: its clock less the coordinator's.
  Nanos error = 0;     // How far that may be off.
  Nanos shift = 0;     // What was taken off its times.
};

// Puts all events of the timeline on the coordinator's clock: takes off what the control plane
// measured, and then, where that is more exact, what the data says: between two nodes the fastest
// way there and the fastest way back take equally long. No put arrives before it was made. Returns
// one entry for each node.
std::vector<NodeClock> PutOnOneClock(client::Timeline& timeline);

}  // namespace lamina::cli
