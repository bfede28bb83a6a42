// SPDX-License-Identifier: Apache-2.0
//
// ChosenInt8: some tokens of a sequence whose closed blocks are INT8, gathered for one row: what
// path sparse should attend to. For tests.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/kv_form.h"
#include "kernels/attention.h"
#include "kernels/int8_kv.h"
#include "kernels/int8_runs.h"
#include "kernels/k_tiles.h"
#include "kernels/kv_device.h"
#include "tests/unit/compute_node/whole_matrix.h"

namespace lamina::compute_node {

class ChosenInt8 {
 public:
  // `tokens` of the layer in order, the row's own at the end. The device has INT8 of the sequence
  // in slots of the tokens' numbers, and the open block in slots from 0 on.
  ChosenInt8(const AttentionDescriptor& shape, kernels::KvDevice& device, uint32_t layer,
             const std::vector<uint32_t>& tokens)
      : tokens_(static_cast<uint32_t>(tokens.size())) {
    const uint32_t closed_end = Int8TokensOf(tokens.back());
    std::vector<Extent> closed;
    std::vector<Extent> blocks;
    std::vector<Extent> open;
    for (const uint32_t token : tokens) {
      if (token >= closed_end) {
        open.push_back({.first_slot = token - closed_end, .tokens = 1});
        continue;
      }
      closed.push_back({.first_slot = token, .tokens = 1});
      if (blocks.empty() || blocks.back().first_slot != Int8TokensOf(token)) {
        blocks.push_back({.first_slot = Int8TokensOf(token), .tokens = kInt8BlockTokens});
        chosen_.push_back(0);
      }
      ++chosen_.back();
    }
    extent_.tokens = static_cast<uint32_t>(closed.size());
    const size_t dim = shape.head_dim;
    const size_t share = Int8ScalesOfSlot(shape.head_dim);
    int8_.slots = kernels::WholeTiles(std::max<size_t>(1, closed.size()));
    int8_.scale_slots = std::max<size_t>(1, blocks.size()) * kInt8BlockTokens;
    k_.resize(shape.kv_heads * int8_.slots * dim);
    v_.resize(k_.size());
    k_scales_.resize(shape.kv_heads * int8_.scale_slots * share);
    v_scales_.resize(shape.kv_heads * int8_.slots);
    int8_.k = k_.data();
    int8_.v = v_.data();
    int8_.k_scales = k_scales_.data();
    int8_.v_scales = v_scales_.data();
    head_stride_ = kInt8BlockTokens * dim;
    open_k_.resize(shape.kv_heads * head_stride_);
    open_v_.resize(open_k_.size());
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      const size_t first = head * int8_.slots;
      kernels::KvReads& reads = *device.reads();
      EXPECT_TRUE(reads
                      .LoadClosed(layer, head, closed, 0, extent_.tokens,
                                  {.k = int8_.k + first * dim,
                                   .v = int8_.v + first * dim,
                                   .v_scales = int8_.v_scales + first})
                      .ok());
      EXPECT_TRUE(reads
                      .LoadClosed(layer, head, blocks, 0,
                                  static_cast<uint32_t>(blocks.size()) * kInt8BlockTokens,
                                  {.k_scales = int8_.k_scales + head * int8_.scale_slots * share})
                      .ok());
      EXPECT_TRUE(reads
                      .Load(layer, head, open, 0, static_cast<uint32_t>(open.size()),
                            open_k_.data() + head * head_stride_,
                            open_v_.data() + head * head_stride_)
                      .ok());
    }
  }

  // Both refer to this.
  kernels::KvView View() const {
    return {.k = open_k_.data(), .v = open_v_.data(), .head_stride = head_stride_, .int8 = &int8_};
  }
  // What the row reads; q and out are the caller's to set.
  kernels::AttentionItem Item() const {
    return {.extents = {&extent_, extent_.tokens > 0 ? 1u : 0u},
            .first_position = tokens_ - 1,
            .int8_tokens = extent_.tokens,
            .chosen = chosen_};
  }

 private:
  const uint32_t tokens_;
  std::vector<uint32_t> chosen_;
  Extent extent_{.first_slot = 0, .tokens = 0};
  kernels::Int8View int8_;
  std::vector<uint8_t> k_, v_;
  std::vector<kernels::Int8Scale> k_scales_, v_scales_;
  std::vector<BFloat16> open_k_, open_v_;
  size_t head_stride_ = 0;
};

// Consecutive rows of path sparse, and where their sequence is, as ChosenInt8 has it. Those from
// token `chooses` on choose tokens, the others attend to all before them.
struct ChosenRows {
  const AttentionDescriptor& shape;
  kernels::KvDevice& device;
  uint32_t layer = 0;
  uint32_t first = 0;
  uint32_t tokens = 0;
  uint32_t chooses = 0;
  const BFloat16* qkv = nullptr;
  size_t qkv_stride = 0;
  BFloat16* out = nullptr;  // Row after row.
};

// Attention of the row at `position`, whose k and v are stored first, over the tokens that it
// chooses by the matrix, of which its weights become a row.
inline void AttendChosenInt8(const ChosenRows& rows, uint32_t position, double ratio,
                             WholeMatrix& matrix, ThreadPool& pool) {
  const AttentionDescriptor& shape = rows.shape;
  const Extent all{.first_slot = 0, .tokens = position + 1};
  const BFloat16* const q = rows.qkv + (position - rows.first) * rows.qkv_stride;
  const BFloat16* const k = q + shape.q_width();
  const kernels::Int8Run stored{
      .slots = {&all, 1}, .first_token = position, .tokens = 1, .k = k, .v = k + shape.kv_width()};
  EXPECT_TRUE(kernels::Int8Runs().Run(rows.device, rows.layer, AllHeads(shape), {&stored, 1}).ok());
  std::vector<uint32_t> tokens(position);
  std::iota(tokens.begin(), tokens.end(), 0);
  if (position >= rows.chooses) {
    tokens = matrix.Choose(ratio);
  }
  tokens.push_back(position);
  const ChosenInt8 chosen(shape, rows.device, rows.layer, tokens);
  kernels::AttentionItem item = chosen.Item();
  item.q = q;
  item.q_stride = rows.qkv_stride;
  item.out = rows.out + (position - rows.first) * shape.q_width();
  item.out_stride = shape.q_width();
  const auto scratch = kernels::ReferenceAttention().MakeScratch(shape, 1, position + 1, 1);
  kernels::ReferenceAttention().Attend(shape, chosen.View(), {&item, 1}, *scratch, pool);
  std::vector<BFloat16> ignored(shape.q_width());
  item.out = ignored.data();
  matrix.Add(tokens, WeightsOf(shape, chosen.View(), item, pool, kernels::CpuInt8Attention())[0],
             shape.query_heads);
}

inline void AttendChosenInt8(const ChosenRows& rows, double ratio, WholeMatrix& matrix,
                             ThreadPool& pool) {
  for (uint32_t i = 0; i < rows.tokens; ++i) {
    AttendChosenInt8(rows, rows.first + i, ratio, matrix, pool);
  }
}

}  // namespace lamina::compute_node
