// SPDX-License-Identifier: Apache-2.0
//
// A timeline as Chrome's trace events, which Perfetto reads: one JSON object.
//
//   process "coordinator"   requests and steps
//   process "lanes"         a row for each lane: its steps, and in them dense layers and attention
//   a process for each node its worker, and a row for each link to another node
//
// Arrows go from a put to where the data was used. Times are microseconds since the first event.

#pragma once

#include <cstddef>
#include <string>

#include "client/tracing.h"

namespace lamina::cli {

// Leaves only what is of the timeline's own epoch, its last: each one numbers its steps, lanes and
// peers anew. Returns how many steps of others it took out. Node events are known by when they
// ended, so that those before the first planned step go too, if any step did.
// Requires: each node on its own clock, as they are recorded.
size_t KeepLastEpoch(client::Timeline& timeline);

// Requires: all nodes on one clock (PutOnOneClock), and one epoch (KeepLastEpoch).
std::string ToTraceEvents(const client::Timeline& timeline);

}  // namespace lamina::cli
