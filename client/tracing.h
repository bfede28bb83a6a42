// SPDX-License-Identifier: Apache-2.0
//
// RecordTimeline: what every data thread of a cluster did for a while. `lamina trace` makes a file
// of it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cancellation.h"
#include "client/client.h"
#include "common/clock.h"
#include "telemetry/trace_ring.h"

namespace lamina::client {

// One node's part, in its own clock.
struct NodeTimeline {
  std::string name;
  bool is_memory = false;
  bool prefill = false;                       // A compute node for prefill only.
  std::vector<telemetry::TraceEvent> events;  // Oldest first; peers by their index in its role.
  uint64_t dropped = 0;                       // Older ones that had no room.
  Nanos clock_offset = 0;                     // Its clock less the coordinator's.
  Nanos clock_error = 0;                      // How far clock_offset may be off.
};

// By the coordinator's clock.
struct StepTimeline {
  uint64_t epoch = 0;
  uint32_t lane = 0;
  uint64_t step = 0;
  Nanos planned = 0;
  Nanos done = 0;  // 0: not yet.
  uint32_t rows = 0;
  uint32_t chunk_tokens = 0;
  std::vector<std::string> requests;  // What logs call them.
};

struct RequestTimeline {
  std::string request_id;
  std::string id;
  Nanos arrived = 0;
  Nanos started = 0;      // 0: not yet.
  Nanos first_token = 0;  // 0: not yet.
  Nanos ended = 0;        // Or when the timeline ended.
};

struct Timeline {
  uint64_t epoch = 0;
  Nanos began = 0;
  Nanos ended = 0;
  std::vector<NodeTimeline> nodes;  // Compute nodes, then memory nodes, each in their order.
  std::vector<StepTimeline> steps;
  std::vector<RequestTimeline> requests;
  uint64_t dropped = 0;                // Steps and requests beyond the coordinator's bounds.
  uint32_t prefill_lane = UINT32_MAX;  // From here on lanes are prefill nodes'.
};

// Records for `length`, or until `cancellation`, and returns what there is by then.
// Errors: kUnavailable       no coordinator there.
//         kInvalidArgument   length beyond a minute.
//         kDeadlineExceeded  a node's part did not come; names the node.
absl::StatusOr<Timeline> RecordTimeline(const ConnectOptions& options, Nanos length,
                                        const Cancellation& cancellation);

}  // namespace lamina::client
