// SPDX-License-Identifier: Apache-2.0
//
// Lane: what a memory node knows of one lane of the pipeline: the step it is in, the rows of it
// that live here, and which source serves it. The StepFeed fills it; sources read it.
//
// Threading: the data thread.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "plan/attention_paths.h"
#include "plan/fetch_split.h"
#include "plan/row_pieces.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"

namespace lamina::memory_node {

class WorkSource;

// A row of a step that lives here.
struct Row {
  const plan::SlotTables::Sequence* sequence = nullptr;
  uint32_t position = 0;
  Extent slot;                 // Where its own k and v go.
  bool own = true;             // They go here; with spans perhaps to another node.
  uint32_t partials = 0;       // With spans: how many it sees here,
  uint32_t first_partial = 0;  // and how many the rows before it see.
  // Where queries go first: its full blocks as aligned spans, and the tokens behind them. Spans of
  // a cut sequence are these already. Empty where no block is full.
  std::vector<plan::SlotTables::Span> closed = {};
  plan::SlotTables::Span open = {};
};

// How many of the first rows are consecutive tokens of one sequence; `most` of them at most.
// Requires: there is a row.
inline uint32_t ConsecutiveRows(absl::Span<const Row> rows, uint32_t most) {
  uint32_t length = 1;
  while (length < std::min<size_t>(most, rows.size()) &&
         rows[length].sequence == rows[0].sequence &&
         rows[length].position == rows[0].position + length) {
    ++length;
  }
  return length;
}

// What of a token is kept in its slot: K and V, with the activation that it brings; or one of them.
enum class Kept : uint8_t { kAll, kKv, kActivation };

// Tokens of a step that come here without queries, for these attend at the compute node: those of
// a prompt chunk, or of a row of path fetch, that live here.
struct Chunk {
  uint32_t tokens = 0;
  std::vector<Extent> slots;  // Where slots are of kinds: in the arena of what is kept.
  Kept kept = Kept::kKv;
  // Where slots are INT8: whose they are, and the first of them.
  const plan::SlotTables::Sequence* sequence = nullptr;
  uint32_t first_token = 0;
};

// Consecutive rows of one sequence whose K and V go to the compute node, where they attend (path
// fetch). Their own K and V come here as those of prompt tokens do. With spans: what of them is of
// one that lies here, with tokens counted from its first one.
struct FetchedRun {
  const plan::SlotTables::Sequence* sequence = nullptr;
  plan::FetchRun run;
  plan::FetchSlots slots;  // Where the tokens before it lie.
  uint32_t unseen = 0;     // The first ones of these that have no slots any more.
};

struct Lane {
  uint32_t index = 0;
  std::vector<plan::StepPlan> plans;  // Not yet begun, oldest first.
  uint64_t step = 0;                  // In it; 0 for none: the next plan has not come.
  WorkSource* server = nullptr;       // Serves the step's units.
  uint32_t users = 0;                 // Sources that are not done with the step.
  bool pinned = false;                // The step stays on one replica.
  plan::Chunking chunking;            // How the step's rows are cut.
  KvForm form = KvForm::kBF16;        // The form of K and V of its rows and prompts.
  std::vector<Row> rows;              // Those whose own token lies here come first.
  uint32_t own_rows = 0;
  uint32_t partials = 0;  // With spans: of all rows.
  std::vector<Chunk> chunks;
  uint32_t chunk_tokens = 0;        // Tokens of `chunks`.
  uint32_t activation_width = 0;    // Elements of an activation of theirs; 0: they bring none.
  std::vector<FetchedRun> fetched;  // In the order of the plan's rows.
  plan::AttentionPath fetched_by = plan::AttentionPath::kFetch;  // The path of these.

  // How many tokens the rows see together. Consecutive rows of one sequence, a prompt's, read K and
  // V once for many of them, and count as the last of them.
  uint64_t context_tokens() const {
    uint64_t tokens = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool goes_on = i + 1 < rows.size() && rows[i + 1].sequence == rows[i].sequence;
      tokens += goes_on ? 0 : rows[i].position + 1;
    }
    return tokens;
  }
};

}  // namespace lamina::memory_node
