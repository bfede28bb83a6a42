// SPDX-License-Identifier: Apache-2.0
//
// Which rows and chunks of a step live on a memory node, and where.
//
// Partition token_range: sequences are cut into spans, of which this node holds some. A row comes
// to every node that holds a span it sees; each answers one partial for each of these. Rows whose
// own token lies here come first, with k and v; the others bring q alone. Rows that attend at the
// compute node get K and V of the spans from here, of each by itself, and bring k and v where their
// own token lies; the windows of a step without any here are headers alone.

#pragma once

#include "absl/status/status.h"
#include "control/node_handler.h"
#include "memory_node/lane.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"

namespace lamina::memory_node {

// Into lane.rows and lane.chunks: those of the plan, which the tables have been told of, that are
// not other nodes'. Errors: kInternal  the plan does not follow from the tables, or does not fit
// the windows.
absl::Status CollectRows(const plan::EpochConfig& config, const plan::SlotTables& tables,
                         const plan::StepPlan& plan, Lane& lane);

// For queries ahead of their k and v: cuts the rows of the lane's first chunk (Row::closed, open).
// Full blocks become spans whose lengths are powers of two, longest first: each is one node of the
// merge tree that a whole sequence has (kernels/partial.h), so the bits are the same. What is cut
// stays so for all layers of the step. Returns how many spans there are.
// Errors: kInternal  the tables have no slots for a row.
absl::StatusOr<size_t> CutAtFullBlocks(const plan::SlotTables& tables, Lane& lane);

}  // namespace lamina::memory_node
