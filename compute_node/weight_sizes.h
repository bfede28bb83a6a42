// SPDX-License-Identifier: Apache-2.0
//
// What weights will take before any of them is read, in the forms in which they will be held.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "compute_node/weight_form.h"
#include "kernels/compute_device.h"
#include "model/graph.h"
#include "model/weight_source.h"

namespace lamina::compute_node {

struct WeightSizes {
  std::vector<uint64_t> matrices;  // [ops] bytes of the matrices that the op multiplies by.
  uint64_t others = 0;             // Bytes of tables and vectors, biases too, of all ops.
};

// Sizes of the weights of these ops. They are at least so large: a layer that turns out to have no
// packed form (PackBlocks() refuses it) is larger, and so are layouts that pad rows. An embedding
// that is tied to an LM head among the ops counts as part of that alone.
WeightSizes SizesOf(const model::Graph& graph, const model::WeightSource& source,
                    absl::Span<const model::OpId> ops, kernels::ComputeDevice& device,
                    WeightForms& forms);

}  // namespace lamina::compute_node
