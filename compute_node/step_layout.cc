// SPDX-License-Identifier: Apache-2.0
#include "compute_node/step_layout.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "compute_node/worker_context.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

class Layouter {
 public:
  Layouter(const plan::EpochConfig& config, SequenceTable& sequences, Lane& lane)
      : config_(config), sequences_(sequences), lane_(lane) {}

  absl::Status Run();

 private:
  absl::Status PlaceRows();
  absl::Status PlaceSpans();
  void PlacePartials();
  absl::Status PlaceChunks();
  void ChooseTailRows();
  const std::vector<uint32_t>& SpansOf(uint32_t row) {
    return sequences_.Find(lane_.plan.rows[row].sequence)->spans;
  }

  const plan::EpochConfig& config_;
  SequenceTable& sequences_;
  Lane& lane_;
};

absl::Status Layouter::Run() {
  lane_.token_ids.clear();
  lane_.positions.clear();
  lane_.chunks.clear();
  for (NodeRows& node : lane_.nodes) {
    node = {};
  }
  LAMINA_RETURN_IF_ERROR(PlaceRows());
  LAMINA_RETURN_IF_ERROR(PlaceChunks());
  const size_t rows_max = config_.rows_max + config_.chunk_tokens_max;
  if (lane_.positions.size() > rows_max || lane_.decode_rows > config_.rows_max) {
    return absl::InternalError(absl::StrCat("plan of lane ", lane_.plan.lane, " step ",
                                            lane_.plan.step, " has ", lane_.positions.size(),
                                            " rows; at most ", rows_max, " fit"));
  }
  lane_.pinned = !lane_.chunks.empty();
  ChooseTailRows();
  return absl::OkStatus();
}

// Decode rows, sorted by memory node; with spans, which may lie on several, in the plan's order.
// Their input is the token sampled last.
absl::Status Layouter::PlaceRows() {
  const auto node_of = [this](const plan::DecodeRow& row) {
    const Sequence* sequence = sequences_.Find(row.sequence);
    return sequence == nullptr || BySpan(config_) ? 0 : sequence->join.memory_node;
  };
  std::stable_sort(
      lane_.plan.rows.begin(), lane_.plan.rows.end(),
      [&](const plan::DecodeRow& a, const plan::DecodeRow& b) { return node_of(a) < node_of(b); });
  for (const plan::DecodeRow& row : lane_.plan.rows) {
    const Sequence* sequence = sequences_.Find(row.sequence);
    if (sequence == nullptr || sequence->join.memory_node >= lane_.nodes.size() ||
        (!sequence->finished && row.position + 1 != sequence->tokens.size())) {
      return absl::InternalError(absl::StrCat("row of sequence ", row.sequence, " position ",
                                              row.position, " does not follow from the tables"));
    }
    for (uint32_t node = 0; node < lane_.nodes.size() && !BySpan(config_); ++node) {
      if (plan::Holds(config_, node, sequence->join.memory_node)) {
        RowRange& range = lane_.nodes[node].rows;
        range.first =
            range.count == 0 ? static_cast<uint32_t>(lane_.positions.size()) : range.first;
        ++range.count;
      }
    }
    lane_.token_ids.push_back(static_cast<uint32_t>(sequence->tokens.back()));
    lane_.positions.push_back(row.position);
  }
  lane_.decode_rows = static_cast<uint32_t>(lane_.positions.size());
  return BySpan(config_) ? PlaceSpans() : absl::OkStatus();
}

// Which rows each memory node gets, in which order, and where its partials lie.
absl::Status Layouter::PlaceSpans() {
  const uint32_t span_tokens = config_.span_tokens;
  lane_.partials.clear();
  lane_.first_partial.assign(lane_.decode_rows + 1, 0);
  for (const bool own : {true, false}) {
    for (uint32_t row = 0; row < lane_.decode_rows; ++row) {
      const std::vector<uint32_t>& spans = SpansOf(row);
      const uint32_t last = lane_.positions[row] / span_tokens;
      if (last >= spans.size()) {
        return absl::InternalError(absl::StrCat("row ", row, " of lane ", lane_.plan.lane, " sees ",
                                                last + 1, " spans, of which slots for ",
                                                spans.size(), " were granted"));
      }
      if (*std::max_element(spans.begin(), spans.end()) >= lane_.nodes.size()) {
        return absl::InternalError(absl::StrCat("row ", row, " of lane ", lane_.plan.lane,
                                                " has a span on a memory node that is not there"));
      }
      for (uint32_t node = 0; node < lane_.nodes.size(); ++node) {
        const bool sees =
            std::find(spans.begin(), spans.begin() + last + 1, node) != spans.begin() + last + 1;
        if (sees && (spans[last] == node) == own) {
          lane_.nodes[node].span_rows.push_back(row);
          lane_.nodes[node].own_rows += own;
        }
      }
    }
  }
  for (NodeRows& part : lane_.nodes) {
    part.rows = {.first = 0, .count = static_cast<uint32_t>(part.span_rows.size())};
  }
  PlacePartials();
  return absl::OkStatus();
}

// A node's partials are row by row in the order of its rows, each row's in the order of its spans.
void Layouter::PlacePartials() {
  const uint32_t span_tokens = config_.span_tokens;
  for (uint32_t row = 0; row < lane_.decode_rows; ++row) {
    lane_.first_partial[row + 1] =
        lane_.first_partial[row] + lane_.positions[row] / span_tokens + 1;
  }
  lane_.partials.resize(lane_.first_partial.back());
  for (uint32_t node = 0; node < lane_.nodes.size(); ++node) {
    NodeRows& part = lane_.nodes[node];
    for (const uint32_t row : part.span_rows) {
      const std::vector<uint32_t>& spans = SpansOf(row);
      for (uint32_t span = 0; span <= lane_.positions[row] / span_tokens; ++span) {
        if (spans[span] == node) {
          lane_.partials[lane_.first_partial[row] + span] = {.node = node,
                                                             .index = part.partials++};
        }
      }
    }
  }
}

absl::Status Layouter::PlaceChunks() {
  for (const plan::PrefillChunk& chunk : lane_.plan.chunks) {
    const Sequence* sequence = sequences_.Find(chunk.sequence);
    const uint64_t end = uint64_t{chunk.first_token} + chunk.tokens;
    if (sequence == nullptr || sequence->join.memory_node >= lane_.nodes.size() ||
        chunk.tokens == 0 || end > sequence->join.tokens.size() ||
        (BySpan(config_) && end > sequence->slots) ||
        chunk.scratch_offset + end > config_.scratch_tokens) {
      return absl::InternalError(absl::StrCat("chunk [", chunk.first_token, ", +", chunk.tokens,
                                              ") of sequence ", chunk.sequence,
                                              " does not follow from the tables"));
    }
    lane_.chunks.push_back(
        {.plan = chunk,
         .first_row = static_cast<uint32_t>(lane_.positions.size()),
         .scratch = {.first_slot = chunk.scratch_offset, .tokens = static_cast<uint32_t>(end)}});
    for (uint32_t i = 0; i < chunk.tokens; ++i) {
      lane_.token_ids.push_back(static_cast<uint32_t>(sequence->tokens[chunk.first_token + i]));
      lane_.positions.push_back(chunk.first_token + i);
    }
  }
  // Staging rows: node by node, in the order of chunks. With heads spread every node has them all.
  uint32_t row = 0;
  for (uint32_t node = 0; node < lane_.nodes.size(); ++node) {
    row = ByHead(config_) ? 0 : row;
    lane_.nodes[node].kv_rows.first = row;
    for (const ChunkRows& chunk : lane_.chunks) {
      for (uint32_t i = 0; i < chunk.plan.tokens; ++i) {
        row += HoldsToken(config_, node, *sequences_.Find(chunk.plan.sequence),
                          chunk.plan.first_token + i);
      }
    }
    lane_.nodes[node].kv_rows.count = row - lane_.nodes[node].kv_rows.first;
  }
  if (row > config_.chunk_tokens_max) {
    return absl::InternalError(absl::StrCat("plan has ", row, " chunk tokens; at most ",
                                            config_.chunk_tokens_max, " fit"));
  }
  return absl::OkStatus();
}

// Decode rows that are not dead, the last token of last chunks, and every token that is scored.
void Layouter::ChooseTailRows() {
  lane_.tail.clear();
  for (uint32_t row = 0; row < lane_.decode_rows; ++row) {
    const plan::SequenceId id = lane_.plan.rows[row].sequence;
    if (!sequences_.Find(id)->finished) {
      lane_.tail.push_back({.row = row, .sequence = id, .position = lane_.positions[row]});
    }
  }
  for (const ChunkRows& chunk : lane_.chunks) {
    const plan::PrefillChunk& plan = chunk.plan;
    const Sequence& sequence = *sequences_.Find(plan.sequence);
    if (sequence.join.score) {
      for (uint32_t i = 0; i < plan.tokens; ++i) {
        if (plan.first_token + i + 1 < sequence.tokens.size()) {
          lane_.tail.push_back({.row = chunk.first_row + i,
                                .sequence = plan.sequence,
                                .position = plan.first_token + i,
                                .score = true});
        }
      }
    } else if (plan.last) {
      const uint32_t row = chunk.first_row + plan.tokens - 1;
      const uint32_t position = plan.first_token + plan.tokens - 1;
      lane_.tail.push_back({.row = row, .sequence = plan.sequence, .position = position});
      for (const plan::SequenceId child : sequence.children) {
        // It may have left, or be back on its own.
        const Sequence* fork = sequences_.Find(child);
        if (fork != nullptr && fork->join.parent == plan.sequence) {
          lane_.tail.push_back({.row = row, .sequence = child, .position = position});
        }
      }
    }
  }
}

}  // namespace

absl::Status LayOut(const plan::EpochConfig& config, SequenceTable& sequences, Lane& lane) {
  return Layouter(config, sequences, lane).Run();
}

bool HoldsToken(const plan::EpochConfig& config, uint32_t node, const Sequence& sequence,
                uint32_t token) {
  return BySpan(config) ? sequence.spans[token / config.span_tokens] == node
                        : plan::Holds(config, node, sequence.join.memory_node);
}

}  // namespace lamina::compute_node
