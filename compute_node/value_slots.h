// SPDX-License-Identifier: Apache-2.0
//
// AssignSlots: which values of a graph share memory. A value has its slot from where it is made to
// its last reader; the slot then goes to the next value with rows of the same size, and as many of
// them. So a batch needs a handful of buffers, not one for each value.
//
// Threading: a pure function.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/graph.h"

namespace lamina::compute_node {

// What one op does to the values, in the order of a run. An attention makes its output and reads
// its input at different times: two uses.
struct ValueUse {
  model::OpId op = model::kNone;
  bool reads = true;
  bool makes = true;
  model::ValueId also_read = model::kNone;  // Besides the op's inputs.
};

// Which rows of a value are there at once.
enum class SlotRows : uint8_t {
  kStep,  // All of a step.
  kTile,  // Those of a tile, which are made, read and forgotten before the next tile's are made.
};

struct ValueLives {
  absl::Span<const ValueUse> uses;
  absl::Span<const model::ValueId> inputs;  // Are there before the first use.
  absl::Span<const model::ValueId> kept;    // Stay to the end.
  // [values]: bytes of a row; 0: the value has its memory from elsewhere and gets no slot.
  absl::Span<const size_t> row_bytes;
  absl::Span<const SlotRows> rows;  // [values]; empty: all are kStep.
};

struct ValueSlots {
  std::vector<uint32_t> slot;     // [values]; kNone: the value does not live here.
  std::vector<size_t> row_bytes;  // [slots]
  std::vector<SlotRows> rows;     // [slots]
};

// Values that are alive at the same time have slots of their own.
// Requires: every value that a use reads is an input or was made by a use before.
ValueSlots AssignSlots(const model::Graph& graph, const ValueLives& lives);

}  // namespace lamina::compute_node
