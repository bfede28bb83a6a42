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
#include <initializer_list>
#include <vector>

#include "common/clock.h"
#include "compute_node/prompt_work.h"
#include "compute_node/slice_executor.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

enum class LanePhase : uint8_t {
  kIdle,     // No step.
  kReady,    // A slice, or the rest of one, can run.
  kWaiting,  // Something is missing: Lane::awaits.
};

// What a lane may wait for before its slice, or the rest of one, can run.
enum class Awaited : uint8_t {
  kAttention,  // Outputs of the attention before the slice.
  kContext,    // Values that cross that attention, from the node that ran the slice before.
  kWeights,    // The slice's own.
  kSum,        // The other shards' parts of a sum.
  kHead,       // The LM head, which another lane is in.
  kTokens,     // Tokens that end the step, which goes on on other nodes.
};

// A set of these. A lane is ready when the last one has come.
class AwaitedSet {
 public:
  AwaitedSet() = default;
  AwaitedSet(std::initializer_list<Awaited> all) {
    for (const Awaited one : all) {
      Add(one);
    }
  }

  void Add(Awaited one) { bits_ |= BitOf(one); }
  void Remove(Awaited one) { bits_ &= ~BitOf(one); }
  bool Has(Awaited one) const { return (bits_ & BitOf(one)) != 0; }
  bool empty() const { return bits_ == 0; }

 private:
  static uint32_t BitOf(Awaited one) { return 1u << static_cast<uint32_t>(one); }

  uint32_t bits_ = 0;
};

struct RowRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

struct ChunkRows {
  plan::PrefillChunk plan;
  uint32_t first_row = 0;  // First row in the step.
};

// The rows of a step that attend by one path (attention_path.h): consecutive decode rows, and
// consecutive ones of the step's chunks.
struct PathRows {
  RowRange decode;
  RowRange chunks;  // Indices into Lane::chunks.
  bool empty() const { return decode.count == 0 && chunks.count == 0; }
};

// A row of the last slice and what it is for.
struct TailRow {
  uint32_t row = 0;
  plan::SequenceId sequence = 0;
  uint32_t position = 0;  // Position of the row's token.
  bool score = false;
};

struct Lane {
  uint32_t index = 0;
  LanePhase phase = LanePhase::kIdle;
  AwaitedSet awaits;                  // While it is kWaiting.
  std::vector<plan::StepPlan> plans;  // Not yet begun, oldest first.
  plan::StepPlan plan;                // Plan of the step that runs.

  // Its rows: decode rows, then chunks.
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> slots;  // As RowInputs::slots; the paths' own. Empty: none has any.
  uint32_t decode_rows = 0;
  // Outputs of these first rows come from elsewhere; those of the others are where the slice ran.
  uint32_t rows_from_elsewhere = 0;
  std::vector<ChunkRows> chunks;
  std::vector<PathRows> paths;  // [paths of the epoch]
  std::vector<TailRow> tail;
  PromptWork prompts;  // Prompt tokens of the step.

  uint32_t slice = 0;            // Next slice to run here.
  size_t op = 0;                 // First op of the slice to run.
  bool weights_held = false;     // Weights of `slice` are held, until it has run.
  Nanos weights_look_again = 0;  // While they are awaited: nothing changes before.
  bool pinned = false;           // The step stays on one replica.
  bool replayed = false;         // The ops that ran last had been captured.
  Nanos away_since = 0;
  Nanos slices_nanos = 0;  // Spent on slices of the step here.
  uint32_t slices_run = 0;
  ValueBuffers buffers;

  RowInputs inputs() const { return {token_ids, positions, slots}; }
};

}  // namespace lamina::compute_node
