// SPDX-License-Identifier: Apache-2.0
//
// CudaAttention: attention on a CUDA device, in one of two arithmetics
// (docs/design/attention_numerics.md).
//
// Canonical: outputs and partials are those of ReferenceAttention(), bit for bit, and GPU and CPU
// memory nodes may share a sequence. Tensor: on tensor cores, within a tolerance of these; a row's
// bits are still its own, whatever it is batched with, on one kind of device.
//
// Unlike the CPU kernel it takes the tables of a step once, for all layers of one descriptor's
// window and group, and then only pointers for each layer. A model whose layers differ in either
// (alternating windows) has one CudaAttention for each kind of layer.
//
// Pointers: K, V, q and outputs are device memory, or host memory that the device can reach; rows
//           and heads begin at multiples of 16 bytes.
// Ownership: the stream and the arenas outlive it.
// Threading: the stream's thread.
// Memory:    everything is taken from the arenas in Create(); no call allocates on the device.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/attention_arithmetic.h"
#include "common/attention_descriptor.h"
#include "common/dtype.h"
#include "common/extent.h"
#include "kernels/attention.h"
#include "kernels/cuda/device.h"

namespace lamina::kernels::cuda {

struct CudaAttentionOptions {
  // Describes the layers that it will see; scale and cap may differ, and there may be fewer KV
  // heads.
  AttentionDescriptor descriptor;
  AttentionArithmetic arithmetic = AttentionArithmetic::kCanonical;
  uint32_t query_rows_max = 0;  // Query tokens of a step.
  // Sum over query tokens of the blocks of 256 tokens they see, of a step, or for prompts on tensor
  // cores of the runs of blocks. Device memory: query_heads * (head_dim + 1) * 4 bytes each.
  uint32_t partials_max = 0;
  uint32_t extents_max = 0;  // Extents of all sequences of a step.
};

// Consecutive query tokens of one sequence, of which this device holds tokens from `held_token` on.
struct StepItem {
  // The slots of tokens held_token, held_token + 1, ...
  absl::Span<const Extent> extents;
  uint32_t held_token = 0;  // A multiple of kBlockTokens.
  uint32_t first_position = 0;
  uint32_t query_tokens = 1;
  uint32_t first_seen = 0;  // As in AttentionItem.
  uint32_t left_out = 0;    // Rows of q and out between the item before it and this one.
};

// A partial over blocks [first_block, first_block + blocks) that is left on a row's stack.
struct StackEntry {
  uint32_t first_block = 0;
  uint32_t blocks = 0;
  friend bool operator==(const StackEntry&, const StackEntry&) = default;
};

class CudaAttention {
 public:
  // Bytes that Create() will take.
  static uint64_t DeviceBytes(const CudaAttentionOptions& options);
  static uint64_t PinnedBytes(const CudaAttentionOptions& options);

  // Errors: kInvalidArgument    a head size that is no multiple of 16 in [16, 256], more query
  //                             heads to a KV head than a tile has rows on this device (32, tensor
  //                             32 or 64: TileRowsMax() of attention_tiling.h), a device without
  //                             room for a tile, more sinks than kSinksMax.
  //         kResourceExhausted  the arenas have less than DeviceBytes() and PinnedBytes().
  static absl::StatusOr<std::unique_ptr<CudaAttention>> Create(const CudaAttentionOptions& options,
                                                               const DeviceInfo& device,
                                                               MemoryArena& device_arena,
                                                               MemoryArena& pinned_arena,
                                                               const Stream& stream);
  virtual ~CudaAttention() = default;

  // Takes the tables of a step: row r of q and outputs is the r-th query token of the items, in
  // order, and rows that are left out, which are neither read nor written. Waits until the device
  // has fetched the step before (not until it has computed it), unless the tables are still the
  // same. Errors: kResourceExhausted  a limit of the options, by name; the tables are those of
  // before.
  //         kInvalidArgument    extents that end before a query token that only this device can
  //                             serve (held_token 0), or a held_token inside a block.
  virtual absl::Status LoadStep(absl::Span<const StepItem> items) = 0;

  // Partials with which LoadStep() takes an item, the last of whose query tokens sees `blocks`
  // blocks; and how many of its query tokens it takes with so many. Cost: arithmetic.
  virtual uint32_t PartialsOf(uint32_t query_tokens, uint32_t blocks) const = 0;
  virtual uint32_t TokensFor(uint32_t query_tokens, uint32_t blocks, uint32_t partials) const = 0;

  // Query tokens of the loaded step, without rows that are left out.
  virtual uint32_t rows() const = 0;

  // Attends all rows of the loaded step in one layer. Does not synchronise.
  // Shapes: q, out [rows, query_heads, head_dim] bf16, strides in elements between rows.
  // Cost: reads K and V of each (sequence, KV head) once for as many query tokens as a tile has
  //       rows, over the group.
  virtual absl::Status Attend(const AttentionDescriptor& descriptor, const KvView& kv,
                              const BFloat16* q, size_t q_stride, BFloat16* out,
                              size_t out_stride) = 0;

  // Leaves each row's stack of partials instead of one output, for a holder of part of a sequence
  // (kernels/partial.h). Entry i of a row is Entries(row)[i].
  // Shapes: out [rows, query_heads, entries_max, head_dim] f32, lse [rows, query_heads,
  //         entries_max] f32; entries past a row's are not written.
  // Errors: kInvalidArgument  entries_max is less than a row has, or items of many query tokens are
  //                           merged by runs, and leave no such entries.
  virtual absl::Status AttendPartial(const AttentionDescriptor& descriptor, const KvView& kv,
                                     const BFloat16* q, size_t q_stride, uint32_t entries_max,
                                     float* out, float* lse) = 0;

  virtual std::vector<StackEntry> Entries(uint32_t row) const = 0;
};

// Copies K and V of `slots.size()` tokens into their slots of one layer's arena. Does not
// synchronise.
// Shapes: k, v [tokens, kv_heads, head_dim] bf16, `stride` elements between tokens
//         slots [tokens], device memory
absl::Status StoreKv(const AttentionDescriptor& descriptor, const BFloat16* k, const BFloat16* v,
                     size_t stride, absl::Span<const uint32_t> slots, BFloat16* arena_k,
                     BFloat16* arena_v, size_t head_stride, const Stream& stream);

}  // namespace lamina::kernels::cuda
