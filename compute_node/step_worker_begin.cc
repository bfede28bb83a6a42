// SPDX-License-Identifier: Apache-2.0
//
// How a step is laid out: which rows it has, for whom, and which of them are sampled.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "compute_node/step_worker.h"

namespace lamina::compute_node {

absl::Status StepWorker::BeginSteps() {
  for (Lane& lane : lanes_) {
    while (lane.phase == Phase::kIdle && !lane.plans.empty()) {
      lane.plan = std::move(lane.plans.front());
      lane.plans.erase(lane.plans.begin());
      LAMINA_RETURN_IF_ERROR(BeginStep(lane));
    }
  }
  return absl::OkStatus();
}

absl::Status StepWorker::BeginStep(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(
      sequences_.Apply(lane.plan, options_.vocabulary, options_.config.span_tokens));
  lane.token_ids.clear();
  lane.positions.clear();
  lane.chunks.clear();
  lane.slices_nanos = 0;
  lane.slices_run = 0;
  for (NodePart& part : lane.nodes) {
    part = {};
  }
  LAMINA_RETURN_IF_ERROR(PlaceRows(lane));
  LAMINA_RETURN_IF_ERROR(PlaceChunks(lane));
  if (local_ != nullptr) {
    LAMINA_RETURN_IF_ERROR(local_->BeginStep(lane.plan));
  }
  const size_t rows_max = options_.config.rows_max + options_.config.chunk_tokens_max;
  if (lane.positions.size() > rows_max || lane.decode_rows > options_.config.rows_max) {
    return absl::InternalError(absl::StrCat("plan of lane ", lane.plan.lane, " step ",
                                            lane.plan.step, " has ", lane.positions.size(),
                                            " rows; at most ", rows_max, " fit"));
  }
  if (lane.positions.empty()) {  // Only leaves: answered at once.
    reporter_.ReportResult(
        {.epoch = lane.plan.epoch, .lane = lane.plan.lane, .step = lane.plan.step});
    return absl::OkStatus();
  }
  ChooseTailRows(lane);
  lane.pinned = !lane.chunks.empty();
  lane.by_device = GoesByDevice(lane);
  if (Runs(IndexOf(lane))) {
    LAMINA_RETURN_IF_ERROR(executor_.SetRows(Rows(lane), lane.buffers));
  }
  GoTo(lane, 0);
  LapOf(lane, control::WorkPart::kLayOut, 0);
  return absl::OkStatus();
}

// Decode rows, sorted by memory node; with spans, which may lie on several, in the plan's order.
// Their input is the token sampled last.
absl::Status StepWorker::PlaceRows(Lane& lane) {
  const auto node_of = [this](const core::DecodeRow& row) {
    const Sequence* sequence = sequences_.Find(row.sequence);
    return sequence == nullptr || by_span() ? 0 : sequence->join.memory_node;
  };
  std::stable_sort(
      lane.plan.rows.begin(), lane.plan.rows.end(),
      [&](const core::DecodeRow& a, const core::DecodeRow& b) { return node_of(a) < node_of(b); });
  for (const core::DecodeRow& row : lane.plan.rows) {
    const Sequence* sequence = sequences_.Find(row.sequence);
    if (sequence == nullptr || sequence->join.memory_node >= lane.nodes.size() ||
        (!sequence->finished && row.position + 1 != sequence->tokens.size())) {
      return absl::InternalError(absl::StrCat("row of sequence ", row.sequence, " position ",
                                              row.position, " does not follow from the tables"));
    }
    for (uint32_t node = 0; node < lane.nodes.size() && !by_span(); ++node) {
      if (Holds(node, *sequence)) {
        RowRange& range = lane.nodes[node].rows;
        range.first = range.count == 0 ? static_cast<uint32_t>(lane.positions.size()) : range.first;
        ++range.count;
      }
    }
    lane.token_ids.push_back(static_cast<uint32_t>(sequence->tokens.back()));
    lane.positions.push_back(row.position);
  }
  lane.decode_rows = static_cast<uint32_t>(lane.positions.size());
  return by_span() ? PlaceSpans(lane) : absl::OkStatus();
}

absl::Status StepWorker::PlaceChunks(Lane& lane) {
  for (const core::PrefillChunk& chunk : lane.plan.chunks) {
    const Sequence* sequence = sequences_.Find(chunk.sequence);
    const uint64_t end = uint64_t{chunk.first_token} + chunk.tokens;
    if (sequence == nullptr || sequence->join.memory_node >= lane.nodes.size() ||
        chunk.tokens == 0 || end > sequence->join.tokens.size() ||
        (by_span() && end > sequence->slots) ||
        chunk.scratch_offset + end > options_.config.scratch_tokens) {
      return absl::InternalError(absl::StrCat("chunk [", chunk.first_token, ", +", chunk.tokens,
                                              ") of sequence ", chunk.sequence,
                                              " does not follow from the tables"));
    }
    lane.chunks.push_back(
        {.plan = chunk,
         .first_row = static_cast<uint32_t>(lane.positions.size()),
         .scratch = {.first_slot = chunk.scratch_offset, .tokens = static_cast<uint32_t>(end)}});
    for (uint32_t i = 0; i < chunk.tokens; ++i) {
      lane.token_ids.push_back(static_cast<uint32_t>(sequence->tokens[chunk.first_token + i]));
      lane.positions.push_back(chunk.first_token + i);
    }
  }
  // Staging rows: node by node, in the order of chunks. With heads spread every node has them all.
  uint32_t row = 0;
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    row = by_head() ? 0 : row;
    lane.nodes[node].kv_rows.first = row;
    for (const Chunk& chunk : lane.chunks) {
      for (uint32_t i = 0; i < chunk.plan.tokens; ++i) {
        row += HoldsToken(node, *sequences_.Find(chunk.plan.sequence), chunk.plan.first_token + i);
      }
    }
    lane.nodes[node].kv_rows.count = row - lane.nodes[node].kv_rows.first;
  }
  if (row > options_.config.chunk_tokens_max) {
    return absl::InternalError(absl::StrCat("plan has ", row, " chunk tokens; at most ",
                                            options_.config.chunk_tokens_max, " fit"));
  }
  return absl::OkStatus();
}

// Decode rows that are not dead, the last token of last chunks, and every token that is scored.
void StepWorker::ChooseTailRows(Lane& lane) {
  lane.tail.clear();
  for (uint32_t row = 0; row < lane.decode_rows; ++row) {
    const core::SequenceId id = lane.plan.rows[row].sequence;
    if (!sequences_.Find(id)->finished) {
      lane.tail.push_back({.row = row, .sequence = id, .position = lane.positions[row]});
    }
  }
  for (const Chunk& chunk : lane.chunks) {
    const core::PrefillChunk& plan = chunk.plan;
    const Sequence& sequence = *sequences_.Find(plan.sequence);
    if (sequence.join.score) {
      for (uint32_t i = 0; i < plan.tokens; ++i) {
        if (plan.first_token + i + 1 < sequence.tokens.size()) {
          lane.tail.push_back({.row = chunk.first_row + i,
                               .sequence = plan.sequence,
                               .position = plan.first_token + i,
                               .score = true});
        }
      }
    } else if (plan.last) {
      const uint32_t row = chunk.first_row + plan.tokens - 1;
      const uint32_t position = plan.first_token + plan.tokens - 1;
      lane.tail.push_back({.row = row, .sequence = plan.sequence, .position = position});
      for (const core::SequenceId child : sequence.children) {
        // It may have left, or be back on its own.
        const Sequence* fork = sequences_.Find(child);
        if (fork != nullptr && fork->join.parent == plan.sequence) {
          lane.tail.push_back({.row = row, .sequence = child, .position = position});
        }
      }
    }
  }
}

}  // namespace lamina::compute_node
