// SPDX-License-Identifier: Apache-2.0
//
// What a node says of itself, from its messages.
//
// Threading: pure functions.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "control/node_handler.h"
#include "control/reported_figures.h"
#include "coordinator/engine.h"
#include "lamina/v1/cluster.pb.h"
#include "plan/policy_times.h"
#include "telemetry/node_counters.h"

namespace lamina::coordinator {

// Why a Hello cannot be taken, whatever it says: texts that are long or not of one line, rates that
// nothing can have. Empty if it can. Cost: bounded, whatever the size of the texts.
std::string ProblemOf(const v1::Hello& hello);

// Requires: ProblemOf() is empty.
NodeHello FromProto(const v1::Hello& hello);

// What a node has measured of the layers that it has loaded; the error with which it could not
// load or measure. Errors besides: kInvalidArgument  more times than a node can have measured.
absl::StatusOr<plan::PolicyTimes> FromProto(const v1::LayersLoaded& loaded);

// What a node has counted and measured while it ran, and of its links when the epoch began. Times,
// rates and shares that cannot be such count as not measured, and `figures` names the first.
telemetry::NodeCounters FromProto(const v1::NodeStatus& status, control::ReportedFigures& figures);
std::vector<control::LinkReport> FromProto(const v1::NodeLinks& links,
                                           control::ReportedFigures& figures);

}  // namespace lamina::coordinator
