// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_layout.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "compute_node/worker_context.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

class Layouter {
 public:
  Layouter(const plan::EpochConfig& config, SequenceTable& sequences, PathOf path_of, Lane& lane)
      : config_(config), sequences_(sequences), path_of_(path_of), lane_(lane) {}

  absl::Status Run();

 private:
  void Sort();
  absl::Status PlaceRows();
  absl::Status PlaceChunks();
  void ChooseTailRows();
  void Score(const Sequence& sequence, uint32_t row, uint32_t position);
  void Sample(const Sequence& sequence, uint32_t row, uint32_t position);
  absl::StatusOr<PathRows*> PathFor(const Sequence& sequence);
  uint32_t PathOfSequence(plan::SequenceId id) {
    const Sequence* sequence = sequences_.Find(id);
    return sequence == nullptr ? 0 : path_of_(*sequence);
  }

  const plan::EpochConfig& config_;
  SequenceTable& sequences_;
  const PathOf path_of_;
  Lane& lane_;
};

// One more of a range that ends where the others of its path do.
void Extend(RowRange& range, size_t index) {
  range.first = range.count == 0 ? static_cast<uint32_t>(index) : range.first;
  ++range.count;
}

absl::Status Layouter::Run() {
  lane_.token_ids.clear();
  lane_.positions.clear();
  lane_.slots.clear();
  lane_.chunks.clear();
  for (PathRows& rows : lane_.paths) {
    rows = {};
  }
  Sort();
  LAMINA_RETURN_IF_ERROR(PlaceRows());
  LAMINA_RETURN_IF_ERROR(PlaceChunks());
  const size_t rows_max = plan::StepRowsMax(config_);
  if (lane_.positions.size() > rows_max || lane_.decode_rows > config_.rows_max) {
    return absl::InternalError(absl::StrCat("plan of lane ", lane_.plan.lane, " step ",
                                            lane_.plan.step, " has ", lane_.positions.size(),
                                            " rows; at most ", rows_max, " fit"));
  }
  lane_.pinned = !lane_.chunks.empty();
  ChooseTailRows();
  return absl::OkStatus();
}

// What lies in order already is only looked at: sorting takes memory, and looks rows up for each
// comparison.
template <typename Range, typename Before>
void SortIfNeeded(Range& range, const Before& before) {
  if (!std::is_sorted(range.begin(), range.end(), before)) {
    std::stable_sort(range.begin(), range.end(), before);
  }
}

// By path, and decode rows by memory node; with spans, which may lie on several nodes, in the
// plan's order.
void Layouter::Sort() {
  const auto rank_of = [this](const plan::DecodeRow& row) {
    const Sequence* sequence = sequences_.Find(row.sequence);
    const uint32_t node = sequence == nullptr || BySpan(config_) ? 0 : sequence->join.memory_node;
    return std::pair(PathOfSequence(row.sequence), node);
  };
  SortIfNeeded(lane_.plan.rows, [&](const plan::DecodeRow& a, const plan::DecodeRow& b) {
    return rank_of(a) < rank_of(b);
  });
  SortIfNeeded(lane_.plan.chunks, [this](const plan::PrefillChunk& a, const plan::PrefillChunk& b) {
    return PathOfSequence(a.sequence) < PathOfSequence(b.sequence);
  });
}

absl::StatusOr<PathRows*> Layouter::PathFor(const Sequence& sequence) {
  const uint32_t path = path_of_(sequence);
  if (path >= lane_.paths.size()) {
    return absl::InternalError(absl::StrCat("sequence ", sequence.join.id, " attends by path ",
                                            static_cast<uint32_t>(sequence.join.path),
                                            ", which the epoch does not have"));
  }
  return &lane_.paths[path];
}

// Whether the tables know the row's input: the token sampled last, or one that the sequence joined
// with. Rows of one that has finished are discarded.
bool Follows(const Sequence& sequence, const plan::DecodeRow& row) {
  return sequence.finished || row.position + 1 == sequence.tokens.size() ||
         row.position + 1 < sequence.join.tokens.size();
}

absl::Status Layouter::PlaceRows() {
  for (const plan::DecodeRow& row : lane_.plan.rows) {
    const Sequence* sequence = sequences_.Find(row.sequence);
    if (sequence == nullptr || sequence->join.memory_node >= config_.memory_nodes.size() ||
        !Follows(*sequence, row)) {
      return absl::InternalError(absl::StrCat("row of sequence ", row.sequence, " position ",
                                              row.position, " does not follow from the tables"));
    }
    LAMINA_ASSIGN_OR_RETURN(PathRows* const path, PathFor(*sequence));
    Extend(path->decode, lane_.positions.size());
    lane_.token_ids.push_back(static_cast<uint32_t>(row.position < sequence->tokens.size()
                                                        ? sequence->tokens[row.position]
                                                        : sequence->tokens.back()));
    lane_.positions.push_back(row.position);
  }
  lane_.decode_rows = static_cast<uint32_t>(lane_.positions.size());
  return absl::OkStatus();
}

absl::Status Layouter::PlaceChunks() {
  for (const plan::PrefillChunk& chunk : lane_.plan.chunks) {
    const Sequence* sequence = sequences_.Find(chunk.sequence);
    if (sequence == nullptr || sequence->join.memory_node >= config_.memory_nodes.size() ||
        chunk.tokens == 0 ||
        uint64_t{chunk.first_token} + chunk.tokens > sequence->join.tokens.size()) {
      return ChunkDoesNotFollow(chunk);
    }
    LAMINA_ASSIGN_OR_RETURN(PathRows* const path, PathFor(*sequence));
    Extend(path->chunks, lane_.chunks.size());
    lane_.chunks.push_back(
        {.plan = chunk, .first_row = static_cast<uint32_t>(lane_.positions.size())});
    for (uint32_t i = 0; i < chunk.tokens; ++i) {
      lane_.token_ids.push_back(static_cast<uint32_t>(sequence->tokens[chunk.first_token + i]));
      lane_.positions.push_back(chunk.first_token + i);
    }
  }
  return absl::OkStatus();
}

// The token behind the row's is scored, if it is one of those that the sequence joined with.
void Layouter::Score(const Sequence& sequence, uint32_t row, uint32_t position) {
  if (position + 1 < sequence.tokens.size()) {
    lane_.tail.push_back(
        {.row = row, .sequence = sequence.join.id, .position = position, .score = true});
  }
}

// The token behind the row's is sampled, and if it is the first one, that of forks too.
void Layouter::Sample(const Sequence& sequence, uint32_t row, uint32_t position) {
  lane_.tail.push_back({.row = row, .sequence = sequence.join.id, .position = position});
  if (position + 1 > sequence.join.tokens.size()) {
    return;
  }
  for (const plan::SequenceId child : sequence.children) {
    // It may have left, or be back on its own.
    const Sequence* fork = sequences_.Find(child);
    if (fork != nullptr && fork->join.parent == sequence.join.id) {
      lane_.tail.push_back({.row = row, .sequence = child, .position = position});
    }
  }
}

// Rows of a sequence's last token that are not discarded, the last token of last chunks, and every
// token that is scored.
void Layouter::ChooseTailRows() {
  lane_.tail.clear();
  for (uint32_t row = 0; row < lane_.decode_rows; ++row) {
    const Sequence& sequence = *sequences_.Find(lane_.plan.rows[row].sequence);
    const uint32_t position = lane_.positions[row];
    if (sequence.join.score) {
      Score(sequence, row, position);
    } else if (!sequence.finished && position + 1 == sequence.tokens.size()) {
      Sample(sequence, row, position);
    }
  }
  for (const ChunkRows& chunk : lane_.chunks) {
    const plan::PrefillChunk& plan = chunk.plan;
    const Sequence& sequence = *sequences_.Find(plan.sequence);
    for (uint32_t i = 0; sequence.join.score && i < plan.tokens; ++i) {
      Score(sequence, chunk.first_row + i, plan.first_token + i);
    }
    if (!sequence.join.score && plan.last) {
      Sample(sequence, chunk.first_row + plan.tokens - 1, plan.first_token + plan.tokens - 1);
    }
  }
}

}  // namespace

absl::Status LayOut(const plan::EpochConfig& config, SequenceTable& sequences, PathOf path_of,
                    Lane& lane) {
  return Layouter(config, sequences, path_of, lane).Run();
}

// The tail's rows are in order.
RowRange RowsRead(const Lane& lane, uint32_t first_row, uint32_t tokens) {
  const auto before = [](const TailRow& tail, uint32_t row) { return tail.row < row; };
  const auto first = std::lower_bound(lane.tail.begin(), lane.tail.end(), first_row, before);
  const auto end = std::lower_bound(first, lane.tail.end(), first_row + tokens, before);
  if (first == end) {
    return {};
  }
  return {.first = first->row, .count = std::prev(end)->row - first->row + 1};
}

absl::StatusOr<std::vector<RowRun>> RunsOf(SequenceTable& sequences, const Lane& lane,
                                           const PathRows& rows) {
  std::vector<RowRun> runs;
  const uint32_t end = rows.decode.first + rows.decode.count;
  for (uint32_t row = rows.decode.first; row < end; ++row) {
    const plan::SequenceId id = lane.plan.rows[row].sequence;
    const uint32_t position = lane.positions[row];
    if (!runs.empty() && runs.back().sequence == id &&
        runs.back().first_token + runs.back().tokens == position) {
      ++runs.back().tokens;
      continue;
    }
    const Sequence* sequence = sequences.Find(id);
    if (sequence == nullptr) {
      return absl::InternalError(
          absl::StrCat("plan has rows of sequence ", id, ", which is not here"));
    }
    runs.push_back({.sequence = id,
                    .memory_node = sequence->join.memory_node,
                    .first_row = row,
                    .first_token = position,
                    .tokens = 1});
  }
  return runs;
}

absl::Status AppendChunkRuns(const plan::EpochConfig& config, SequenceTable& sequences,
                             const Lane& lane, const PathRows& rows, std::vector<RowRun>& runs) {
  for (const ChunkRows& chunk : ChunksOf(lane, rows)) {
    const uint64_t end = uint64_t{chunk.plan.first_token} + chunk.plan.tokens;
    if (chunk.plan.scratch_offset + end > config.scratch_tokens) {
      return ChunkDoesNotFollow(chunk.plan);
    }
    runs.push_back({.sequence = chunk.plan.sequence,
                    .memory_node = sequences.Find(chunk.plan.sequence)->join.memory_node,
                    .first_row = chunk.first_row,
                    .first_token = chunk.plan.first_token,
                    .tokens = chunk.plan.tokens});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RowRun>> CutBySpan(const plan::EpochConfig& config,
                                              SequenceTable& sequences,
                                              absl::Span<const RowRun> runs) {
  std::vector<RowRun> cut;
  for (const RowRun& run : runs) {
    const Sequence* sequence = sequences.Find(run.sequence);
    if (sequence == nullptr || uint64_t{run.first_token} + run.tokens > sequence->slots) {
      return absl::InternalError(absl::StrCat("plan has tokens up to ",
                                              uint64_t{run.first_token} + run.tokens,
                                              " of sequence ", run.sequence, ", without slots"));
    }
    for (uint32_t done = 0; done < run.tokens; done += cut.back().tokens) {
      const uint32_t token = run.first_token + done;
      const uint32_t left = config.span_tokens - token % config.span_tokens;
      cut.push_back({.sequence = run.sequence,
                     .memory_node = sequence->spans[token / config.span_tokens],
                     .first_row = run.first_row + done,
                     .first_token = token,
                     .tokens = std::min(run.tokens - done, left)});
      if (cut.back().memory_node >= config.memory_nodes.size()) {
        return absl::InternalError(absl::StrCat("sequence ", run.sequence,
                                                " has a span on a memory node that is not there"));
      }
    }
  }
  return cut;
}

bool LiesOn(const plan::EpochConfig& config, uint32_t node, const RowRun& run) {
  return BySpan(config) ? run.memory_node == node : plan::Holds(config, node, run.memory_node);
}

absl::Status ChunkDoesNotFollow(const plan::PrefillChunk& chunk) {
  return absl::InternalError(absl::StrCat("chunk [", chunk.first_token, ", +", chunk.tokens,
                                          ") of sequence ", chunk.sequence,
                                          " does not follow from the tables"));
}

}  // namespace lamina::compute_node
