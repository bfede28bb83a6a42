// SPDX-License-Identifier: Apache-2.0
//
// Who would take part in an epoch, and with what: from what each node has said of itself to what
// EpochForming asks for. Of the membership as it is, or of a copy in which nodes are missing.
//
// Determinism: same arguments, same answer.

#pragma once

#include <string>

#include "coordinator/attached_nodes.h"
#include "coordinator/core/membership.h"
#include "coordinator/epoch_forming.h"
#include "coordinator/replica_splits.h"

namespace lamina::coordinator {

// Requires: the members are attached, and their replicas are split.
EpochMembers EpochMembersOf(const core::Membership& membership, const AttachedNodes& nodes,
                            const ReplicaSplits& splits, const std::string& transport);

}  // namespace lamina::coordinator
