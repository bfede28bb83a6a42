// SPDX-License-Identifier: Apache-2.0
//
// SparseBf16: rows attend over a piece of chosen tokens, whose K and V are bf16 (sparse_pieces.h):
// attention is plain, over as many tokens as were chosen and the rows' own, whose K and V are
// stored into the slots that the piece leaves for them. Tokens that stay here are later ones than
// those that come.
//
// Threading: the data thread. Allocation: until its vectors are large enough.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/extent.h"
#include "compute_node/piece_rows.h"
#include "compute_node/resident_kv.h"
#include "compute_node/sparse_pieces.h"
#include "compute_node/weighed_attention.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class SparseBf16 final : public SparsePieces {
 public:
  // Attends pieces of at most so many runs. References must outlive this.
  SparseBf16(WeighedAttention& attention, const ResidentKv& resident, uint32_t runs_max);

  plan::FetchRun RunOf(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                       uint64_t kept) const override;
  void Attend(uint32_t layer, const PieceRows& rows, const plan::FetchPiece& piece, std::byte* data,
              absl::Span<const Run> runs) override;

 private:
  // Items of the run's rows; `slots` have the chosen tokens and the rows' own, in their order.
  void AddItems(const PieceRows& rows, const Run& run, absl::Span<const Extent> slots);

  WeighedAttention& attention_;
  const ResidentKv& resident_;
  std::vector<Extent> extents_;  // Those that items name.
  std::vector<Extent> kept_;     // Slots of one run's tokens that stay here.
  std::vector<WeighedAttention::Item> items_;
};

}  // namespace lamina::compute_node
