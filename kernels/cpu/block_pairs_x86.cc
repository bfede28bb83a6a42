// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>

#include "kernels/cpu/block_pairs.h"
#include "kernels/cpu/block_widen_x86-inl.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
namespace lamina::kernels::cpu {
namespace {

template <size_t kRows, size_t kStrips>
using Sums = __m512[kRows][kStrips];

// Pair `step` of the row, in all lanes.
HWY_INLINE __m512bh PairAt(const BFloat16* row, size_t step) {
  int pair;
  std::memcpy(&pair, row + 2 * step, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

// Adds the products of kSteps steps.
// Shapes: words  [strips, kSteps, 16]
template <size_t kSteps, size_t kRows, size_t kStrips>
HWY_INLINE void AddSteps(const uint32_t* words, const BFloat16* in, size_t in_stride,
                         Sums<kRows, kStrips>& sums) {
  for (size_t step = 0; step < kSteps; ++step) {
    for (size_t row = 0; row < kRows; ++row) {
      const __m512bh pair = PairAt(in + row * in_stride, step);
      for (size_t s = 0; s < kStrips; ++s) {
        const __m512i weights = _mm512_load_si512(words + (s * kSteps + step) * kStripFeatures);
        sums[row][s] = _mm512_dpbf16_ps(sums[row][s], pair, reinterpret_cast<__m512bh>(weights));
      }
    }
  }
}

template <BlockType kType, size_t kRows, size_t kStrips>
HWY_INLINE void Multiply(const FewRowsTask& task) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  constexpr size_t kSteps = kFormat.group / 2;
  constexpr size_t kFetchBytes = kFormat.bytes() / kFormat.groups();
  alignas(64) uint32_t words[kStrips * kStripFeatures * kSteps];
  Sums<kRows, kStrips> sums;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t s = 0; s < kStrips; ++s) {
      sums[row][s] = _mm512_setzero_ps();
    }
  }
  const uint8_t* chunk = task.panel + task.strip * kFormat.bytes();
  const uint8_t* const end =
      task.panel + task.steps / kFormat.steps() * kPanelStrips * kFormat.bytes();
  const std::ptrdiff_t to_next = task.next == nullptr ? 0 : task.next - end;
  const BFloat16* in = task.in;
  for (size_t left = task.steps; left > 0; left -= kFormat.steps()) {
    const uint8_t* ahead = chunk + kAheadBytes;
    ahead += ahead < end ? 0 : to_next;
    for (size_t group = 0; group < kFormat.groups(); ++group) {
      for (size_t s = 0; s < kStrips; ++s) {
        // A little with each group: many at once would wait for memory, and the arithmetic with
        // them.
        FetchFrom(ahead + s * kFormat.bytes() + group * kFetchBytes, kFetchBytes);
        WidenGroup<kType>(chunk + s * kFormat.bytes(), group, words + s * kSteps * kStripFeatures);
      }
      AddSteps<kSteps, kRows, kStrips>(words, in, task.in_stride, sums);
      in += kFormat.group;
    }
    chunk += kPanelStrips * kFormat.bytes();
  }
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t s = 0; s < kStrips; ++s) {
      const size_t at = s * kStripFeatures;
      _mm512_storeu_ps(task.out + row * task.out_stride + at,
                       _mm512_add_ps(sums[row][s], _mm512_loadu_ps(task.bias + at)));
    }
  }
}

template <BlockType kType, size_t kStrips>
void MultiplyStrips(const FewRowsTask& task) {
  switch (task.rows) {
    case 1:
      return Multiply<kType, 1, kStrips>(task);
    case 2:
      return Multiply<kType, 2, kStrips>(task);
    case 3:
      return Multiply<kType, 3, kStrips>(task);
    case 4:
      return Multiply<kType, 4, kStrips>(task);
    case 5:
      return Multiply<kType, 5, kStrips>(task);
    default:
      return Multiply<kType, 6, kStrips>(task);
  }
}

template <BlockType kType>
void MultiplyRows(const FewRowsTask& task) {
  switch (task.strips) {
    case 1:
      return MultiplyStrips<kType, 1>(task);
    case 2:
      return MultiplyStrips<kType, 2>(task);
    default:
      return MultiplyStrips<kType, kPanelStrips>(task);
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu
HWY_POP_ATTRIBUTES

namespace lamina::kernels::cpu {

MultiplyFewRows PairsOfBlocks(BlockType type) {
  switch (type) {
    case BlockType::kQ40:
      return MultiplyRows<BlockType::kQ40>;
    case BlockType::kQ41:
      return MultiplyRows<BlockType::kQ41>;
    case BlockType::kQ50:
      return MultiplyRows<BlockType::kQ50>;
    case BlockType::kQ51:
      return MultiplyRows<BlockType::kQ51>;
    case BlockType::kQ80:
      return MultiplyRows<BlockType::kQ80>;
    case BlockType::kIq4Nl:
      return MultiplyRows<BlockType::kIq4Nl>;
    case BlockType::kMxfp4:
      return MultiplyRows<BlockType::kMxfp4>;
    case BlockType::kQ2K:
      return MultiplyRows<BlockType::kQ2K>;
    case BlockType::kQ3K:
      return MultiplyRows<BlockType::kQ3K>;
    case BlockType::kQ4K:
      return MultiplyRows<BlockType::kQ4K>;
    case BlockType::kQ5K:
      return MultiplyRows<BlockType::kQ5K>;
    case BlockType::kQ6K:
      return MultiplyRows<BlockType::kQ6K>;
    case BlockType::kIq4Xs:
      return MultiplyRows<BlockType::kIq4Xs>;
    case BlockType::kInt8:
      return MultiplyRows<BlockType::kInt8>;
  }
  return nullptr;
}

}  // namespace lamina::kernels::cpu
