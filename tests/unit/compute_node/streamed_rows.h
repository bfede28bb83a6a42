// SPDX-License-Identifier: Apache-2.0
//
// What rows of heads that stream attend to, by its definition. For tests of attention paths.

#pragma once

#include <algorithm>
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
  const size_t named = streaming.layers.size();
  for (size_t layer = named; named > 0 && layer < layers; ++layer) {
    streaming.layers.push_back(std::vector<uint32_t>(streaming.layers[layer % named]));
  }
  streaming.layers.resize(named > 0 ? layers : 0);
  return streaming;
}

// Whether a row at `position` sees the token, and everything.
inline bool Sees(const StreamingHeads& streaming, int64_t position, int64_t token) {
  return token <= position && (token < streaming.sink || token > position - streaming.window);
}

// The tokens that a row sees, as it attends to them: those of whole tiles before the others, unless
// it sees everything.
inline std::vector<uint32_t> TokensOfRow(const StreamingHeads& streaming, uint32_t position) {
  std::vector<uint32_t> seen;
  for (uint32_t token = 0; token <= position; ++token) {
    if (Sees(streaming, position, token)) {
      seen.push_back(token);
    }
  }
  const auto in_whole_tile = [&](uint32_t token) {
    bool whole = true;
    for (uint32_t i = 0; i < 16; ++i) {
      whole = whole && Sees(streaming, position, token / 16 * 16 + i);
    }
    return whole;
  };
  if (seen.size() <= position) {
    std::stable_partition(seen.begin(), seen.end(), in_whole_tile);
  }
  return seen;
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
      std::vector<Extent> seen;
      for (const uint32_t token : TokensOfRow(streaming, rows.first_position + row)) {
        seen.push_back({.first_slot = token, .tokens = 1});
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
