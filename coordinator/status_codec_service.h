// SPDX-License-Identifier: Apache-2.0
//
// Lists of an EngineStatus as messages, for GetStatus().

#pragma once

#include "coordinator/engine_status.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::coordinator {

void AddLinks(const EngineStatus& status, v1::GetStatusResponse* response);
void AddLanes(const EngineStatus& status, v1::GetStatusResponse* response);
void AddSlotForms(const NodeReport& report, v1::Node* node);
void AddPolicies(const EngineStatus& status, v1::GetStatusResponse* response);

}  // namespace lamina::coordinator
