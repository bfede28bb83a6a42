// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "hwy/base.h"
#include "kernels/cpu/pair_tiles.h"

namespace lamina::kernels::cpu {
namespace {

using Task = PanelTask<BFloat16>;

constexpr size_t kLanes = 16;
constexpr size_t kVectors = kPanelFeatures / kLanes;
// 24 sums, four vectors of weights and a broadcast pair fit the 32 registers, and two instructions
// of six cycles each can always be under way.
constexpr size_t kTileRows = 6;
// Up to twice as many rows go through half of a panel and then the other, so that each weight comes
// from memory or the second cache once: 24 sums as well.
constexpr size_t kHalfStrips = kVectors / 2;
constexpr size_t kHalfRows = kPairRowsOnce;
// So few rows leave the processor's own fetching ahead undisturbed: what more instructions would
// cost shows.
constexpr size_t kFewRows = 2;

struct NoFetcher {
  void Step() {}
};

uint32_t PairAt(const BFloat16* in) {
  uint32_t pair;
  std::memcpy(&pair, in, sizeof(pair));
  return pair;
}

}  // namespace
}  // namespace lamina::kernels::cpu

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512bf16,prfchw")
namespace lamina::kernels::cpu {
namespace {

// Many rows' sums go to lines that this core does not have: their pass would end with 24 stores
// that wait for them, one after the other, some 40 cycles each from the last cache. So it asks for
// them shortly before, to be written: row by row, where all fit the first cache next to the words
// that come meanwhile. Behind the last row that may be rows of the next pass, or nobody's.
class SumsFetcher {
 public:
  explicit SumsFetcher(PanelFetcher panel) : panel_(panel) {}

  // A pass begins whose sums go to rows from `out` on.
  HWY_INLINE void Begin(const float* out, size_t stride, size_t steps) {
    row_ = out;
    stride_ = stride;
    left_ = steps;
  }

  HWY_INLINE void Step() {
    panel_.Step();
    if (left_ <= kStepsAhead && left_ % kStepsEach == 0) {
      constexpr int kWrite = 1;
      constexpr int kFirstCache = 3;
      for (size_t v = 0; v < kVectors; ++v) {
        __builtin_prefetch(row_ + v * kLanes, kWrite, kFirstCache);
      }
      row_ += stride_;
    }
    --left_;
  }

 private:
  static constexpr size_t kStepsEach = 8;
  static constexpr size_t kStepsAhead = kTileRows * kStepsEach;
  PanelFetcher panel_;
  const float* row_ = nullptr;
  size_t stride_ = 0;
  size_t left_ = 0;
};

// Rows [row, row + kRows) of strips [strip, strip + kStrips) of the panel.
template <size_t kRows, size_t kStrips, class Fetcher>
HWY_INLINE void MultiplyTile(const Task& task, size_t row, size_t strip, Fetcher& fetcher) {
  float* HWY_RESTRICT out = task.out + row * task.out_stride + strip * kLanes;
  __m512 sums[kRows][kStrips];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kStrips; ++v) {
      sums[r][v] = task.first ? _mm512_setzero_ps()
                              : _mm512_loadu_ps(out + r * task.out_stride + v * kLanes);
    }
  }
  const BFloat16* HWY_RESTRICT in = task.in + row * task.in_stride;
  const uint32_t* HWY_RESTRICT words = task.words + strip * task.strip_words;
  for (size_t step = 0; step < task.steps; ++step) {
    __m512i weights[kStrips];
    for (size_t v = 0; v < kStrips; ++v) {
      weights[v] = _mm512_loadu_si512(words + v * task.strip_words);
    }
    fetcher.Step();
    for (size_t r = 0; r < kRows; ++r) {
      const __m512i pair = _mm512_set1_epi32(static_cast<int>(PairAt(in + r * task.in_stride)));
      for (size_t v = 0; v < kStrips; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], reinterpret_cast<__m512bh>(pair),
                                      reinterpret_cast<__m512bh>(weights[v]));
      }
    }
    in += 2;
    words += kLanes;
  }
  const float* const bias = task.bias == nullptr ? nullptr : task.bias + strip * kLanes;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kStrips; ++v) {
      const __m512 sum = bias == nullptr
                             ? sums[r][v]
                             : _mm512_add_ps(sums[r][v], _mm512_loadu_ps(bias + v * kLanes));
      _mm512_storeu_ps(out + r * task.out_stride + v * kLanes, sum);
    }
  }
}

template <class Fetcher>
HWY_INLINE void MultiplyRows(const Task& task, size_t row, size_t rows, Fetcher& fetcher) {
  switch (rows) {
    case 6:
      return MultiplyTile<6, kVectors>(task, row, 0, fetcher);
    case 5:
      return MultiplyTile<5, kVectors>(task, row, 0, fetcher);
    case 4:
      return MultiplyTile<4, kVectors>(task, row, 0, fetcher);
    case 3:
      return MultiplyTile<3, kVectors>(task, row, 0, fetcher);
    case 2:
      return MultiplyTile<2, kVectors>(task, row, 0, fetcher);
    default:
      return MultiplyTile<1, kVectors>(task, row, 0, fetcher);
  }
}

// In as few passes as can be, of rows as even as can be.
HWY_INLINE void MultiplyManyRows(const Task& task, size_t passes) {
  SumsFetcher fetcher{PanelFetcher(task.next, passes)};
  for (size_t row = 0; row < task.rows; --passes) {
    const size_t rows = (task.rows - row + passes - 1) / passes;
    fetcher.Begin(task.out + row * task.out_stride, task.out_stride, task.steps);
    MultiplyRows(task, row, rows, fetcher);
    row += rows;
  }
}

template <size_t kRows, FetchInto kInto>
HWY_INLINE void MultiplyHalves(const Task& task) {
  const uint32_t* const second = task.words + kHalfStrips * task.strip_words;
  StripFetcher<kHalfStrips, kInto> fetcher(task, task.words, second);
  MultiplyTile<kRows, kHalfStrips>(task, 0, 0, fetcher);
  fetcher = StripFetcher<kHalfStrips, kInto>(task, second, task.next);
  MultiplyTile<kRows, kHalfStrips>(task, 0, kHalfStrips, fetcher);
}

// Rows of one or two strips: 24 sums as well. Words are asked for ahead in the first pass over
// them.
template <size_t kStrips>
constexpr size_t kNarrowRows = 24 / kStrips;

template <size_t kRows, size_t kStrips, FetchInto kInto>
void MultiplyNarrowTile(const Task& task, size_t row) {
  if (row == 0) {
    StripFetcher<kStrips, kInto> fetcher(task, task.words, nullptr);
    MultiplyTile<kRows, kStrips>(task, row, 0, fetcher);
  } else {
    NoFetcher fetcher;
    MultiplyTile<kRows, kStrips>(task, row, 0, fetcher);
  }
}

template <size_t kStrips, FetchInto kInto, size_t... kRowsLess1>
void MultiplyNarrow(const Task& task, std::index_sequence<kRowsLess1...>) {
  using Multiply = void (*)(const Task&, size_t);
  static constexpr Multiply kByRows[] = {MultiplyNarrowTile<kRowsLess1 + 1, kStrips, kInto>...};
  constexpr size_t kRows = kNarrowRows<kStrips>;
  for (size_t row = 0, passes = (task.rows + kRows - 1) / kRows; row < task.rows; --passes) {
    const size_t rows = (task.rows - row + passes - 1) / passes;
    kByRows[rows - 1](task, row);
    row += rows;
  }
}

// One strip after the other: memory is read in its order. Zen 4 reads one such stream ahead by
// itself while it computes; four strips next to each other are four streams. More rows would wait
// for their few sums.
template <size_t kRows>
void MultiplyInOrder(const Task& task) {
  NoFetcher fetcher;
  for (size_t strip = 0; strip < task.strips; ++strip) {
    MultiplyTile<kRows, 1>(task, /*row=*/0, strip, fetcher);
  }
}

template <FetchInto kInto>
void MultiplyPanel(const Task& task) {
  constexpr bool kReadsAheadByItself = kInto == FetchInto::kSecondCache;
  if (kReadsAheadByItself && task.from_memory && task.rows > 0 && task.rows <= kFewRows) {
    return task.rows == 1 ? MultiplyInOrder<1>(task) : MultiplyInOrder<2>(task);
  }
  if (task.strips != kVectors) {
    return task.strips == 1
               ? MultiplyNarrow<1, kInto>(task, std::make_index_sequence<kNarrowRows<1>>())
               : MultiplyNarrow<2, kInto>(task, std::make_index_sequence<kNarrowRows<2>>());
  }
  switch (task.rows) {
    case 7:
      return MultiplyHalves<7, kInto>(task);
    case 8:
      return MultiplyHalves<8, kInto>(task);
    case 9:
      return MultiplyHalves<9, kInto>(task);
    case 10:
      return MultiplyHalves<10, kInto>(task);
    case 11:
      return MultiplyHalves<11, kInto>(task);
    case kHalfRows:
      return MultiplyHalves<kHalfRows, kInto>(task);
    default:
      break;
  }
  const size_t passes = (task.rows + kTileRows - 1) / kTileRows;
  if (passes > 1) {
    MultiplyManyRows(task, passes);
  } else if (task.rows > kFewRows) {
    StripFetcher<kVectors, kInto> fetcher(task, task.words, task.next);
    MultiplyRows(task, 0, task.rows, fetcher);
  } else if (task.rows > 0) {
    NoFetcher fetcher;
    MultiplyRows(task, 0, task.rows, fetcher);
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu
HWY_POP_ATTRIBUTES

namespace lamina::kernels::cpu {

bool HasPairTiles() {
  return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

void MultiplyPanelPairs(const PanelTask<BFloat16>& task) {
  // Zen 3 and Zen 4, of which the latter has the instruction.
  static const bool kIsZen4 = __builtin_cpu_is("amdfam19h") != 0;
  return kIsZen4 ? MultiplyPanel<FetchInto::kSecondCache>(task)
                 : MultiplyPanel<FetchInto::kFirstCache>(task);
}

}  // namespace lamina::kernels::cpu
