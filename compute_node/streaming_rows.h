// SPDX-License-Identifier: Apache-2.0
//
// StreamingRows: attends rows of consecutive KV heads that are alike: all stream, or none does
// (plan/streaming_tokens.h). A row of heads that stream attends as a sequence of the tokens that it
// sees: those of tiles of kFetchTile tokens that it sees whole, then the others, both in their
// order, since kernels read tiles of K fastest where they lie. So its bits follow from its
// position, these tokens' K and V and its q alone, not from what else there is in a chunk, a step
// or a window, and where it sees everything they are those of a head that does not stream.
//
// Use: Clear(), Add...() for some sequences, Attend().
//
// Threading: the data thread. Allocation: when more rows are added than ever before.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/streaming_heads.h"
#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "plan/streaming_tokens.h"

namespace lamina::compute_node {

class StreamingRows {
 public:
  // What calls have at most.
  struct Limits {
    uint32_t rows = 0;            // Rows of one sequence.
    uint32_t context_tokens = 0;  // Tokens of a sequence.
  };

  // Consecutive rows of one sequence.
  // Shapes: q, out  [tokens, query heads of the KV heads, head_dim], strides in elements.
  struct Rows {
    uint32_t first_position = 0;
    uint32_t tokens = 0;
    const BFloat16* q = nullptr;
    size_t q_stride = 0;
    BFloat16* out = nullptr;
    size_t out_stride = 0;
  };

  // Where the sequence's tokens lie: token t in slot first_slot + t, behind the gap by its length
  // earlier.
  struct Slots {
    uint32_t first_slot = 0;
    plan::TokenGap gap = {};
  };

  // `layers` are those of which parts are attended. References must outlive this.
  StreamingRows(const StreamingHeads& streaming, absl::Span<const AttentionDescriptor> layers,
                const Limits& limits, const kernels::AttentionKernel& kernel, ThreadPool& pool);

  void Clear();
  // Rows of heads that see all tokens up to their own.
  void AddWhole(const Rows& rows, uint32_t first_slot);
  // Rows of heads that stream.
  void AddStreamed(const Rows& rows, const Slots& slots);

  // Attends all that were added.
  // Shapes: part  the layer over these heads; kv from the first of them on
  // Cost: a streamed row that does not see everything reads sink + window tokens by itself.
  void Attend(const AttentionDescriptor& part, const kernels::KvView& kv);

 private:
  // One that does not see everything.
  void AddStreamedRow(const Rows& rows, uint32_t row, const Slots& slots);
  // `count` rows from the first one on, at these positions among the tokens of `extents`.
  void Add(const Rows& rows, uint32_t first, uint32_t count, uint32_t position,
           absl::Span<const Extent> extents);

  const StreamingHeads& streaming_;
  const kernels::AttentionKernel& kernel_;
  ThreadPool& pool_;
  std::unique_ptr<kernels::AttentionScratch> scratch_;
  std::vector<kernels::AttentionItem> items_;
  std::vector<Extent> extents_;       // Those of the items, one item's after the other's,
  std::vector<size_t> extents_ends_;  // and where each item's end.
};

}  // namespace lamina::compute_node
