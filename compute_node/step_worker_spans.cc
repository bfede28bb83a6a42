// SPDX-License-Identifier: Apache-2.0
//
// Partition token_range: a row goes to every memory node that holds a span of its sequence, with k
// and v to the one that holds its own token. Each answers a partial for each span; they are merged
// here along the tree that one node alone would have followed.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compute_node/step_worker.h"
#include "kernels/canonical_math.h"

namespace lamina::compute_node {

// Which rows each memory node gets, in which order, and where its partials lie.
absl::Status StepWorker::PlaceSpans(Lane& lane) {
  const uint32_t span_tokens = options_.config.span_tokens;
  lane.partials.clear();
  lane.first_partial.assign(lane.decode_rows + 1, 0);
  for (NodePart& part : lane.nodes) {
    part.span_rows.clear();
    part.own_rows = 0;
    part.partials = 0;
  }
  for (const bool own : {true, false}) {
    for (uint32_t row = 0; row < lane.decode_rows; ++row) {
      const std::vector<uint32_t>& spans = SpansOf(lane, row);
      const uint32_t last = lane.positions[row] / span_tokens;
      if (last >= spans.size()) {
        return absl::InternalError(absl::StrCat("row ", row, " of lane ", lane.plan.lane, " sees ",
                                                last + 1, " spans, of which slots for ",
                                                spans.size(), " were granted"));
      }
      if (*std::max_element(spans.begin(), spans.end()) >= lane.nodes.size()) {
        return absl::InternalError(absl::StrCat("row ", row, " of lane ", lane.plan.lane,
                                                " has a span on a memory node that is not there"));
      }
      for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
        const bool sees =
            std::find(spans.begin(), spans.begin() + last + 1, node) != spans.begin() + last + 1;
        if (sees && (spans[last] == node) == own) {
          lane.nodes[node].span_rows.push_back(row);
          lane.nodes[node].own_rows += own;
        }
      }
    }
  }
  for (NodePart& part : lane.nodes) {
    part.rows = {.first = 0, .count = static_cast<uint32_t>(part.span_rows.size())};
  }
  PlacePartials(lane);
  return absl::OkStatus();
}

// A node's partials are row by row in the order of its rows, each row's in the order of its spans.
void StepWorker::PlacePartials(Lane& lane) {
  const uint32_t span_tokens = options_.config.span_tokens;
  for (uint32_t row = 0; row < lane.decode_rows; ++row) {
    lane.first_partial[row + 1] = lane.first_partial[row] + lane.positions[row] / span_tokens + 1;
  }
  lane.partials.resize(lane.first_partial.back());
  for (uint32_t node = 0; node < lane.nodes.size(); ++node) {
    NodePart& part = lane.nodes[node];
    for (const uint32_t row : part.span_rows) {
      const std::vector<uint32_t>& spans = SpansOf(lane, row);
      for (uint32_t span = 0; span <= lane.positions[row] / span_tokens; ++span) {
        if (spans[span] == node) {
          lane.partials[lane.first_partial[row] + span] = {.node = node, .index = part.partials++};
        }
      }
    }
  }
}

size_t StepWorker::PartialBytes(uint32_t layer) const {
  const AttentionDescriptor& shape = options_.config.layers[layer];
  return shape.query_heads * kernels::PartialWidth(shape) * sizeof(float);
}

// All replies are in their windows.
void StepWorker::MergePartials(Lane& lane) {
  const uint32_t layer = lane.slice - 1;
  const AttentionDescriptor& shape = options_.config.layers[layer];
  const size_t width = kernels::PartialWidth(shape);
  // Alike for all nodes, each of which has all heads.
  const core::RowPieces pieces = core::PiecesOf(lane.plan.chunking, 1, shape.kv_heads);
  const uint32_t blocks = options_.config.span_tokens / kernels::kBlockTokens;
  const auto out = executor_.AttentionRows(layer, lane.positions.size(), lane.buffers);
  std::vector<kernels::PartialStack>& stacks = partial_stacks_[shape.head_dim];
  if (stacks.empty()) {
    stacks.assign(pool_.threads(), kernels::PartialStack(shape.head_dim));
  }
  pool_.Run(lane.decode_rows, [&](size_t row, size_t worker) {
    kernels::PartialStack& stack = stacks[worker];
    const uint32_t first = lane.first_partial[row];
    const uint32_t end = lane.first_partial[row + 1];
    std::vector<float>& folded = folded_[worker];
    folded.resize(shape.head_dim);
    uint32_t group = 0;  // Of heads that came together, with all partials of a node.
    for (uint32_t head = 0; head < shape.query_heads; ++head) {
      group += pieces.by_heads &&
               head / shape.group() == pieces.Heads(group).first + pieces.Heads(group).count;
      const uint32_t group_first = pieces.Heads(group).first * shape.group();
      const uint32_t group_heads = pieces.Heads(group).count * shape.group();
      for (uint32_t i = first; i < end; ++i) {
        const Partial& partial = lane.partials[i];
        const std::byte* window =
            region_.bytes().data() +
            layout_.ReplyWindow(partial.node, IndexOf(lane), UnitValue(lane, layer)) +
            sizeof(core::WindowHeader);
        const float* values = reinterpret_cast<const float*>(window) +
                              (size_t{lane.nodes[partial.node].partials} * group_first +
                               size_t{partial.index} * group_heads + head - group_first) *
                                  width;
        // The last one may be a part of a span. What is merged after it is merged from the top.
        stack.Push((i - first) * blocks, i + 1 < end ? blocks : 1, values, values[shape.head_dim]);
      }
      float lse;
      stack.Fold(folded.data(), &lse);
      std::transform(folded.begin(), folded.end(), out.row(row) + size_t{head} * shape.head_dim,
                     kernels::canonical::RoundOutput);
    }
  });
  LapOf(lane, control::WorkPart::kTake, layer);
}

}  // namespace lamina::compute_node
