// SPDX-License-Identifier: Apache-2.0
//
// Int8Runs: rows of sequences whose open block has a tail, block by block: rows are stored in the
// tail, attended, and when they fill the block it becomes INT8 before the next one's rows overwrite
// it.
//
// Threading: as the device's.   Allocation: until its vectors are large enough.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kv_device.h"

namespace lamina::kernels {

// Consecutive tokens of a sequence, at most one run of it in a call. All blocks before the first
// token's are INT8, and what this one has before it is in the tail.
// Shapes: k, v  [tokens, heads, head_dim] bf16, `kv_stride` elements between tokens
//         q, out  as AttentionItem has them; null `q`: nothing attends
struct Int8Run {
  absl::Span<const Extent> slots;  // INT8, of the sequence's tokens from 0 on.
  uint32_t tail_slot = 0;          // bf16, of the first of kInt8BlockTokens.
  uint32_t first_token = 0;
  uint32_t tokens = 0;
  const BFloat16* k = nullptr;
  const BFloat16* v = nullptr;
  size_t kv_stride = 0;
  const BFloat16* q = nullptr;
  size_t q_stride = 0;
  BFloat16* out = nullptr;
  size_t out_stride = 0;
  // Outputs are read of `read` of these tokens, from `read_from` on, or of as many as there are;
  // the others do not attend. Requires: read_from <= tokens.
  uint32_t read_from = 0;
  uint32_t read = UINT32_MAX;

  uint32_t first_read() const { return first_token + read_from; }
  uint32_t read_end() const { return first_read() + std::min(read, tokens - read_from); }
};

class Int8Runs {
 public:
  // All runs, side by side. Errors: the device's.   Requires: device.int8().
  absl::Status Run(KvDevice& device, uint32_t layer, HeadRange heads,
                   absl::Span<const Int8Run> runs);

  // The two ends of it, for rows that attend in between: stores them in their tails; makes blocks
  // that they fill INT8. Requires: tokens of a run are in one block.
  absl::Status Store(KvDevice& device, uint32_t layer, HeadRange heads,
                     absl::Span<const Int8Run> rows);
  absl::Status Close(KvDevice& device, uint32_t layer, HeadRange heads,
                     absl::Span<const Int8Run> rows);

 private:
  // Collects of each run the part that is in its `round`-th block. False: no run has one.
  bool Collect(absl::Span<const Int8Run> runs, uint32_t round);

  std::vector<Extent> tail_;  // Where the rows at hand go.
  std::vector<KvRows> rows_;
  std::vector<AttentionItem> items_;
  std::vector<Int8Block> full_;
};

}  // namespace lamina::kernels
