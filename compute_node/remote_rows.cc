// SPDX-License-Identifier: Apache-2.0
#include "compute_node/remote_rows.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "compute_node/step_layout.h"
#include "compute_node/worker_context.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

class Placer {
 public:
  Placer(const plan::EpochConfig& config, SequenceTable& sequences, const Lane& lane,
         const PathRows& rows, RemoteRows& placed)
      : config_(config), sequences_(sequences), lane_(lane), rows_(rows), placed_(placed) {}

  absl::Status Run();

 private:
  void PlaceRows();
  absl::Status PlaceSpans();
  void PlacePartials();
  absl::Status PlaceChunks();
  absl::Span<const ChunkRows> chunks() const { return ChunksOf(lane_, rows_); }
  const Sequence& SequenceOf(uint32_t row) {
    return *sequences_.Find(lane_.plan.rows[row].sequence);
  }
  uint32_t rows_end() const { return rows_.decode.first + rows_.decode.count; }

  const plan::EpochConfig& config_;
  SequenceTable& sequences_;
  const Lane& lane_;
  const PathRows& rows_;
  RemoteRows& placed_;
};

absl::Status Placer::Run() {
  for (NodeRows& node : placed_.nodes) {
    node = {};
  }
  placed_.decode = rows_.decode;
  if (BySpan(config_)) {
    LAMINA_RETURN_IF_ERROR(PlaceSpans());
  } else {
    PlaceRows();
  }
  return PlaceChunks();
}

// The step's rows are sorted by memory node.
void Placer::PlaceRows() {
  for (uint32_t row = rows_.decode.first; row < rows_end(); ++row) {
    for (uint32_t node = 0; node < placed_.nodes.size(); ++node) {
      if (plan::Holds(config_, node, SequenceOf(row).join.memory_node)) {
        RowRange& range = placed_.nodes[node].rows;
        range.first = range.count == 0 ? row : range.first;
        ++range.count;
      }
    }
  }
}

// Which rows each memory node gets, in which order, and where its partials lie.
absl::Status Placer::PlaceSpans() {
  const uint32_t span_tokens = config_.span_tokens;
  for (const bool own : {true, false}) {
    for (uint32_t row = rows_.decode.first; row < rows_end(); ++row) {
      const std::vector<uint32_t>& spans = SequenceOf(row).spans;
      const uint32_t last = lane_.positions[row] / span_tokens;
      if (last >= spans.size()) {
        return absl::InternalError(absl::StrCat("row ", row, " of lane ", lane_.plan.lane, " sees ",
                                                last + 1, " spans, of which slots for ",
                                                spans.size(), " were allocated"));
      }
      if (*std::max_element(spans.begin(), spans.end()) >= placed_.nodes.size()) {
        return absl::InternalError(absl::StrCat("row ", row, " of lane ", lane_.plan.lane,
                                                " has a span on a memory node that is not there"));
      }
      for (uint32_t node = 0; node < placed_.nodes.size(); ++node) {
        const bool sees =
            std::find(spans.begin(), spans.begin() + last + 1, node) != spans.begin() + last + 1;
        if (sees && (spans[last] == node) == own) {
          placed_.nodes[node].span_rows.push_back(row);
          placed_.nodes[node].own_rows += own;
        }
      }
    }
  }
  for (NodeRows& part : placed_.nodes) {
    part.rows = {.first = 0, .count = static_cast<uint32_t>(part.span_rows.size())};
  }
  PlacePartials();
  return absl::OkStatus();
}

// A node's partials are row by row in the order of its rows, each row's in the order of its spans.
void Placer::PlacePartials() {
  const uint32_t span_tokens = config_.span_tokens;
  std::vector<uint32_t>& first = placed_.first_partial;
  first.assign(rows_.decode.count + 1, 0);
  for (uint32_t i = 0; i < rows_.decode.count; ++i) {
    first[i + 1] = first[i] + lane_.positions[rows_.decode.first + i] / span_tokens + 1;
  }
  placed_.partials.resize(first.back());
  for (uint32_t node = 0; node < placed_.nodes.size(); ++node) {
    NodeRows& part = placed_.nodes[node];
    for (const uint32_t row : part.span_rows) {
      const std::vector<uint32_t>& spans = SequenceOf(row).spans;
      for (uint32_t span = 0; span <= lane_.positions[row] / span_tokens; ++span) {
        if (spans[span] == node) {
          placed_.partials[first[row - rows_.decode.first] + span] = {.node = node,
                                                                      .index = part.partials++};
        }
      }
    }
  }
}

// Staging rows: node by node, in the order of chunks. With heads spread every node has them all.
absl::Status Placer::PlaceChunks() {
  for (const ChunkRows& chunk : chunks()) {
    const uint64_t end = uint64_t{chunk.plan.first_token} + chunk.plan.tokens;
    if ((BySpan(config_) && end > sequences_.Find(chunk.plan.sequence)->slots) ||
        chunk.plan.scratch_offset + end > config_.scratch_tokens) {
      return ChunkDoesNotFollow(chunk.plan);
    }
  }
  uint32_t row = 0;
  for (uint32_t node = 0; node < placed_.nodes.size(); ++node) {
    row = ByHead(config_) ? 0 : row;
    RowRange& kv_rows = placed_.nodes[node].kv_rows;
    kv_rows.first = row;
    for (const ChunkRows& chunk : chunks()) {
      const Sequence& sequence = *sequences_.Find(chunk.plan.sequence);
      for (uint32_t i = 0; i < chunk.plan.tokens; ++i) {
        row += HoldsToken(config_, node, sequence, chunk.plan.first_token + i);
      }
    }
    kv_rows.count = row - kv_rows.first;
  }
  if (row > config_.chunk_tokens_max) {
    return absl::InternalError(absl::StrCat("plan has ", row, " chunk tokens; at most ",
                                            config_.chunk_tokens_max, " fit"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlaceRemoteRows(const plan::EpochConfig& config, SequenceTable& sequences,
                             const Lane& lane, const PathRows& rows, RemoteRows& placed) {
  return Placer(config, sequences, lane, rows, placed).Run();
}

bool HoldsToken(const plan::EpochConfig& config, uint32_t node, const Sequence& sequence,
                uint32_t token) {
  return BySpan(config) ? sequence.spans[token / config.span_tokens] == node
                        : plan::Holds(config, node, sequence.join.memory_node);
}

}  // namespace lamina::compute_node
