// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streaming_rows.h"

#include <algorithm>

namespace lamina::compute_node {

StreamingRows::StreamingRows(const StreamingHeads& streaming,
                             absl::Span<const AttentionDescriptor> layers, const Limits& limits,
                             const kernels::AttentionKernel& kernel, ThreadPool& pool)
    : streaming_(streaming), kernel_(kernel), pool_(pool) {
  // Scratch of the layer with most to a row serves all.
  const auto widest =
      std::max_element(layers.begin(), layers.end(),
                       [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
  scratch_ = kernel.MakeScratch(*widest, limits.rows, limits.context_tokens, pool.threads());
}

void StreamingRows::Clear() {
  items_.clear();
  extents_.clear();
  extents_ends_.clear();
}

void StreamingRows::Add(const Rows& rows, uint32_t first, uint32_t count, uint32_t position,
                        absl::Span<const Extent> extents) {
  items_.push_back({.first_position = position,
                    .query_tokens = count,
                    .q = rows.q + first * rows.q_stride,
                    .q_stride = rows.q_stride,
                    .out = rows.out + first * rows.out_stride,
                    .out_stride = rows.out_stride});
  extents_.insert(extents_.end(), extents.begin(), extents.end());
  extents_ends_.push_back(extents_.size());
}

void StreamingRows::AddWhole(const Rows& rows, uint32_t first_slot) {
  const Extent all{.first_slot = first_slot, .tokens = rows.first_position + rows.tokens};
  Add(rows, 0, rows.tokens, rows.first_position, {&all, 1});
}

void StreamingRows::AddStreamed(const Rows& rows, const Slots& slots) {
  uint32_t row = 0;
  while (row < rows.tokens && plan::SeenAt(streaming_, rows.first_position + row).first == 0) {
    ++row;
  }
  if (row > 0) {  // No gap then: they see all that there is.
    Rows whole = rows;
    whole.tokens = row;
    AddWhole(whole, slots.first_slot);
  }
  for (; row < rows.tokens; ++row) {
    AddStreamedRow(rows, row, slots);
  }
}

void StreamingRows::AddStreamedRow(const Rows& rows, uint32_t row, const Slots& slots) {
  constexpr uint32_t kTile = plan::kFetchTile;
  const uint32_t position = rows.first_position + row;
  const plan::SeenTokens seen = plan::SeenAt(streaming_, position);
  const uint32_t sink_tiles = seen.sink / kTile * kTile;
  const uint32_t tiles = plan::FetchRun::WholeTiles(seen.first);
  const uint32_t tiles_end = std::max(tiles, (position + 1) / kTile * kTile);
  Extent extents[5];
  size_t count = 0;
  const auto add = [&](uint32_t first, uint32_t end) {
    if (first < end) {
      const uint32_t gap = first >= slots.gap.end ? slots.gap.tokens() : 0;
      extents[count++] = {.first_slot = slots.first_slot + first - gap, .tokens = end - first};
    }
  };
  add(0, sink_tiles);
  add(tiles, tiles_end);
  add(sink_tiles, seen.sink);
  add(seen.first, std::min(tiles, position + 1));
  add(tiles_end, position + 1);
  const uint32_t tokens = seen.sink + position + 1 - seen.first;
  Add(rows, row, 1, tokens - 1, absl::MakeConstSpan(extents).first(count));
}

void StreamingRows::Attend(const AttentionDescriptor& part, const kernels::KvView& kv) {
  size_t first = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].extents = absl::MakeConstSpan(extents_).subspan(first, extents_ends_[i] - first);
    first = extents_ends_[i];
  }
  kernel_.Attend(part, kv, items_, *scratch_, pool_);
}

}  // namespace lamina::compute_node
