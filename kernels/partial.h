// SPDX-License-Identifier: Apache-2.0
//
// Partial attention results and their fixed merge tree.
//
// A partial is (out, lse) over some tokens, f32. Partials merge exactly in mathematics, and to the
// bit when the tree is fixed: PartialStack pushes the partial of each block in order and, while the
// two on top cover equally many blocks (an aligned power of two), merges them; Fold() merges what
// is left from the top. Whoever holds blocks [a, b) can do every merge whose aligned pair lies
// inside, and hand on at most 2 log2(blocks) partials; the next holder continues the same tree.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lamina::kernels {

// Merges (out_b, lse_b) into (out_a, lse_a), `a` being the earlier tokens.
// With m = max(lse_a, lse_b), w = exp(lse - m): out = sum w*out / sum w, lse = m + ln(sum w).
// Empty: lse = -inf is the identity on either side; merging two empties is empty.
void MergePartials(float* out_a, float* lse_a, const float* out_b, float lse_b, size_t head_dim);

// The share that the tokens of (out, lse) keep next to a sink, a score without a value: out becomes
// share * out. It is MergePartials() with a partial of zeros at `sink`, at the root of the tree.
// Requires: lse is that of at least one token.
float ShareWithSink(float lse, float sink);

// The stack for one (query token, head). From block 0 it holds at most 32 + 1 partials; a holder
// that starts inside a sequence may have about twice as many left. Blocks that a window hides are
// pushed as empty partials: they shape the tree and change no bits.
class PartialStack {
 public:
  // One partial on the stack, over blocks [first_block, first_block + blocks).
  struct EntryView {
    uint32_t first_block;
    uint32_t blocks;
    const float* out;  // [head_dim]; valid until the stack changes.
    float lse;
  };

  explicit PartialStack(size_t head_dim);

  // Pushes the partial of blocks [first_block, first_block + blocks); `blocks` a power of two that
  // divides first_block; pushed in order without gaps (CHECKed).
  void Push(uint32_t first_block, uint32_t blocks, const float* out, float lse);

  size_t size() const { return entries_.size(); }

  // The i-th partial from the bottom: what a holder hands on, in this order.
  EntryView entry(size_t i) const;

  void Clear() { entries_.clear(); }

  // Merges everything into one and empties the stack. Empty: out = 0, lse = -inf.
  void Fold(float* out, float* lse);

 private:
  struct Entry {
    uint32_t first_block;
    uint32_t blocks;
    float lse;
  };
  bool TopTwoAreSiblings() const;
  void MergeTopTwo();

  size_t head_dim_;
  std::vector<Entry> entries_;
  std::vector<float> outs_;  // [entries, head_dim]
};

}  // namespace lamina::kernels
