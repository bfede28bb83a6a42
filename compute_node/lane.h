// SPDX-License-Identifier: Apache-2.0
//
// Lane: what a compute node's worker knows of one lane of the pipeline: the step that runs, how it
// is laid out (step_layout.h), and where it stands. What one part of the worker alone needs of a
// lane, that part keeps.
//
// Threading: the data thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/extent.h"
#include "compute_node/slice_executor.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

enum class LanePhase : uint8_t {
  kIdle,       // No step.
  kReady,      // A slice, or the rest of one, can run.
  kAway,       // It waits for attention outputs, a context, or other shards' parts of a sum.
  kAhead,      // The device has been told what comes next.
  kElsewhere,  // The step goes on on other nodes, whose tokens end it.
};

struct RowRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// What of a step concerns one memory node.
struct NodeRows {
  RowRange rows;     // Decode rows.
  RowRange kv_rows;  // Of all k and v of the chunks that go to memory nodes.
  // Partition token_range: the rows, of which the first `own_rows` have their own token there.
  std::vector<uint32_t> span_rows;
  uint32_t own_rows = 0;
  uint32_t partials = 0;  // That it answers.
  bool involved() const { return rows.count > 0 || kv_rows.count > 0; }
};

// Of a row's span: where its reply lies.
struct SpanPartial {
  uint32_t node = 0;
  uint32_t index = 0;  // Among the node's.
};

struct ChunkRows {
  plan::PrefillChunk plan;
  uint32_t first_row = 0;  // Of the step.
  Extent scratch;          // All tokens of the sequence up to this chunk's end.
};

// A row of the last slice and what it is for.
struct TailRow {
  uint32_t row = 0;
  plan::SequenceId sequence = 0;
  uint32_t position = 0;  // Of the row's token.
  bool score = false;
};

struct Lane {
  uint32_t index = 0;
  LanePhase phase = LanePhase::kIdle;
  std::vector<plan::StepPlan> plans;  // Not yet begun, oldest first.
  plan::StepPlan plan;                // Of the step that runs.

  // Its rows: decode rows, then chunks.
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> positions;
  uint32_t decode_rows = 0;
  std::vector<ChunkRows> chunks;
  std::vector<NodeRows> nodes;  // [memory nodes]
  std::vector<TailRow> tail;
  // Partition token_range: of each decode row and span, rows by rows; where each row's begin.
  std::vector<SpanPartial> partials;
  std::vector<uint32_t> first_partial;

  uint32_t slice = 0;      // Next to run here,
  size_t op = 0;           // from this op on.
  bool pinned = false;     // The step stays on one replica.
  bool by_device = false;  // The device exchanges the step's rows.
  bool reducing = false;   // Parts of other shards are awaited, for op `op`.
  bool head_due = false;   // It has come to the LM head, which another lane is in.
  bool replayed = false;   // The ops that ran last had been recorded.
  Nanos away_since = 0;
  Nanos slices_nanos = 0;  // Spent on slices of the step here.
  uint32_t slices_run = 0;
  ValueBuffers buffers;

  RowInputs inputs() const { return {token_ids, positions}; }
};

}  // namespace lamina::compute_node
