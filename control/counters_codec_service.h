// SPDX-License-Identifier: Apache-2.0
//
// Between NodeCounters and the messages that carry them: from a node to the coordinator, and on to
// clients.

#pragma once

#include "control/node_handler.h"
#include "control/reported_figures.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::control {

// Parts, refusals and links: what has no fields of its own in the messages around it.
void ToProto(const telemetry::NodeCounters& counters, v1::NodeDetail* proto);
// Times and rates that cannot be such count as not measured, and `figures` names the first.
void FromProto(const v1::NodeDetail& proto, telemetry::NodeCounters& counters,
               ReportedFigures& figures);

void ToProto(const NodeTrace& trace, v1::NodeTrace* proto);
// Words that make no whole event are left out.
NodeTrace FromProto(const v1::NodeTrace& proto);

}  // namespace lamina::control
