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
#include "cost/model_shape.h"

namespace lamina::planner {

// Without memory nodes. Partition auto is taken for request. `shape` may have no positions_max.
core::SchedulerOptions SchedulerOptionsOf(const ClusterConfig& config,
                                          const cost::ModelShape& shape);

}  // namespace lamina::planner
