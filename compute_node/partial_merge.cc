// SPDX-License-Identifier: Apache-2.0
#include "compute_node/partial_merge.h"

namespace lamina::compute_node {

void PartialMerge::Run(Lane& lane, const RemoteRows& rows, ReplyOf reply_of) {
  const uint32_t layer = lane.slice - 1;
  const AttentionDescriptor& shape = context_.config.layers[layer];
  // Heads come in groups, alike from all nodes, each of which has all heads.
  const plan::RowPieces pieces = plan::PiecesOf(lane.plan.chunking, 1, shape.kv_heads);
  const auto out = context_.executor.AttentionRows(layer, lane.positions.size(), lane.buffers);
  const absl::Span<kernels::SpanFold> folds = folds_.Of(shape.head_dim);
  replies_.clear();
  for (uint32_t node = 0; node < rows.nodes.size(); ++node) {
    replies_.push_back(reply_of(node));
  }
  context_.pool.Run(rows.decode.count, [&](size_t row, size_t worker) {
    kernels::SpanFold& fold = folds[worker];
    const uint32_t first = rows.first_partial[row];
    const uint32_t end = rows.first_partial[row + 1];
    uint32_t group = 0;
    for (uint32_t head = 0; head < shape.query_heads; ++head) {
      group += pieces.by_heads &&
               head / shape.group() == pieces.Heads(group).first + pieces.Heads(group).count;
      for (uint32_t i = first; i < end; ++i) {
        const SpanPartial& partial = rows.partials[i];
        const plan::ReplyWindowReader& reply = replies_[partial.node];
        const plan::ReplyChunk chunk = reply.Chunk(group);
        fold.Add(reply.Partial(chunk, partial.index, head - chunk.first_query_head()),
                 /*is_last=*/i + 1 == end);
      }
      fold.Finish(shape, head, out.row(rows.decode.first + row) + size_t{head} * shape.head_dim);
    }
  });
  context_.intervals.EndIntervalOf(lane, telemetry::WorkKind::kTake, layer);
}

}  // namespace lamina::compute_node
