// SPDX-License-Identifier: Apache-2.0
//
// Slots for the values of a program, in the order in which its ops run. A conversion to the type
// that its input has already makes no value of its own: both have one slot, and the op copies
// nothing.
//
// Every op works row by row, so that the ops of a range (SliceProgram::Ranges()) may run for a tile
// of a step's rows, then for the next one. What is made and read within one range alone then needs
// memory for a tile, not for a step.
//
// Threading: pure functions.

#pragma once

#include <vector>

#include "absl/types/span.h"
#include "compute_node/slice_program.h"
#include "compute_node/value_slots.h"

namespace lamina::compute_node {

// [values]: kTile for those of which a tile is enough where every range runs tile by tile.
std::vector<SlotRows> RowsOfValues(const SliceProgram& program);

// For the values of all slices up to the last one's body. With `parts_elsewhere` those that
// reductions sum get none: the caller gives them their place. `rows`: of RowsOfValues(); empty: all
// rows of a step are there.
ValueSlots BodySlots(const SliceProgram& program, bool parts_elsewhere,
                     absl::Span<const SlotRows> rows = {});

// For those of the tail, of which the inputs are there when it begins.
ValueSlots TailSlots(const SliceProgram& program);

}  // namespace lamina::compute_node
