// SPDX-License-Identifier: Apache-2.0
//
// What a node says of itself, from its messages.
//
// Threading: pure functions.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/engine.h"
#include "lamina/v1/cluster.pb.h"
#include "plan/policy_times.h"

namespace lamina::coordinator {

// Why a Hello cannot be taken, whatever it says: texts that are long or not of one line. Empty if
// it can. Cost: bounded, whatever the size of the texts.
std::string ProblemOf(const v1::Hello& hello);

// Requires: ProblemOf() is empty.
NodeHello FromProto(const v1::Hello& hello);

// What a node has measured of the layers that it has loaded; the error with which it could not
// load or measure. Errors besides: kInvalidArgument  more times than a node can have measured.
absl::StatusOr<plan::PolicyTimes> FromProto(const v1::LayersLoaded& loaded);

}  // namespace lamina::coordinator
