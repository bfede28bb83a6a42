// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_bf16.h"

#include "plan/token_sets.h"

namespace lamina::compute_node {

SparseBf16::SparseBf16(WeighedAttention& attention, const ResidentKv& resident, uint32_t runs_max)
    : attention_(attention), resident_(resident) {
  extents_.reserve(3 * size_t{runs_max});  // Items point into it.
}

plan::FetchRun SparseBf16::RunOf(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                                 uint64_t kept) const {
  return plan::ChosenRun(run, set, kept, /*int8=*/false);
}

void SparseBf16::Attend(uint32_t layer, const PieceRows& rows, const plan::FetchPiece& piece,
                        std::byte* /*data*/, absl::Span<const Run> runs) {
  extents_.clear();
  items_.clear();
  uint32_t filled = 0;
  uint32_t slot = piece.filled;
  for (const Run& one : runs) {
    const plan::FetchRun& run = one.tokens;
    const size_t first_extent = extents_.size();
    const Extent own{.first_slot = slot + run.fetched(), .tokens = run.tokens};
    rows.Store(one.rows.first_row, own);
    if (run.kept > 0) {
      kept_.clear();
      resident_.AppendSlots(one.rows.sequence, one.kept, kept_);
      rows.Fill(resident_.View(layer), kept_, {.first_slot = filled, .tokens = run.kept});
      extents_.push_back({.first_slot = slot, .tokens = run.fetched()});
      extents_.push_back({.first_slot = filled, .tokens = run.kept});
      extents_.push_back(own);
    } else {
      extents_.push_back({.first_slot = slot, .tokens = run.fetched() + run.tokens});
    }
    AddItems(rows, one, absl::MakeConstSpan(extents_).subspan(first_extent));
    filled += run.filled_slots();
    slot += run.slots();
  }
  attention_.Attend(rows.part(), rows.View(), items_);
}

void SparseBf16::AddItems(const PieceRows& rows, const Run& run, absl::Span<const Extent> slots) {
  const plan::FetchRun& tokens = run.tokens;
  const uint32_t row = run.rows.first_row;
  const auto add = [&](uint32_t first, uint32_t count, float* weights) {
    if (count > 0) {
      items_.push_back({.attention = {.extents = slots,
                                      .first_position = tokens.before + first,
                                      .query_tokens = count,
                                      .q = rows.q(row + first),
                                      .q_stride = rows.qkv_stride(),
                                      .out = rows.out(row + first),
                                      .out_stride = rows.out_stride()},
                        .weights = weights,
                        .stride = tokens.before + tokens.tokens});
    }
  };
  const uint32_t plain = tokens.tokens - run.weighed;
  add(0, plain, nullptr);
  add(plain, run.weighed, run.weights);
}

}  // namespace lamina::compute_node
