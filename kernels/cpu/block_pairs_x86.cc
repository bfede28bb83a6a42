// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>

#include "kernels/cpu/block_pairs.h"
#include "kernels/cpu/block_widen_x86-inl.h"

namespace lamina::kernels::cpu {
namespace {

// Zen 3 and Zen 4, of which the latter has the instructions.
bool ReadsInTwoStreams() {
  static const bool kIsZen4 = __builtin_cpu_is("amdfam19h") != 0;
  return kIsZen4;
}

// What memory is asked for while a chunk is multiplied.
struct Requests {
  const uint8_t* own;    // A chunk's bytes from here on,
  bool half;             // or half of them,
  const uint8_t* other;  // and half as many from here on, unless it is null.
};

// In one stream, requests run kAheadBytes ahead of what is multiplied, at the panel's end into the
// next panel. A core of Zen 4 reads a quarter more in two streams, each at half the pace: through
// the second half of the panel, whose first half the task before asked for, and through the first
// half of the next panel.
class RequestsOfPanel {
 public:
  RequestsOfPanel(const FewRowsTask& task, const uint8_t* end)
      : panel_(task.panel),
        end_(end),
        to_next_(task.next == nullptr ? 0 : task.next - end),
        half_(task.asked && ReadsInTwoStreams()),
        next_(ReadsInTwoStreams() ? task.next : nullptr) {}

  Requests At(const uint8_t* chunk) const {
    const uint8_t* own =
        half_ ? panel_ + (end_ - panel_ + PassedAhead(chunk)) / 2 : chunk + kAheadBytes;
    own += own < end_ ? 0 : to_next_;
    return {.own = own,
            .half = half_,
            .other = next_ == nullptr ? nullptr : next_ + PassedAhead(chunk) / 2};
  }

 private:
  std::ptrdiff_t PassedAhead(const uint8_t* chunk) const {
    return chunk - panel_ + static_cast<std::ptrdiff_t>(kAheadBytes);
  }

  const uint8_t* panel_;
  const uint8_t* end_;
  std::ptrdiff_t to_next_;
  bool half_;
  const uint8_t* next_;
};

}  // namespace
}  // namespace lamina::kernels::cpu

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

// One group of inputs of the strips of a chunk.
struct StripGroup {
  const uint8_t* chunk;  // The first strip's block; the next one's is behind it.
  const Requests& requests;
  size_t group;

  // A little with each group: many at once would wait for memory, and the arithmetic with them.
  template <BlockType kType>
  HWY_INLINE void Fetch(size_t strip) const {
    constexpr size_t kBytes = FormatOf(kType).bytes();
    constexpr size_t kFetchBytes = kBytes / FormatOf(kType).groups();
    const size_t at = group * kFetchBytes;
    if (!requests.half) {
      FetchFrom(requests.own + strip * kBytes + at, kFetchBytes);
    } else if (strip % 2 == 0) {
      FetchFrom(requests.own + strip / 2 * kBytes + at, kFetchBytes);
    }
    if (strip % 2 == 1 && requests.other != nullptr) {
      FetchFrom(requests.other + strip / 2 * kBytes + at, kFetchBytes);
    }
  }
};

// Adds the products of a group, whose words lie in the first cache, for all rows.
template <BlockType kType, size_t kRows, size_t kStrips>
HWY_INLINE void AddGroup(const StripGroup& from, const BFloat16* in, size_t in_stride,
                         Sums<kRows, kStrips>& sums) {
  constexpr size_t kSteps = GroupWidener<kType>::kSteps;
  alignas(64) uint32_t words[kStrips * kStripFeatures * kSteps];
  for (size_t s = 0; s < kStrips; ++s) {
    from.Fetch<kType>(s);
    WidenGroup<kType>(from.chunk + s * FormatOf(kType).bytes(), from.group,
                      words + s * kSteps * kStripFeatures);
  }
  AddSteps<kSteps, kRows, kStrips>(words, in, in_stride, sums);
}

// Adds the products of a group of one strip for one row; its words stay in registers.
template <BlockType kType>
HWY_INLINE void AddStrip(const StripGroup& from, size_t strip, const BFloat16* in, __m512& sum) {
  from.Fetch<kType>(strip);
  const GroupWidener<kType> widener(from.chunk + strip * FormatOf(kType).bytes(), from.group);
  __m512 added = sum;
#pragma GCC unroll 16
  for (size_t step = 0; step < GroupWidener<kType>::kSteps; ++step) {
    added = _mm512_dpbf16_ps(added, PairAt(in, step), widener.WordsOf(step));
  }
  sum = added;
}

// Adds those of two strips, in turns: a product waits for the one before it in its sum.
template <BlockType kType>
HWY_INLINE void AddTwoStrips(const StripGroup& from, size_t strip, const BFloat16* in,
                             __m512* sums) {
  from.Fetch<kType>(strip);
  from.Fetch<kType>(strip + 1);
  const uint8_t* const block = from.chunk + strip * FormatOf(kType).bytes();
  const GroupWidener<kType> first(block, from.group);
  const GroupWidener<kType> second(block + FormatOf(kType).bytes(), from.group);
  __m512 added_first = sums[0];
  __m512 added_second = sums[1];
#pragma GCC unroll 16
  for (size_t step = 0; step < GroupWidener<kType>::kSteps; ++step) {
    const __m512bh pair = PairAt(in, step);
    added_first = _mm512_dpbf16_ps(added_first, pair, first.WordsOf(step));
    added_second = _mm512_dpbf16_ps(added_second, pair, second.WordsOf(step));
  }
  sums[0] = added_first;
  sums[1] = added_second;
}

template <BlockType kType, size_t kStrips>
HWY_INLINE void AddGroupToOneRow(const StripGroup& from, const BFloat16* in,
                                 Sums<1, kStrips>& sums) {
  if constexpr (kStrips == 1) {
    AddStrip<kType>(from, 0, in, sums[0][0]);
  } else {
    static_assert(kStrips % 2 == 0);
    for (size_t s = 0; s < kStrips; s += 2) {
      AddTwoStrips<kType>(from, s, in, &sums[0][s]);
    }
  }
}

template <BlockType kType, size_t kRows, size_t kStrips>
HWY_INLINE void Multiply(const FewRowsTask& task) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  Sums<kRows, kStrips> sums;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t s = 0; s < kStrips; ++s) {
      sums[row][s] = _mm512_setzero_ps();
    }
  }
  const uint8_t* chunk = task.panel + task.strip * kFormat.bytes();
  const uint8_t* const end =
      task.panel + task.steps / kFormat.steps() * kPanelStrips * kFormat.bytes();
  const RequestsOfPanel all_requests(task, end);
  const BFloat16* in = task.in;
  for (size_t left = task.steps; left > 0; left -= kFormat.steps()) {
    const Requests requests = all_requests.At(chunk);
    for (size_t group = 0; group < kFormat.groups(); ++group) {
      const StripGroup from = {.chunk = chunk, .requests = requests, .group = group};
      if constexpr (kRows == 1) {
        AddGroupToOneRow<kType, kStrips>(from, in, sums);
      } else {
        AddGroup<kType, kRows, kStrips>(from, in, task.in_stride, sums);
      }
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
