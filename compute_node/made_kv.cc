// SPDX-License-Identifier: Apache-2.0
#include "compute_node/made_kv.h"

#include <algorithm>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "compute_node/int8_piece.h"
#include "compute_node/int8_window.h"
#include "kernels/int8_arena.h"
#include "kernels/int8_kv.h"
#include "kernels/int8_runs.h"
#include "plan/epoch_shape.h"

namespace lamina::compute_node {
namespace {

// Scratch of the layer with most to a row serves all.
const AttentionDescriptor& WidestOf(const plan::EpochConfig& config) {
  return *std::max_element(config.layers.begin(), config.layers.end(),
                           [](const auto& a, const auto& b) { return a.q_width() < b.q_width(); });
}

class MadeBf16 final : public MadeKv {
 public:
  MadeBf16(const WorkerContext& context, const kernels::AttentionKernel& kernel, uint32_t rows_max)
      : context_(context),
        kernel_(kernel),
        slots_(context.config.made_tokens_max),
        scratch_(kernel.MakeScratch(WidestOf(context.config), rows_max,
                                    context.config.sequence_tokens_max, context.pool.threads())) {}

  size_t bytes() const override {
    return 2 * size_t{slots_} * plan::KvWidthMax(context_.config.layers) * sizeof(BFloat16);
  }

  absl::Status Store(const Layer& layer, absl::Span<const Rows> rows) override {
    const AttentionDescriptor& shape = context_.config.layers[layer.index];
    const Planes planes = PlanesOf(layer.index, layer.memory);
    for (const Rows& one : rows) {
      const BFloat16* const k = layer.qkv.row(one.row) + shape.q_width();
      const Extent slots{.first_slot = one.first_slot + one.before, .tokens = one.tokens};
      kernels::StoreKv(shape, k, k + shape.kv_width(), layer.qkv.stride, {&slots, 1}, planes.k,
                       planes.v, planes.head_stride);
    }
    return absl::OkStatus();
  }

  absl::Status StoreAndAttend(const Layer& layer, absl::Span<const Rows> rows) override {
    LAMINA_RETURN_IF_ERROR(Store(layer, rows));
    extents_.clear();
    extents_.reserve(rows.size());  // Items point into it.
    items_.clear();
    for (const Rows& one : rows) {
      extents_.push_back({.first_slot = one.first_slot, .tokens = one.before + one.tokens});
      items_.push_back({.extents = {&extents_.back(), 1},
                        .first_position = one.before,
                        .query_tokens = one.tokens,
                        .q = layer.qkv.row(one.row),
                        .q_stride = layer.qkv.stride,
                        .out = layer.out.row(one.row),
                        .out_stride = layer.out.stride});
    }
    kernel_.Attend(context_.config.layers[layer.index], View(layer.index, layer.memory), items_,
                   *scratch_, context_.pool);
    return absl::OkStatus();
  }

  void Fill(uint32_t layer, std::byte* memory, const Extent& slots,
            const Into& into) const override {
    into.rows.Fill(View(layer, memory), {&slots, 1},
                   {.first_slot = into.slot, .tokens = slots.tokens});
  }

 private:
  struct Planes {
    BFloat16* k = nullptr;
    BFloat16* v = nullptr;
    size_t head_stride = 0;
  };

  Planes PlanesOf(uint32_t layer, std::byte* memory) const {
    const AttentionDescriptor& shape = context_.config.layers[layer];
    auto* const k = reinterpret_cast<BFloat16*>(memory);
    return {.k = k,
            .v = k + size_t{slots_} * shape.kv_width(),
            .head_stride = size_t{slots_} * shape.head_dim};
  }
  kernels::KvView View(uint32_t layer, std::byte* memory) const {
    const Planes planes = PlanesOf(layer, memory);
    return {.k = planes.k, .v = planes.v, .head_stride = planes.head_stride};
  }

  const WorkerContext& context_;
  const kernels::AttentionKernel& kernel_;
  const uint32_t slots_;
  const std::unique_ptr<kernels::AttentionScratch> scratch_;
  std::vector<Extent> extents_;  // That items name.
  std::vector<kernels::AttentionItem> items_;
};

// Memory of a lane is a window's piece: INT8 of all tokens, and open blocks of the rows at hand.
// Sequences have whole blocks, and rows begin with one, so that nothing is left in an open block.
class MadeInt8 final : public MadeKv {
 public:
  MadeInt8(const WorkerContext& context, const kernels::AttentionKernel& kernel, uint32_t rows_max)
      : context_(context),
        slots_(context.config.made_tokens_max),
        tails_(std::max(1u, rows_max / kInt8BlockTokens)),
        window_(WidestOf(context.config), context.config.sequence_tokens_max, kernel,
                context.pool) {}

  size_t bytes() const override {
    size_t most = 0;
    for (uint32_t layer = 0; layer < context_.config.layers.size(); ++layer) {
      const uint32_t head_dim = context_.config.layers[layer].head_dim;
      most = std::max(most, plan::PlanesOf(PieceOf(layer), head_dim).end);
    }
    return most;
  }

  absl::Status Store(const Layer& layer, absl::Span<const Rows> rows) override {
    CollectRuns(layer, rows);
    for (kernels::Int8Run& run : runs_) {
      run.q = nullptr;
    }
    return Run(layer);
  }

  absl::Status StoreAndAttend(const Layer& layer, absl::Span<const Rows> rows) override {
    CollectRuns(layer, rows);
    return Run(layer);
  }

  void Fill(uint32_t layer, std::byte* memory, const Extent& slots,
            const Into& into) const override {
    const AttentionDescriptor& shape = context_.config.layers[layer];
    const Int8Piece from = Int8PieceOf(shape, PieceOf(layer), memory);
    const Int8Piece to = Int8PieceOf(into.rows.part(), into.piece, into.data);
    // Tokens go to slots of their numbers: some that are not copied come first.
    const Extent numbered[] = {{.first_slot = 0, .tokens = into.slot}, slots};
    const HeadRange heads = into.rows.heads();
    for (uint32_t head = 0; head < heads.count; ++head) {
      kernels::LoadInt8(shape.head_dim, Int8HeadOf(from.int8, heads.first + head, shape.head_dim),
                        numbered, into.slot, slots.tokens,
                        Int8HeadOf(to.int8, head, shape.head_dim));
    }
  }

 private:
  plan::FetchPiece PieceOf(uint32_t layer) const {
    return {.heads = AllHeads(context_.config.layers[layer]),
            .slots = tails_ * kInt8BlockTokens,
            .int8_slots = slots_,
            .scale_slots = slots_};
  }

  void CollectRuns(const Layer& layer, absl::Span<const Rows> rows) {
    LAMINA_CHECK(rows.size() <= tails_);
    const AttentionDescriptor& shape = context_.config.layers[layer.index];
    extents_.clear();
    extents_.reserve(rows.size());  // Runs point into it.
    runs_.clear();
    for (const Rows& one : rows) {
      const BFloat16* const q = layer.qkv.row(one.row);
      const auto tail = static_cast<uint32_t>(runs_.size());
      extents_.push_back({.first_slot = one.first_slot, .tokens = one.before + one.tokens});
      runs_.push_back({.slots = {&extents_.back(), 1},
                       .tail_slot = tail * kInt8BlockTokens,
                       .first_token = one.before,
                       .tokens = one.tokens,
                       .k = q + shape.q_width(),
                       .v = q + shape.q_width() + shape.kv_width(),
                       .kv_stride = layer.qkv.stride,
                       .q = q,
                       .q_stride = layer.qkv.stride,
                       .out = layer.out.row(one.row),
                       .out_stride = layer.out.stride});
    }
  }

  absl::Status Run(const Layer& layer) {
    const AttentionDescriptor& shape = context_.config.layers[layer.index];
    window_.SetPiece(shape, PieceOf(layer.index), layer.memory);
    return int8_runs_.Run(window_, 0, AllHeads(shape), runs_);
  }

  const WorkerContext& context_;
  const uint32_t slots_;
  const uint32_t tails_;  // Sequences of one call.
  Int8Window window_;
  kernels::Int8Runs int8_runs_;
  std::vector<Extent> extents_;  // That runs name.
  std::vector<kernels::Int8Run> runs_;
};

}  // namespace

std::unique_ptr<MadeKv> MakeMadeKv(const WorkerContext& context, KvForm form,
                                   const kernels::AttentionKernel& kernel, uint32_t rows_max) {
  if (form == KvForm::kInt8) {
    return std::make_unique<MadeInt8>(context, kernel, rows_max);
  }
  return std::make_unique<MadeBf16>(context, kernel, rows_max);
}

}  // namespace lamina::compute_node
