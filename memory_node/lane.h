// SPDX-License-Identifier: Apache-2.0
//
// Lane: what a memory node's worker knows of one lane of the pipeline: the step it is in, the rows
// of it that live here, and how far the step has come.
//
// Threading: the data thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/clock.h"
#include "common/extent.h"
#include "plan/row_pieces.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"

namespace lamina::memory_node {

// A row of a step that lives here.
struct Row {
  const plan::SlotTables::Sequence* sequence = nullptr;
  uint32_t position = 0;
  Extent slot;            // Where its own k and v go.
  bool own = true;        // They go here; with spans perhaps to another node.
  uint32_t partials = 0;  // With spans: how many it sees here.
  // Where queries go first: its full blocks as aligned spans, and the tokens behind them. Spans of
  // a cut sequence are these already. Empty where no block is full.
  std::vector<plan::SlotTables::Span> closed = {};
  plan::SlotTables::Span open = {};
};

// A prompt chunk of a step: the tokens of it that live here.
struct Chunk {
  uint32_t tokens = 0;
  std::vector<Extent> slots;
};

// What a lane's units are for one shard; without shards there is one.
struct Part {
  uint32_t shard = 0;
  HeadRange heads;     // Of those here.
  uint64_t value = 0;  // Of the last piece done.
  bool done = false;   // Its last unit of the step.
  // Of the unit that is being served: how it is cut, pieces done, and what of the windows they
  // took, in bytes.
  plan::RowPieces pieces;
  uint32_t pieces_done = 0;
  size_t query_bytes = 0;
  size_t reply_bytes = 0;
  Nanos unit_nanos = 0;
  // Header and rows, as in a reply window. The next unit's query says that it was read.
  std::vector<std::byte> reply;
  // As much in the device's memory, for outputs that are put from there; null where none are.
  std::byte* device_reply = nullptr;
  bool header_due = false;  // The unit's query header has not been checked yet.
  // Of the rows of the first chunk, where queries go first: [rows, spans of the row, query heads,
  // PartialWidth()], f32.
  std::vector<float> closed_partials;
};

struct Lane {
  std::vector<plan::StepPlan> plans;  // Not yet begun, oldest first.
  uint64_t step = 0;                  // In it; 0 for none: the next plan has not come.
  bool pinned = false;                // The step stays on one replica.
  plan::Chunking chunking;            // Of the step.
  std::vector<Row> rows;
  std::vector<Chunk> chunks;
  uint32_t chunk_tokens = 0;
  std::vector<Part> parts;
  bool on_device = false;  // The device serves the step by itself. Of its units,
  uint32_t launched = 0;   // how many wait there or are done,
  uint32_t seen = 0;       // and how many have been seen to be done.
};

}  // namespace lamina::memory_node
