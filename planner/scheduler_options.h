// SPDX-License-Identifier: Apache-2.0
//
// The scheduler options that the coordinator makes from a cluster file, for simulations of it. The
// coordinator's own are in coordinator/cluster_options.cc, which stands above this folder;
// cluster_options_test.cc holds them against each other.
//
// Threading: pure.

#pragma once

#include "config/cluster_config.h"
#include "coordinator/core/scheduler_options.h"

namespace lamina::planner {

// `positions_max` is the model's, 0 where it has none. Without memory nodes. Partition auto is
// taken for request.
core::SchedulerOptions SchedulerOptionsOf(const ClusterConfig& config, uint32_t positions_max);

}  // namespace lamina::planner
