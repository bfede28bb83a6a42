// SPDX-License-Identifier: Apache-2.0
//
// What the coordinator shows on /metrics: requests by the names that vLLM gave them, where the
// meaning is the same, and the cluster as lamina_*.
//
// Threading: any; all but RequestMetricsText() wait for the engine's thread to report its status.

#pragma once

#include <cstdint>
#include <string>

#include "common/clock.h"
#include "coordinator/engine.h"

namespace lamina::coordinator {

// The page, in Prometheus's text format. `started`: when the coordinator did, by `clock`.
std::string MetricsText(Engine& engine, const std::string& model_name, const Clock& clock,
                        Nanos started);

// The metrics vllm:* of the page, for a gateway to pass on. `status`: of the engine.
std::string RequestMetricsText(const Engine& engine, const EngineStatus& status,
                               const std::string& model_name);

struct JournalCounts {
  bool on = false;             // The disk has not failed.
  uint64_t bytes_written = 0;  // Since the start, as the next.
  uint64_t resumed = 0;        // Requests of the coordinator before.
};
// Metrics of the journal, to follow the page.
std::string JournalMetricsText(const JournalCounts& counts);

// Empty when the cluster serves, else what it waits for.
std::string HealthProblem(Engine& engine);

}  // namespace lamina::coordinator
