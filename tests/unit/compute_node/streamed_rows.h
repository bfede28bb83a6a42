// SPDX-License-Identifier: Apache-2.0
//
// What rows of heads that stream attend to, by its definition. For tests of attention paths.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/streaming_heads.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {

// Heads by layer, for so many layers: those of `streaming`, again from the first one on behind the
// last.
inline StreamingHeads ForLayers(StreamingHeads streaming, size_t layers) {
  for (size_t layer = streaming.layers.size(); !streaming.empty() && layer < layers; ++layer) {
    streaming.layers.push_back(streaming.layers[layer % streaming.layers.size()]);
  }
  streaming.layers.resize(streaming.empty() ? 0 : layers);
  return streaming;
}

// Attends the item's rows again in the KV heads that stream: each by itself over a list of the
// tokens that it sees. Token t is in slot t of `arena`.
inline void AttendStreamed(const StreamingHeads& streaming, const AttentionDescriptor& shape,
                           uint32_t layer, const kernels::AttentionItem& rows,
                           kernels::KvArena& arena, ThreadPool& pool) {
  for (uint32_t head = 0; !streaming.empty() && head < shape.kv_heads; ++head) {
    const AttentionDescriptor part = PartOf(shape, {.first = head, .count = 1});
    const size_t first_q = size_t{head} * part.q_width();
    for (uint32_t row = 0; streaming.Streams(layer, head) && row < rows.query_tokens; ++row) {
      const int64_t position = int64_t{rows.first_position} + row;
      std::vector<Extent> seen;
      for (uint32_t token = 0; token <= position; ++token) {
        if (token < streaming.sink || token > position - streaming.window) {
          seen.push_back({.first_slot = token, .tokens = 1});
        }
      }
      const auto count = static_cast<uint32_t>(seen.size());
      const kernels::AttentionItem item{.extents = seen,
                                        .first_position = count - 1,
                                        .q = rows.q + row * rows.q_stride + first_q,
                                        .q_stride = rows.q_stride,
                                        .out = rows.out + row * rows.out_stride + first_q,
                                        .out_stride = rows.out_stride};
      const auto scratch = kernels::ReferenceAttention().MakeScratch(part, 1, count, 1);
      kernels::ReferenceAttention().Attend(part, arena.View(layer, head), {&item, 1}, *scratch,
                                           pool);
    }
  }
}

}  // namespace lamina::compute_node
