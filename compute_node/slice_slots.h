// SPDX-License-Identifier: Apache-2.0
//
// Slots for the values of a program, in the order in which its ops run. A conversion to the type
// that its input has already makes no value of its own: both have one slot, and the op copies
// nothing.
//
// Threading: pure functions.

#pragma once

#include "compute_node/slice_program.h"
#include "compute_node/value_slots.h"

namespace lamina::compute_node {

// For the values of all slices up to the last one's body. With `parts_elsewhere` those that
// reductions sum get none: the caller gives them their place.
ValueSlots BodySlots(const SliceProgram& program, bool parts_elsewhere);

// For those of the tail, of which the inputs are there when it begins.
ValueSlots TailSlots(const SliceProgram& program);

}  // namespace lamina::compute_node
