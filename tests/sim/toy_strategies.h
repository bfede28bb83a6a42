// SPDX-License-Identifier: Apache-2.0
//
// Strategies of the scheduler that no product has: they show that each seam holds another one, and
// reach what the shipped ones never do.

#pragma once

#include <memory>

#include "coordinator/core/lane_packing.h"
#include "coordinator/core/out_of_slots.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/step_packing.h"

namespace lamina::sim {

// Who has the most slots gives them up, but the first in service order only when it is alone. One
// that has a row in the step already may be asked to.
std::unique_ptr<core::OutOfSlots> MakeLargestGivesUp();

// The needy one itself gives up its slots, unless it is the first in service order.
std::unique_ptr<core::OutOfSlots> MakeNeedyGivesUp();

// Prompts come first, and get half of the step's budget, rows the other.
std::unique_ptr<core::StepPacking> MakePromptsGetHalf();

// The first two rows of different lanes that may change places always do.
std::unique_ptr<core::LanePacking> MakeFirstRowsChange();

// Lanes and nodes in turn, those with room.
std::unique_ptr<core::Placement> MakeInTurn();

}  // namespace lamina::sim
