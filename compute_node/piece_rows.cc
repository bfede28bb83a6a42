// SPDX-License-Identifier: Apache-2.0
#include "compute_node/piece_rows.h"

#include <vector>

namespace lamina::compute_node {
namespace {

HeadRange HeadsOf(const WorkerContext& context, uint32_t node, uint32_t layer,
                  const plan::FetchPiece& piece) {
  return {.first = context.HeadsOf(layer, node).first + piece.heads.first,
          .count = piece.heads.count};
}

}  // namespace

PieceRows::PieceRows(const WorkerContext& context, Lane& lane, uint32_t node, uint32_t layer,
                     const plan::FetchPiece& piece, BFloat16* elements)
    : qkv_(context.executor.QkvRows(layer, lane.positions.size(), lane.buffers)),
      out_(context.executor.AttentionRows(layer, lane.positions.size(), lane.buffers)),
      heads_(HeadsOf(context, node, layer, piece)),
      part_(PartOf(context.config.layers[layer], heads_)),
      first_q_(size_t{heads_.first} * part_.group() * part_.head_dim),
      first_k_(context.config.layers[layer].q_width() + size_t{heads_.first} * part_.head_dim),
      kv_width_(context.config.layers[layer].kv_width()),
      k_(elements),
      v_(elements + piece.elements(part_.head_dim)),
      head_stride_(size_t{piece.slots} * part_.head_dim) {}

// Tokens go to slots of their numbers: some that are not copied come first.
void PieceRows::Fill(const kernels::KvView& arena, absl::Span<const Extent> tokens,
                     const Extent& slots) const {
  std::vector<Extent> numbered = {{.first_slot = 0, .tokens = slots.first_slot}};
  numbered.insert(numbered.end(), tokens.begin(), tokens.end());
  for (size_t head = 0; head < heads_.count; ++head) {
    const size_t from = (heads_.first + head) * arena.head_stride;
    kernels::LoadKv(part_.head_dim, arena.k + from, arena.v + from, numbered, slots.first_slot,
                    slots.tokens, k_ + head * head_stride_, v_ + head * head_stride_);
  }
}

}  // namespace lamina::compute_node
