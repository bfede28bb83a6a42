// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>

#include "common/shared_bus.h"
#include "common/thread_beat.h"
#include "telemetry/fitted_seconds.h"
#include "telemetry/refusals.h"
#include "telemetry/unit_line.h"
#include "telemetry/work_meter.h"

namespace lamina::compute_node {

// Counts that other threads read while a worker runs. Written by the worker alone, the beat
// also by who prepares an epoch.
struct StepCounters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> kv_bytes_read{0};  // Policy local.
  std::atomic<uint64_t> units{0};
  std::atomic<uint64_t> replayed_units{0};
  std::atomic<uint64_t> device_units{0};
  std::atomic<uint64_t> recomputed_tokens{0};  // Times layers: K and V made from activations.
  std::atomic<uint64_t> streamed_bytes{0};     // Weights' in a step; written by who loads them.
  BusTally bus;                                // In the direction from the node.
  telemetry::SharedFit making;                 // K and V of a layer's tokens, over these.
  telemetry::UnitLine unit_line;
  telemetry::Refusals refusals;
  telemetry::WorkMeter meter;
  ThreadBeat beat;
};

}  // namespace lamina::compute_node
