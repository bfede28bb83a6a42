// SPDX-License-Identifier: Apache-2.0
//
// Attention over one block of tokens of which the first are INT8, in vectors: compiled once for
// each instruction set. As attention_tile.cc; elements of a head stay in their order.
#include <algorithm>
#include <limits>

#include "kernels/canonical_math.h"
#include "kernels/cpu/int8_attention_internal.h"
#include "kernels/partial.h"

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/int8_attention_tile.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as it must be.
#include "hwy/highway.h"
#include "kernels/cpu/attention_scores-inl.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/int8_scores-inl.h"
#include "kernels/cpu/int8_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

// Widens a tile's queries. Behind a head's end are zeros.
template <class D>
void BeginInt8Tile(const Tile& tile, Workspace& work) {
  for (uint32_t row = 0; row < tile.rows(); ++row) {
    const BFloat16* from =
        tile.q + row / tile.group * tile.q_stride + size_t{row % tile.group} * tile.head_dim;
    float* to = work.q + size_t{row} * tile.padded_dim;
    std::transform(from, from + tile.head_dim, to, ToFloat);
    std::fill(to + tile.head_dim, to + tile.padded_dim, 0.0f);
  }
  work.depth = 0;
}

// Scales of K of a part.
template <class D>
void ExpandKeyScales(const Int8Tile& tile, const Int8Block& block, uint32_t part,
                     Int8Workspace& work) {
  const uint32_t share = Int8ScalesOfSlot(tile.tile.head_dim);
  const uint32_t* const slots = block.slots + part * kInt8BlockTokens;
  const Int8Scale* scales = tile.int8.k_scales + size_t{slots[0]} * share;
  Int8Scale gathered[256];
  if ((block.runs >> part & 1) == 0) {
    for (uint32_t channel = 0; channel < tile.tile.head_dim; ++channel) {
      gathered[channel] =
          tile.int8.k_scales[size_t{slots[channel / share]} * share + channel % share];
    }
    scales = gathered;
  }
  Int8s<D>::Expand(scales, tile.tile.head_dim, work.k_steps, work.k_bases);
}

// Attends one block and merges its partials into the stack.
template <class D>
void AttendInt8Block(const Int8Tile& tile, const Int8Block& block, Int8Workspace& work) {
  // First, since it writes whole tiles, of which chosen tokens may have the beginning of one.
  if (block.all.end > block.int8_end) {
    Block tail = block.all;
    tail.begin = std::max(tail.begin, block.int8_end);
    tail.next_begin = tail.begin;
    Scores<D>::Run(tile.tile, tail, work.work);
  }
  if (!block.segments.empty()) {
    Int8Scores<D>::RunSegments(tile, block, work);
  } else {
    for (uint32_t part = block.all.begin / kInt8BlockTokens;
         part * kInt8BlockTokens < block.int8_end; ++part) {
      ExpandKeyScales<D>(tile, block, part, work);
      Int8Scores<D>::Run(tile, block, part, work);
    }
  }
  Softmax<D>::Run(tile.tile, block.all, work.work);
  Softmax<D>::FindLse(tile.tile, work.work);
  Int8Values<D>::Run(tile, block, work);
  Softmax<D>::Push(tile.tile, block.all, work.work);
}

// Folds the stack from the top and rounds the result.
template <class D>
void EndInt8Tile(const Tile& tile, Workspace& work) {
  while (work.depth > 1) {
    Softmax<D>::MergeTopTwo(tile, work);
  }
  for (uint32_t row = 0; row < tile.rows(); ++row) {
    const float* from = work.stack + size_t{row} * tile.padded_dim;
    const uint32_t token = row / tile.group;
    const uint32_t head = row % tile.group;
    if (tile.partial != nullptr) {
      float* to = tile.partial + (size_t{token} * tile.query_heads + head) * tile.partial_stride;
      std::copy_n(from, tile.head_dim, to);
      to[tile.head_dim] = work.stack_lse[row];
      continue;
    }
    const float share =
        tile.sinks == nullptr ? 1.0f : ShareWithSink(work.stack_lse[row], tile.sinks[head]);
    std::transform(from, from + tile.head_dim,
                   tile.out + token * tile.out_stride + size_t{head} * tile.head_dim,
                   [share](float x) { return canonical::RoundOutput(share * x); });
  }
}

template <class D>
const Int8Ops* Int8OpsFor() {
  // The reference fuses each multiply-add.
  if constexpr (hwy::HWY_NAMESPACE::MaxLanes(D()) >= 4 && HWY_NATIVE_FMA == 1) {
    static const Int8Ops ops = {.name = hwy::TargetName(HWY_TARGET),
                                .begin = BeginInt8Tile<D>,
                                .block = AttendInt8Block<D>,
                                .end = EndInt8Tile<D>,
                                .merge_top_two = Softmax<D>::MergeTopTwo};
    return &ops;
  } else {
    return nullptr;
  }
}

const Int8Ops* Int8OpsHere() {
  return Int8OpsFor<hwy::HWY_NAMESPACE::CappedTag<float, canonical::kLanes>>();
}

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

namespace lamina::kernels::internal {
namespace {

HWY_EXPORT(Int8OpsHere);

std::vector<const Int8Ops*> FindSupported() {
  std::vector<const Int8Ops*> found;
  // Better targets have lower bits.
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    hwy::ChosenTarget chosen;
    chosen.Update(left & -left);
    if (const Int8Ops* ops = HWY_DISPATCH_TABLE(Int8OpsHere)[chosen.GetIndex()]()) {
      found.push_back(ops);
    }
  }
  return found;
}

}  // namespace

absl::Span<const Int8Ops* const> SupportedInt8Ops() {
  static const auto* const found = new std::vector<const Int8Ops*>(FindSupported());
  return *found;
}

}  // namespace lamina::kernels::internal
#endif  // HWY_ONCE
