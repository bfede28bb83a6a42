// SPDX-License-Identifier: Apache-2.0
//
// BlockPanels: weights in the blocks of their GGUF file, or in those that were made of them when
// they were loaded, in panels for our own loops.
//
// Strips of a panel may differ in type, as the parts of a layer do. A panel is a run of chunks,
// each of which has one block, the longest of its types, of each of its four strips, so that a
// product reads memory in order.

#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/block_type.h"
#include "kernels/cpu/block_layout.h"
#include "kernels/cpu/panel_weights.h"

namespace lamina::kernels::cpu {

// Errors: kResourceExhausted  no memory.
//         kUnimplemented      16 features that stand together are of several types; a scale is not
//                             finite, or one that raised quanta cannot have.
absl::StatusOr<std::unique_ptr<PanelWeights>> PackBlockPanels(LinearEngine& engine,
                                                              const BlockView& weights,
                                                              LaneOrder order);

}  // namespace lamina::kernels::cpu
