// SPDX-License-Identifier: Apache-2.0
//
// MadeKv: K and V of tokens that are made from their numbers (token_rows.h), of one layer and lane
// at a time: how they lie in memory of the lane's, how these tokens attend to each other, and how K
// and V come into the pieces that memory nodes send of the others. A class for each form of K and
// V, since bits of later layers follow from what a token attends to: of INT8 the blocks before its
// own, as memory nodes keep them, and bf16 of its own.
//
// Threading: the data thread. Allocation: until its vectors are large enough.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "compute_node/piece_rows.h"
#include "compute_node/worker_context.h"
#include "kernels/attention.h"
#include "kernels/matrix_view.h"
#include "plan/fetch_pieces.h"

namespace lamina::compute_node {

class MadeKv {
 public:
  // Consecutive tokens of one sequence, behind `before` of its tokens, which have been stored. All
  // of them have slots from `first_slot` on, and these have the rows from `row` on.
  struct Rows {
    uint32_t first_slot = 0;
    uint32_t before = 0;
    uint32_t tokens = 0;
    uint32_t row = 0;
  };
  // Rows of a layer. Shapes: qkv, out  as SliceExecutor has them
  struct Layer {
    uint32_t index = 0;
    std::byte* memory = nullptr;  // The lane's bytes().
    kernels::MatrixView<BFloat16> qkv = {};
    kernels::MatrixView<BFloat16> out = {};
  };
  // A piece, and where in it K and V go. `data` is behind the window's header.
  struct Into {
    const PieceRows& rows;
    const plan::FetchPiece& piece;
    std::byte* data = nullptr;
    uint32_t slot = 0;
  };

  virtual ~MadeKv() = default;

  // What any layer takes for as many tokens as the epoch's made_tokens_max.
  virtual size_t bytes() const = 0;

  // Stores k and v of the rows. Errors: those of the device.
  // Requires: of INT8, each begins with a block of its sequence.
  virtual absl::Status Store(const Layer& layer, absl::Span<const Rows> rows) = 0;
  // Store(); then the rows attend to what their sequences have up to them.
  virtual absl::Status StoreAndAttend(const Layer& layer, absl::Span<const Rows> rows) = 0;

  // Copies K and V of the piece's heads out of these slots.
  virtual void Fill(uint32_t layer, std::byte* memory, const Extent& slots,
                    const Into& into) const = 0;
};

// For calls with up to `rows_max` rows. `kernel` has the bits by which prompts attend. References
// must outlive this.
std::unique_ptr<MadeKv> MakeMadeKv(const WorkerContext& context, KvForm form,
                                   const kernels::AttentionKernel& kernel, uint32_t rows_max);

}  // namespace lamina::compute_node
