// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's limits in tests of the engine and its parts: a few short sequences.

#pragma once

#include "coordinator/core/scheduler_options.h"

namespace lamina::coordinator {

inline core::SchedulerOptions SmallLimits() {
  return {.rows_max = 4,
          .step_tokens_max = 16,
          .chunk_tokens = 8,
          .scratch_tokens = 64,
          .sequence_tokens_max = 64,
          .running_max = 4,
          .waiting_max = 4};
}

}  // namespace lamina::coordinator
