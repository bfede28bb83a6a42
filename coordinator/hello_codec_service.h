// SPDX-License-Identifier: Apache-2.0
//
// What a node says of itself, from its message.
//
// Threading: pure functions.

#pragma once

#include <string>

#include "coordinator/engine.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::coordinator {

// Why a Hello cannot be taken, whatever it says: texts that are long or not of one line. Empty if
// it can. Cost: bounded, whatever the size of the texts.
std::string ProblemOf(const v1::Hello& hello);

// Requires: ProblemOf() is empty.
NodeHello FromProto(const v1::Hello& hello);

}  // namespace lamina::coordinator
