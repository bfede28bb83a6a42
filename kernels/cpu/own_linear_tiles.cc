// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/own_linear_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/own_linear_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());
// Registers that a panel's 64 features fill.
constexpr size_t kPanelVectors = kPanelFeatures / kLanes;

// One step of `kVectors` vectors against `kRows` rows: one input feature for f32 words, two for
// bf16.
struct BF16Words {
  static constexpr size_t kInputs = 2;
  template <size_t kInput, class V>
  static HWY_INLINE hn::Vec<Floats> Weight(V words) {
    const Words d;
    if constexpr (kInput == 0) {
      return hn::BitCast(Floats(), hn::ShiftLeft<16>(words));
    } else {
      return hn::BitCast(Floats(), hn::And(words, hn::Set(d, 0xffff0000u)));
    }
  }
};

struct F32Words {
  static constexpr size_t kInputs = 1;
  template <size_t kInput, class V>
  static HWY_INLINE hn::Vec<Floats> Weight(V words) {
    return hn::BitCast(Floats(), words);
  }
};

template <class Format, size_t kInput, size_t kRows, size_t kVectors, class V, class W>
HWY_INLINE void MultiplyStep(const W (&words)[kVectors], const float* HWY_RESTRICT in,
                             size_t in_stride, V (&sums)[kRows][kVectors]) {
  const Floats d;
  V weights[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    weights[v] = Format::template Weight<kInput>(words[v]);
  }
  for (size_t r = 0; r < kRows; ++r) {
    const V x = hn::Set(d, in[r * in_stride + kInput]);
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::MulAdd(x, weights[v], sums[r][v]);
    }
  }
}

using Task = PanelTask<float>;

// `kRows` rows times the `kVectors` vectors of features that start at `first`.
template <class Format, size_t kRows, size_t kVectors, class Fetch>
HWY_INLINE void MultiplyTile(const Task& task, size_t row, size_t first, Fetch& fetcher) {
  const Floats d;
  const Words dw;
  using V = hn::Vec<Floats>;
  float* HWY_RESTRICT out = task.out + row * task.out_stride + first;
  V sums[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = task.first ? hn::Zero(d) : hn::LoadU(d, out + r * task.out_stride + v * kLanes);
    }
  }
  const float* HWY_RESTRICT in = task.in + row * task.in_stride;
  const size_t strip_words = task.strip_words;
  const uint32_t* HWY_RESTRICT strip =
      task.words + first / kStripFeatures * strip_words + first % kStripFeatures;
  for (size_t step = 0; step < task.steps; ++step) {
    hn::Vec<Words> words[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      words[v] = hn::LoadU(
          dw, strip + v * kLanes / kStripFeatures * strip_words + v * kLanes % kStripFeatures);
    }
    fetcher.Step();
    MultiplyStep<Format, 0, kRows, kVectors>(words, in, task.in_stride, sums);
    if constexpr (Format::kInputs == 2) {
      MultiplyStep<Format, 1, kRows, kVectors>(words, in, task.in_stride, sums);
    }
    in += Format::kInputs;
    strip += kStripFeatures;
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V sum = task.bias == nullptr
                        ? sums[r][v]
                        : hn::Add(sums[r][v], hn::LoadU(d, task.bias + first + v * kLanes));
      hn::StoreU(sum, d, out + r * task.out_stride + v * kLanes);
    }
  }
}

// Vectors of a strip.
constexpr size_t kStripVectors = kStripFeatures / kLanes;

// Rows [row, row + kRows) of the panel, or of its strips at hand, which may be narrower than a
// tile.
template <class Format, size_t kRows, size_t kVectors, class Fetch>
HWY_INLINE void MultiplyRows(const Task& task, size_t row, Fetch& fetcher) {
  constexpr size_t kTile = kVectors * kLanes;
  const size_t features = task.strips * kStripFeatures;
  size_t first = 0;
  for (; first + kTile <= features; first += kTile) {
    MultiplyTile<Format, kRows, kVectors>(task, row, first, fetcher);
  }
  if constexpr (kVectors > kStripVectors) {
    for (; first < features; first += kStripFeatures) {
      MultiplyTile<Format, kRows, kStripVectors>(task, row, first, fetcher);
    }
  }
}

// Sixteen accumulators fit where there are 32 registers, eight where there are 16.
constexpr size_t kTileRows = kLanes == 16 ? 8 : 4;
constexpr size_t kTileVectors = 2;
// Few rows: no arithmetic to hide behind, so take wide tiles that read the panel in one pass.
constexpr size_t kWideVectors = kPanelVectors < 4 ? kPanelVectors : 4;

// How often the rows read the panel's words, in tiles.
constexpr size_t Passes(size_t rows) {
  const size_t high = rows / kTileRows + rows % kTileRows / 4;
  const size_t low = rows % 4 / 2 + rows % 2;
  return high * (kPanelVectors / kTileVectors) + low * (kPanelVectors / kWideVectors);
}

// Where the weights' reads are what takes time.
constexpr size_t kFewRows = 3;

template <class Format, class Fetch>
HWY_INLINE void MultiplyAllRows(const Task& task, Fetch fetcher) {
  size_t row = 0;
  for (; row + kTileRows <= task.rows; row += kTileRows) {
    MultiplyRows<Format, kTileRows, kTileVectors>(task, row, fetcher);
  }
  for (; row + 4 <= task.rows; row += 4) {
    MultiplyRows<Format, 4, kTileVectors>(task, row, fetcher);
  }
  for (; row + 2 <= task.rows; row += 2) {
    MultiplyRows<Format, 2, kWideVectors>(task, row, fetcher);
  }
  for (; row < task.rows; ++row) {
    MultiplyRows<Format, 1, kWideVectors>(task, row, fetcher);
  }
}

template <class Format>
HWY_INLINE void MultiplyPanel(const Task& task) {
  if (task.rows > kFewRows) {
    MultiplyAllRows<Format>(task, PanelFetcher(task.next, Passes(task.rows)));
  } else if (task.rows > 0) {
    MultiplyAllRows<Format>(task, PanelHalvesFetcher(task.next, task.steps, Passes(task.rows)));
  }
}

void PanelBF16(const Task& task) { MultiplyPanel<BF16Words>(task); }
void PanelF32(const Task& task) { MultiplyPanel<F32Words>(task); }
const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace lamina::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lamina::kernels::cpu {

HWY_EXPORT(PanelBF16);
HWY_EXPORT(PanelF32);
HWY_EXPORT(TargetName);

void MultiplyPanelBF16(const PanelTask<float>& task) { HWY_DYNAMIC_DISPATCH(PanelBF16)(task); }
void MultiplyPanelF32(const PanelTask<float>& task) { HWY_DYNAMIC_DISPATCH(PanelF32)(task); }
const char* PanelTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace lamina::kernels::cpu
#endif
