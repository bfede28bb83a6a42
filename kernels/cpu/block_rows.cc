// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_rows.h"

#include <algorithm>
#include <array>

#include "common/dtype.h"
#include "kernels/cpu/block_layout.h"
#include "kernels/cpu/block_widen.h"

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kElementsMax = 256;
constexpr size_t kStripBytesMax = kStripFeatures * kElementsMax;  // At most 8 bits for each.

// Inputs of a strip's features as words become the rows' elements.
void Scatter(const uint32_t* words, size_t steps, size_t features, size_t col,
             MatrixView<float> out) {
  for (size_t f = 0; f < features; ++f) {
    float* to = out.row(f) + col;
    for (size_t step = 0; step < steps; ++step) {
      const uint32_t word = words[step * kStripFeatures + f];
      to[2 * step] = ToFloat({static_cast<uint16_t>(word)});
      to[2 * step + 1] = ToFloat({static_cast<uint16_t>(word >> 16)});
    }
  }
}

}  // namespace

bool HasFiniteScales(const BlockTable& table) {
  const BlockTypeInfo& info = InfoOf(table.type);
  std::array<uint8_t, kStripBytesMax> strip;
  const size_t count = table.rows * table.width / info.elements;
  for (size_t block = 0; block < count; block += kStripFeatures) {
    std::array<const uint8_t*, kStripFeatures> blocks = {};
    for (size_t i = 0; i < std::min(kStripFeatures, count - block); ++i) {
      blocks[i] = table.data + (block + i) * info.bytes;
    }
    if (!PackStripBlock(table.type, LaneOrder::kFeatures, blocks.data(), strip.data())) {
      return false;
    }
  }
  return true;
}

void WidenRows(const BlockTable& table, absl::Span<const uint32_t> ids, MatrixView<float> out) {
  const BlockTypeInfo& info = InfoOf(table.type);
  const WidenStrip widen = FeatureWidener(table.type);
  const size_t row_bytes = table.width / info.elements * info.bytes;
  std::array<uint8_t, kStripBytesMax> strip;
  alignas(64) std::array<uint32_t, kElementsMax / 2 * kStripFeatures> words;
  for (size_t first = 0; first < ids.size(); first += kStripFeatures) {
    const size_t count = std::min(kStripFeatures, ids.size() - first);
    for (size_t col = 0; col < table.width; col += info.elements) {
      std::array<const uint8_t*, kStripFeatures> blocks = {};
      for (size_t i = 0; i < count; ++i) {
        blocks[i] = table.data + ids[first + i] * row_bytes + col / info.elements * info.bytes;
      }
      PackStripBlock(table.type, LaneOrder::kFeatures, blocks.data(), strip.data());
      widen(strip.data(), 1, words.data());
      Scatter(words.data(), info.elements / 2, count, col, out.Rows(first, count));
    }
  }
}

}  // namespace lamina::kernels::cpu
