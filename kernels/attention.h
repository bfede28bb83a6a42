// SPDX-License-Identifier: Apache-2.0
//
// Attention over a KV arena of token slots, for one query token or many, whole or in part.
//
// For a query token at position p and a query head h of KV head g, over the tokens i that it may
// see (i <= p; with a window also i > p - window):
//
//   s_i = scale * dot(q[p,h], k_i[g])          then the soft cap, if any
//   lse = ln(sum_i exp(s_i))                    natural logarithm
//   out = sum_i exp(s_i - lse) * v_i[g]         already normalised
//   out = out / (1 + exp(sink[h] - lse))        where the layer has sinks, not in partials
//
// The order of every sum is fixed by docs/design/attention_numerics.md: blocks of kBlockTokens
// counted from token 0 are the leaves, merged as a binary counter does. So the bits of a row depend
// only on its own q, K and V: not on the other rows, the number of query tokens in the call,
// extents, threads, or the instruction set.
//
// Threading: pure functions; the ThreadPool is the only parallelism.
// Allocation: none, given a large enough AttentionScratch; with AttentionWeights::summed lists of
// what is summed, and memory for it, grow up to what a call needs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "common/kv_form.h"
#include "common/thread_pool.h"
#include "kernels/attention_weights.h"

namespace lamina::kernels {

// Tokens of a leaf of the merge tree.
inline constexpr uint32_t kBlockTokens = 256;

using lamina::Extent;

struct Int8View;

// One layer's K and V in an arena; `head_stride` elements between heads.
// Shapes: v  [kv_heads, slots, head_dim] bf16
//         k  on a device the same; on the host [kv_heads, slots / 16, head_dim / 2, 16, 2], that is
//            in tiles of 16 slots (kernels/k_tiles.h)
struct KvView {
  const BFloat16* k = nullptr;
  const BFloat16* v = nullptr;
  size_t head_stride = 0;
  // Where the int8_tokens of items lie (kernels/int8_kv.h). Null if no item has any.
  const Int8View* int8 = nullptr;
};

// Consecutive query tokens of one sequence.
// Shapes: q    [query_tokens, query_heads, head_dim] bf16, `q_stride` elements between tokens
//         out  [query_tokens, query_heads, head_dim] bf16, `out_stride` elements between tokens
struct AttentionItem {
  // The slots of tokens 0, 1, 2, ... of the sequence, in order. Together they cover at least
  // first_position + query_tokens tokens, the queries' own K and V included.
  absl::Span<const Extent> extents;
  uint32_t first_position = 0;  // Position of the first query token.
  uint32_t query_tokens = 1;
  // Tokens before this one are seen by none of the queries: what a window hides of a part of a
  // sequence, whose queries stand behind its end. Requires: at most first_position.
  uint32_t first_seen = 0;
  const BFloat16* q = nullptr;
  size_t q_stride = 0;
  BFloat16* out = nullptr;
  size_t out_stride = 0;
  // When set, `out` is not written: the partial goes here, f32, for somebody else to merge.
  // Shape: [query_tokens, query_heads, PartialWidth()]: out, then lse.
  //
  // The tokens may then be a part of a sequence that begins at a block border b, with positions
  // counted from there, if it ends where its last query does or is an aligned span (its length a
  // power of two of blocks that divides b): its partial is one node of the sequence's own merge
  // tree. A window counts from first_position, so that `first_seen` says what it hides here.
  float* partial = nullptr;
  // When set: what softmax gives each token goes there too, which changes no output. On processors
  // alone; without `first_seen` and a window. Items do not share AttentionWeights::summed.
  const AttentionWeights* weights = nullptr;
  // Where KvView has INT8: the first so many tokens are kept so, in the slots that `extents` name,
  // which cover these alone. The others are bf16, in slots from `tail_slot` on, in order.
  // Requires: at most first_position + 1; a multiple of kInt8BlockTokens, unless they are chosen.
  uint32_t int8_tokens = 0;
  uint32_t tail_slot = 0;
  // Not empty: the INT8 tokens are some of a sequence's closed blocks: of each block that has any
  // how many, in order. Scales of K of these blocks lie one behind the other, each in the order of
  // channels, from slot `scale_slot` of Int8View::k_scales on, kInt8BlockTokens slots a block;
  // those from block `later_block` on, where there are so many, from slot `later_scale_slot` on.
  // Requires: none is 0; their sum is int8_tokens.
  absl::Span<const uint32_t> chosen;
  uint32_t scale_slot = 0;
  uint32_t later_block = UINT32_MAX;
  uint32_t later_scale_slot = 0;

  // Where scales of K of a block of `chosen` begin.
  size_t ScaleSlotOf(size_t block) const {
    return block < later_block ? scale_slot + block * kInt8BlockTokens
                               : later_scale_slot + (block - later_block) * kInt8BlockTokens;
  }
};

// Elements of one partial: out, then lse.
inline size_t PartialWidth(const AttentionDescriptor& descriptor) {
  return size_t{descriptor.head_dim} + 1;
}

// Working memory of one caller, reused over calls.
class AttentionScratch {
 public:
  virtual ~AttentionScratch() = default;
};

class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;

  // "reference", "highway/AVX3_ZEN4", ...
  virtual const char* name() const = 0;

  // Scratch for calls with at most `query_tokens_max` query tokens in an item, sequences of at most
  // `context_tokens_max` tokens, and pools of at most `threads` threads.
  virtual std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& descriptor,
                                                        uint32_t query_tokens_max,
                                                        uint32_t context_tokens_max,
                                                        size_t threads) const = 0;

  // Computes all items. Work is spread over the pool by (item, KV head, tile of query tokens), and
  // where these are few or uneven by aligned runs of their blocks (kernels/work_cuts.h).
  // Requires: head_dim a multiple of 16 in [16, 256]; query_heads % kv_heads == 0.   (CHECKed)
  // Cost: reads 2 * tokens * kv_heads * head_dim * 2 bytes per item: bandwidth-bound at one query
  // token.
  virtual void Attend(const AttentionDescriptor& descriptor, const KvView& kv,
                      absl::Span<const AttentionItem> items, AttentionScratch& scratch,
                      ThreadPool& pool) const = 0;
};

// Plain loops, one thread, the definition of the bits, of INT8 too.
const AttentionKernel& ReferenceAttention();

// The fastest on this processor that has the bits of ReferenceAttention() there (probed when first
// called, some 20 ms).
const AttentionKernel& CpuAttention();

// Computes calls whose KvView has INT8, and no others.
const AttentionKernel& CpuInt8Attention();

// What attends INT8 where `kernel` attends bf16: CpuInt8Attention(), or the reference itself.
inline const AttentionKernel& Int8KernelOf(const AttentionKernel& kernel) {
  return &kernel == &ReferenceAttention() ? kernel : CpuInt8Attention();
}

// Copies the K and V of `tokens` consecutive tokens into their slots.
// Shapes: k, v  [tokens, kv_heads, head_dim] bf16, `stride` elements between tokens.
//         arena_k, arena_v  as in KvView on the host, of whole tiles of slots.
// `extents` name the slots of those tokens, in order.
void StoreKv(const AttentionDescriptor& descriptor, const BFloat16* k, const BFloat16* v,
             size_t stride, absl::Span<const Extent> extents, BFloat16* arena_k, BFloat16* arena_v,
             size_t head_stride);

// Copies K and V of tokens [first, first + tokens) of one KV head out of an arena, to slots of the
// same numbers of another one.
// Shapes: arena_k, arena_v, k, v  one head's planes as in KvView on the host, from slot 0 on.
// `extents` name the arena's slots of tokens 0, 1, 2, ...
// Requires: they name first + tokens of them (CHECKed).
// Cost: a memcpy where whole tiles lie alike in both. Else every line of a tile of K for up to 12
// tokens, where their slots differ by a multiple of four, or for up to three.
void LoadKv(size_t head_dim, const BFloat16* arena_k, const BFloat16* arena_v,
            absl::Span<const Extent> extents, uint32_t first, uint32_t tokens, BFloat16* k,
            BFloat16* v);

// The reverse: tokens [first, first + tokens) from slots of the same numbers of the planes k and v
// to the slots that `extents` name. Slots beside these are not touched.
// Requires: as LoadKv(). Cost: the same; whole tiles of K, and V, are written past the caches,
// which would hold little of what comes back, and have something else.
void UnloadKv(size_t head_dim, const BFloat16* k, const BFloat16* v,
              absl::Span<const Extent> extents, uint32_t first, uint32_t tokens, BFloat16* arena_k,
              BFloat16* arena_v);

}  // namespace lamina::kernels
