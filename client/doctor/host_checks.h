// SPDX-License-Identifier: Apache-2.0
//
// What HostFacts mean. Pure.

#pragma once

#include "client/doctor/finding.h"
#include "client/doctor/host_facts.h"
#include "config/cluster_config.h"

namespace lamina::doctor {

// One finding or more of each check. `cluster` may be null: what needs it is left out then.
Findings CheckHost(const HostFacts& facts, const ClusterConfig* cluster);

}  // namespace lamina::doctor
