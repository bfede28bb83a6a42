// SPDX-License-Identifier: Apache-2.0
//
// How sets of tokens (plan/token_sets.h) leave for a memory node: each lane has memory for those of
// all nodes, one window behind the other, from which puts are made.
//
// Threading: the data thread.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compute_node/lane.h"
#include "compute_node/worker_context.h"
#include "plan/epoch_config.h"
#include "plan/window_header.h"

namespace lamina::compute_node {

// A window is its header, and the sets behind it.
inline constexpr size_t kSetsHeaderWords = sizeof(plan::WindowHeader) / sizeof(uint64_t);

// What a step's windows take at most. Over all nodes there are no more runs than one has at most,
// and a header for each node; where heads are spread each node has all runs.
size_t StagedSetWords(const plan::EpochConfig& config);

// Puts the sets of the lane's step, of so many runs, and writes their header. The window stays as
// it is until the step's pieces have come. Errors: as Peers::Put().
absl::Status PutTokenSets(const WorkerContext& context, const Lane& lane, uint32_t node,
                          uint32_t runs, absl::Span<uint64_t> window);

}  // namespace lamina::compute_node
