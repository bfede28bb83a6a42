// SPDX-License-Identifier: Apache-2.0
//
// Attention over one block of tokens, in vectors: compiled once for each instruction set.
//
// The bits are those of kernels/reference/attention.cc. Sixteen virtual lanes are one vector of
// AVX-512 or two of AVX2 ("parts"). Every function follows the order of
// docs/design/attention_numerics.md; what is free (which rows go together, how far a pass reaches)
// is chosen for speed.
//
// Highway's names are found through their arguments, so that the templates also parse for the
// scalar target, which is never instantiated: without a fused multiply-add the reference runs.
#include <algorithm>
#include <limits>

#include "kernels/canonical_math.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/partial.h"

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_tile.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, as it must be.
#include "hwy/highway.h"
#include "kernels/cpu/attention_scores-inl.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/attention_values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

// Where on the stack element `i` of a head is: of each vector of bf16, fours go to two vectors of
// floats in turns (Halfwords).
template <class D>
constexpr size_t PlaceOnStack(size_t i) {
  constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  return i / (2 * kN) * 2 * kN + i / 4 % 2 * kN + i % (2 * kN) / 8 * 4 + i % 4;
}

// Widens a tile's queries. Behind a head's end are zeros.
template <class D>
void BeginTile(const Tile& tile, Workspace& work) {
  for (uint32_t row = 0; row < tile.rows(); ++row) {
    const BFloat16* from =
        tile.q + row / tile.group * tile.q_stride + size_t{row % tile.group} * tile.head_dim;
    float* to = work.q + size_t{row} * tile.padded_dim;
    for (uint32_t i = 0; i < tile.head_dim; ++i) {
      to[i] = ToFloat(from[i]);
    }
    std::fill(to + tile.head_dim, to + tile.padded_dim, 0.0f);
  }
  work.depth = 0;
}

// MergeOps::close.
template <class D>
void CloseBlock(const Tile& tile, const Block& block, Workspace& work) {
  Softmax<D>::FindLse(tile, work);
  Values<D>::Normalise(tile, work);
  Softmax<D>::Push(tile, block, work);
}

// Attends one block and merges its partials into the stack.
template <class D>
void AttendBlock(const Tile& tile, const Block& block, Workspace& work) {
  Scores<D>::Run(tile, block, work);
  Softmax<D>::Run(tile, block, work);
  Values<D>::Run(tile, block, work);
  CloseBlock<D>(tile, block, work);
}

// Folds the stack from the top and rounds the result.
template <class D>
void EndTile(const Tile& tile, Workspace& work) {
  while (work.depth > 1) {
    Softmax<D>::MergeTopTwo(tile, work);
  }
  for (uint32_t row = 0; row < tile.rows(); ++row) {
    const float* from = work.stack + size_t{row} * tile.padded_dim;
    if (tile.partial != nullptr) {
      float* to = tile.partial + (size_t{row / tile.group} * tile.query_heads + row % tile.group) *
                                     tile.partial_stride;
      for (uint32_t i = 0; i < tile.head_dim; ++i) {
        to[i] = from[PlaceOnStack<D>(i)];
      }
      to[tile.head_dim] = work.stack_lse[row];
      continue;
    }
    BFloat16* to =
        tile.out + row / tile.group * tile.out_stride + size_t{row % tile.group} * tile.head_dim;
    if (tile.sinks != nullptr) {
      const float share = ShareWithSink(work.stack_lse[row], tile.sinks[row % tile.group]);
      for (uint32_t i = 0; i < tile.head_dim; ++i) {
        to[i] = canonical::RoundOutput(share * from[PlaceOnStack<D>(i)]);
      }
      continue;
    }
    for (uint32_t i = 0; i < tile.head_dim; ++i) {
      to[i] = canonical::RoundOutput(from[PlaceOnStack<D>(i)]);
    }
  }
}

template <class D>
const AttentionOps* OpsFor() {
  // The reference fuses each multiply-add.
  if constexpr (hwy::HWY_NAMESPACE::MaxLanes(D()) >= 4 && HWY_NATIVE_FMA == 1) {
    static const AttentionOps ops = {.name = hwy::TargetName(HWY_TARGET),
                                     .begin = BeginTile<D>,
                                     .block = AttendBlock<D>,
                                     .end = EndTile<D>,
                                     .merge = {.close = CloseBlock<D>,
                                               .merge_top_two = Softmax<D>::MergeTopTwo,
                                               .cap = Softmax<D>::Cap}};
    return &ops;
  } else {
    return nullptr;
  }
}

const AttentionOps* Ops() {
  return OpsFor<hwy::HWY_NAMESPACE::CappedTag<float, canonical::kLanes>>();
}

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

namespace lamina::kernels::internal {
namespace {

HWY_EXPORT(Ops);

std::vector<const AttentionOps*> FindSupported() {
  std::vector<const AttentionOps*> found;
  // Better targets have lower bits.
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    hwy::ChosenTarget chosen;
    chosen.Update(left & -left);
    if (const AttentionOps* ops = HWY_DISPATCH_TABLE(Ops)[chosen.GetIndex()]()) {
      found.push_back(ops);
    }
  }
  return found;
}

}  // namespace

absl::Span<const AttentionOps* const> SupportedAttentionOps() {
  static const auto* const found = new std::vector<const AttentionOps*>(FindSupported());
  return *found;
}

}  // namespace lamina::kernels::internal
#endif  // HWY_ONCE
