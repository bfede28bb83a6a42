// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>

#include "common/thread_beat.h"
#include "control/epoch_shape.h"
#include "control/refusals.h"
#include "control/work_meter.h"

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
  control::UnitLine unit_line;
  control::Refusals refusals;
  control::WorkMeter meter;
  ThreadBeat beat;
};

}  // namespace lamina::compute_node
