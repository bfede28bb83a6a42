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

#include <string>

#include "client/tracing.h"

namespace lamina::cli {

// Requires: all nodes on one clock (PutOnOneClock).
std::string ToTraceEvents(const client::Timeline& timeline);

}  // namespace lamina::cli
