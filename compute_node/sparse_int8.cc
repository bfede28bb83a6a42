// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_int8.h"

#include <algorithm>
#include <bit>

#include "common/kv_form.h"
#include "kernels/int8_arena.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {

SparseInt8::SparseInt8(WeighedAttention& attention, ResidentInt8& resident, uint32_t runs_max)
    : attention_(attention), resident_(resident) {
  extents_.reserve(2 * size_t{runs_max});  // Items point into it.
}

plan::FetchRun SparseInt8::RunOf(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                                 uint64_t kept) const {
  return plan::ChosenRun(run, set, kept, /*int8=*/true);
}

void SparseInt8::Attend(uint32_t layer, const PieceRows& rows, const plan::FetchPiece& piece,
                        std::byte* data, absl::Span<const Run> runs) {
  const Int8Piece planes = Int8PieceOf(rows.part(), piece, data);
  size_t blocks = 0;
  for (const Run& run : runs) {
    blocks += run.tokens.chosen_blocks + run.tokens.kept_blocks;
  }
  chosen_.clear();
  chosen_.reserve(blocks);  // Items point into it.
  extents_.clear();
  items_.clear();
  const auto visit = [&](bool chosen, auto attend) {
    Place at{
        .come = {.int8 = piece.filled, .scales = piece.filled_scales, .open = piece.filled_open}};
    for (const Run& run : runs) {
      const plan::FetchRun& tokens = run.tokens;
      if (tokens.chosen == chosen) {
        attend(run, at);
      }
      at.come.int8 += tokens.int8_slots() - tokens.filled_slots();
      at.come.scales += tokens.scale_slots() - tokens.filled_scales();
      at.come.open += tokens.tail_slots() - tokens.filled_open();
      at.filled.int8 += tokens.filled_slots();
      at.filled.scales += tokens.filled_scales();
      at.filled.open += tokens.filled_open();
    }
  };
  visit(true, [&](const Run& run, const Place& at) { AddChosen(layer, rows, planes, run, at); });
  if (!items_.empty()) {
    attention_.Attend(rows.part(), planes.View(), items_);
  }
  visit(false, [&](const Run& run, const Place& at) { AttendWhole(rows, planes, run, at.come); });
}

void SparseInt8::AppendChosen(const Run& run, absl::Span<const uint64_t> set) {
  static_assert(kInt8BlockTokens == 64, "a word is a block");
  for (const uint64_t block : set.first(run.rows.first_token / kInt8BlockTokens)) {
    if (block != 0) {
      chosen_.push_back(static_cast<uint32_t>(std::popcount(block)));
    }
  }
}

void SparseInt8::AddChosen(uint32_t layer, const PieceRows& rows, const Int8Piece& piece,
                           const Run& run, const Place& at) {
  const plan::FetchRun& tokens = run.tokens;
  const uint32_t open = tokens.filled_open() > 0 ? at.filled.open : at.come.open;
  const Extent own{.first_slot = open + tokens.tail_fetched() + tokens.kept_open,
                   .tokens = tokens.tokens};
  const uint32_t row = run.rows.first_row;
  kernels::StoreKv(rows.part(), rows.k(row), rows.v(row), rows.qkv_stride(), {&own, 1}, piece.k,
                   piece.v, piece.head_stride);
  if (tokens.kept > 0) {
    resident_.Fill(layer, rows.heads(), {.rows = run.rows, .kept = run.kept}, piece, at.filled);
  }
  const size_t first_chosen = chosen_.size();
  AppendChosen(run, run.come);
  AppendChosen(run, run.kept);
  const size_t first_extent = extents_.size();
  const uint32_t kept = tokens.kept - tokens.kept_open;
  if (tokens.chosen_closed > 0) {
    extents_.push_back({.first_slot = at.come.int8, .tokens = tokens.chosen_closed});
  }
  if (kept > 0) {
    extents_.push_back({.first_slot = at.filled.int8, .tokens = kept});
  }
  AddItems(rows, run, 0, tokens.tokens,
           {.extents = absl::MakeConstSpan(extents_).subspan(first_extent),
            .int8_tokens = tokens.chosen_closed + kept,
            .tail_slot = open,
            .chosen = absl::MakeConstSpan(chosen_).subspan(first_chosen),
            .scale_slot = at.come.scales,
            .later_block = tokens.chosen_blocks,
            .later_scale_slot = at.filled.scales});
}

void SparseInt8::AttendWhole(const PieceRows& rows, const Int8Piece& piece, const Run& run,
                             const ResidentInt8::Place& at) {
  const AttentionDescriptor& part = rows.part();
  Int8Piece own = piece;  // From the run's slots on.
  own.int8.k += size_t{at.int8} * part.head_dim;
  own.int8.v += size_t{at.int8} * part.head_dim;
  own.int8.k_scales += size_t{at.scales} * Int8ScalesOfSlot(part.head_dim);
  own.int8.v_scales += at.int8;
  const Extent closed{.first_slot = 0, .tokens = run.tokens.int8_slots()};
  const uint32_t before = run.tokens.before;
  const uint32_t end = before + run.tokens.tokens;
  for (uint32_t first = before; first < end;) {
    const uint32_t block = Int8TokensOf(first);
    const uint32_t next = std::min(end, block + kInt8BlockTokens);
    const Extent slots{.first_slot = at.open + first - block, .tokens = next - first};
    const uint32_t row = run.rows.first_row + first - before;
    kernels::StoreKv(part, rows.k(row), rows.v(row), rows.qkv_stride(), {&slots, 1}, piece.k,
                     piece.v, piece.head_stride);
    items_.clear();
    AddItems(rows, run, first - before, next - before,
             {.extents = {&closed, closed.tokens > 0 ? 1u : 0u},
              .int8_tokens = block,
              .tail_slot = at.open});
    attention_.Attend(part, own.View(), items_);
    if (next == block + kInt8BlockTokens && next <= closed.tokens) {
      kernels::CloseInt8Block(part, piece.View(), at.open, {&closed, 1}, block, own.int8);
    }
    first = next;
  }
}

void SparseInt8::AddItems(const PieceRows& rows, const Run& run, uint32_t first, uint32_t end,
                          kernels::AttentionItem item) {
  const size_t stride = size_t{run.tokens.before} + run.tokens.tokens;
  const uint32_t plain = run.tokens.tokens - run.weighed;
  const uint32_t row = run.rows.first_row;
  const auto add = [&](uint32_t from, uint32_t to, float* weights) {
    if (from < to) {
      item.first_position = run.tokens.before + from;
      item.query_tokens = to - from;
      item.q = rows.q(row + from);
      item.q_stride = rows.qkv_stride();
      item.out = rows.out(row + from);
      item.out_stride = rows.out_stride();
      items_.push_back({.attention = item, .weights = weights, .stride = stride});
    }
  };
  add(first, std::clamp(plain, first, end), nullptr);
  const uint32_t from = std::clamp(plain, first, end);
  add(from, end, run.weights + (from - std::min(from, plain)) * stride);
}

}  // namespace lamina::compute_node
