// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>

#include "common/shared_bus.h"
#include "common/thread_beat.h"
#include "telemetry/refusals.h"
#include "telemetry/unit_line.h"
#include "telemetry/work_meter.h"

namespace lamina::memory_node {

// Counts that other threads read while a worker runs. Written by the worker alone, the beat
// also by who prepares an epoch.
struct WorkerCounters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> kv_bytes_read{0};
  std::atomic<uint64_t> units{0};
  std::atomic<uint64_t> device_units{0};  // Those of `units` that the device served itself.
  BusTally bus;                           // In the direction to compute nodes.
  telemetry::UnitLine unit_line;
  telemetry::Refusals refusals;
  telemetry::WorkMeter meter;
  ThreadBeat beat;
};

}  // namespace lamina::memory_node
