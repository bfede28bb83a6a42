// SPDX-License-Identifier: Apache-2.0
//
// How a step is laid out: which rows it has, in which order, which of them attend by which path,
// and which of them are sampled.
//
// Threading: the data thread.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/lane.h"
#include "compute_node/sequence_table.h"
#include "plan/epoch_config.h"

namespace lamina::compute_node {

// Returns by which of the epoch's paths a sequence attends: an index into Lane::paths, or beyond
// its end if the epoch has no such path.
using PathOf = absl::FunctionRef<uint32_t(const Sequence&)>;

// Lays out the lane's plan, which the sequences have been told of. Sorts the plan's rows and chunks
// by path, rows of a path by memory node.
// Errors: kInternal  the plan does not follow from the tables, or does not fit the epoch.
// Requires: lane.paths has an entry for each path.
absl::Status LayOut(const plan::EpochConfig& config, SequenceTable& sequences, PathOf path_of,
                    Lane& lane);

inline absl::Span<const ChunkRows> ChunksOf(const Lane& lane, const PathRows& rows) {
  return absl::MakeConstSpan(lane.chunks).subspan(rows.chunks.first, rows.chunks.count);
}

// Returns which of rows [first_row, + tokens) of the lane's step, which is laid out, lie from the
// first to the last one that is sampled or scored: nobody reads what the model's last layer makes
// of the others. Count 0: there is none.
RowRange RowsRead(const Lane& lane, uint32_t first_row, uint32_t tokens);

// Rows [first_row, + tokens) of a step are these consecutive tokens of one sequence.
struct RowRun {
  plan::SequenceId sequence = 0;
  uint32_t memory_node = 0;
  uint32_t first_row = 0;
  uint32_t first_token = 0;
  uint32_t tokens = 0;
};

// The decode rows of `rows`, in order: rows of one sequence that follow each other are a run.
// Errors: kInternal  a sequence that the tables do not have.
absl::StatusOr<std::vector<RowRun>> RunsOf(SequenceTable& sequences, const Lane& lane,
                                           const PathRows& rows);

// Appends a run for each chunk of `rows`, whose K and V go to a memory node as those of decode rows
// do. Errors: as ChunkDoesNotFollow(), of a chunk beyond the scratch KV.
absl::Status AppendChunkRuns(const plan::EpochConfig& config, SequenceTable& sequences,
                             const Lane& lane, const PathRows& rows, std::vector<RowRun>& runs);

// Partition token_range: what of each run is of a span, as a run on that span's memory node.
// Errors: kInternal  tokens without slots, or a span on a memory node that is not there.
absl::StatusOr<std::vector<RowRun>> CutBySpan(const plan::EpochConfig& config,
                                              SequenceTable& sequences,
                                              absl::Span<const RowRun> runs);

// Whether K and V of the run's tokens, of all heads or of some, lie on the memory node. With spans
// the run is of one.
bool LiesOn(const plan::EpochConfig& config, uint32_t node, const RowRun& run);

// The error of a chunk that the tables or the epoch have no room for.
absl::Status ChunkDoesNotFollow(const plan::PrefillChunk& chunk);

}  // namespace lamina::compute_node
