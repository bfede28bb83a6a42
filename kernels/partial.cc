// SPDX-License-Identifier: Apache-2.0
#include "kernels/partial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "kernels/canonical_math.h"

namespace lamina::kernels {
namespace {

constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();
// Sizes on the stack are distinct powers of two, and a merge needs one entry more.
constexpr size_t kEntriesMax = 33;

}  // namespace

void MergePartials(float* out_a, float* lse_a, const float* out_b, float lse_b, size_t head_dim) {
  if (lse_b == kEmptyLse) {
    return;
  }
  if (*lse_a == kEmptyLse) {
    std::memcpy(out_a, out_b, head_dim * sizeof(float));
    *lse_a = lse_b;
    return;
  }
  const float m = *lse_a > lse_b ? *lse_a : lse_b;
  const float weight_a = canonical::Exp(*lse_a - m);
  const float weight_b = canonical::Exp(lse_b - m);
  const float sum = weight_a + weight_b;
  const float share_a = weight_a / sum;
  const float share_b = weight_b / sum;
  for (size_t d = 0; d < head_dim; ++d) {
    out_a[d] = std::fma(share_a, out_a[d], share_b * out_b[d]);
  }
  *lse_a = m + canonical::Log(sum);
}

float ShareWithSink(float lse, float sink) {
  const float m = lse > sink ? lse : sink;
  const float weight = canonical::Exp(lse - m);
  return weight / (weight + canonical::Exp(sink - m));
}

PartialStack::PartialStack(size_t head_dim) : head_dim_(head_dim) {
  entries_.reserve(kEntriesMax);
  outs_.resize(kEntriesMax * head_dim);
}

void PartialStack::Push(uint32_t first_block, uint32_t blocks, const float* out, float lse) {
  LAMINA_CHECK(blocks != 0 && (blocks & (blocks - 1)) == 0 && first_block % blocks == 0);
  LAMINA_CHECK(entries_.empty() ||
               entries_.back().first_block + entries_.back().blocks == first_block);
  LAMINA_CHECK(entries_.size() < 2 * kEntriesMax);
  outs_.resize(std::max(outs_.size(), (entries_.size() + 1) * head_dim_));
  std::memcpy(outs_.data() + entries_.size() * head_dim_, out, head_dim_ * sizeof(float));
  entries_.push_back({.first_block = first_block, .blocks = blocks, .lse = lse});
  while (TopTwoAreSiblings()) {
    MergeTopTwo();
  }
}

bool PartialStack::TopTwoAreSiblings() const {
  if (entries_.size() < 2) {
    return false;
  }
  const Entry& left = entries_[entries_.size() - 2];
  const Entry& right = entries_.back();
  // 64 bits: two ranges of 2^31 blocks would double to 0.
  return left.blocks == right.blocks && left.first_block % (uint64_t{2} * left.blocks) == 0;
}

void PartialStack::MergeTopTwo() {
  const size_t left = entries_.size() - 2;
  MergePartials(outs_.data() + left * head_dim_, &entries_[left].lse,
                outs_.data() + (left + 1) * head_dim_, entries_[left + 1].lse, head_dim_);
  entries_[left].blocks += entries_[left + 1].blocks;
  entries_.pop_back();
}

PartialStack::EntryView PartialStack::entry(size_t i) const {
  const Entry& e = entries_[i];
  return {.first_block = e.first_block,
          .blocks = e.blocks,
          .out = outs_.data() + i * head_dim_,
          .lse = e.lse};
}

void PartialStack::Fold(float* out, float* lse) {
  if (entries_.empty()) {
    std::memset(out, 0, head_dim_ * sizeof(float));
    *lse = kEmptyLse;
    return;
  }
  while (entries_.size() > 1) {
    MergeTopTwo();
  }
  std::memcpy(out, outs_.data(), head_dim_ * sizeof(float));
  *lse = entries_[0].lse;
  entries_.clear();
}

}  // namespace lamina::kernels
