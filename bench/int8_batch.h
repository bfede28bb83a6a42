// SPDX-License-Identifier: Apache-2.0
//
// Int8Batch: rows over K and V as INT8, for lamina-bench-attention.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/kv_form.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/int8_arena.h"
#include "kernels/int8_kv.h"
#include "kernels/k_tiles.h"

namespace lamina::bench {

// Sequences of closed blocks over `bytes` of INT8, so many rows for each, one sequence after the
// other and again.
class Int8Batch {
 public:
  Int8Batch(const AttentionDescriptor& d, size_t bytes, uint32_t context, uint32_t times = 1)
      : descriptor_(d), context_(context) {
    const auto slots = static_cast<uint32_t>(bytes / KvSlotBytes({&d, 1}, KvForm::kInt8) /
                                             kernels::kTileSlots * kernels::kTileSlots);
    auto int8 = kernels::Int8Arena::Create({&d, 1}, slots);
    LAMINA_CHECK(int8.ok());
    arena_.emplace(*std::move(int8));
    Fill();
    q_.assign(d.q_width(), ToBFloat16(0.5f));
    const uint32_t sequences = std::max(1u, slots / context);
    out_.resize(sequences * times * size_t{d.q_width()});
    for (uint32_t i = 0; i < sequences; ++i) {
      extents_.push_back({.first_slot = i * context, .tokens = context});
    }
    for (uint32_t i = 0; i < sequences * times; ++i) {
      items_.push_back({.extents = {&extents_[i % sequences], 1},
                        .first_position = context - 1,
                        .q = q_.data(),
                        .q_stride = d.q_width(),
                        .out = out_.data() + i * size_t{d.q_width()},
                        .out_stride = d.q_width(),
                        .int8_tokens = context});
    }
    view_ = arena_->View(0);
  }
  Int8Batch(const Int8Batch&) = delete;
  Int8Batch& operator=(const Int8Batch&) = delete;

  double tokens() const { return static_cast<double>(items_.size()) * context_; }
  void Attend(ThreadPool& pool) {
    const kernels::AttentionKernel& kernel = kernels::CpuInt8Attention();
    if (scratch_ == nullptr) {
      scratch_ = kernel.MakeScratch(descriptor_, 1, context_, pool.threads());
    }
    kernel.Attend(descriptor_, {.int8 = &view_}, items_, *scratch_, pool);
  }

 private:
  void Fill() {
    const kernels::Int8View view = arena_->View(0);
    const size_t slots = view.slots * descriptor_.kv_heads;
    uint32_t state = 1;
    for (size_t i = 0; i < slots * descriptor_.head_dim; ++i) {
      state = state * 1664525u + 1013904223u;
      view.k[i] = static_cast<uint8_t>(state >> 24);
      view.v[i] = static_cast<uint8_t>(state >> 16);
    }
    const kernels::Int8Scale scale = {.step = ToBFloat16(0.01f), .zero = 128};
    std::fill_n(view.v_scales, slots, scale);
    std::fill_n(view.k_scales, slots * Int8ScalesOfSlot(descriptor_.head_dim), scale);
  }

  const AttentionDescriptor descriptor_;
  const uint32_t context_;
  std::optional<kernels::Int8Arena> arena_;
  kernels::Int8View view_;
  std::vector<kernels::Extent> extents_;
  std::vector<BFloat16> q_, out_;
  std::vector<kernels::AttentionItem> items_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
};

}  // namespace lamina::bench
