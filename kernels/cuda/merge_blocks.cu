// SPDX-License-Identifier: Apache-2.0
//
// MergeBlocks: joins the block partials of a row along the fixed tree (kernels/partial.h); and
// StoreRows, which puts K and V where attention finds them.

#include <cuda_runtime.h>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_merge.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kThreads = 32;
// Blocks that are merged in registers at a time: an aligned run of the tree, or a part of one.
constexpr int kRunBlocks = 16;
constexpr int kRunLevels = 4;
// Elements of the head that a warp has at a time.
constexpr int kPassElements = kThreads * 4;

__device__ inline float4 MergeFour(const Shares& shares, const float4& a, const float4& b) {
  return {MergeOne(shares, a.x, b.x), MergeOne(shares, a.y, b.y), MergeOne(shares, a.z, b.z),
          MergeOne(shares, a.w, b.w)};
}

// A row's partials of one head, as they lie.
struct Leaves {
  const float* out;  // This thread's elements of block `first`.
  const float* lse;
  size_t stride;   // Partials between blocks, times heads.
  uint32_t first;  // Blocks [first, end) have partials, others of the row are empty.
  uint32_t end;
};

// The shares of a run's tree: of level l, lane i has that of the child which leaf i is under. All
// lanes return the run's lse.
__device__ inline float ShareOutRun(const Leaves& leaves, uint32_t block, int count,
                                    float (&shares)[kRunLevels]) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t mine = block + static_cast<uint32_t>(lane % kRunBlocks);
  float lse = kMinusInfinity;
  if (lane % kRunBlocks < count && mine >= leaves.first && mine < leaves.end) {
    lse = leaves.lse[size_t{mine - leaves.first} * leaves.stride];
  }
#pragma unroll
  for (int level = 0; level < kRunLevels; ++level) {
    const float other = __shfl_xor_sync(kWholeWarp, lse, 1 << level);
    const bool is_a = (lane >> level & 1) == 0;
    const Shares both = ShareOut(is_a ? lse : other, is_a ? other : lse);
    shares[level] = is_a ? both.of_a : both.of_b;
    lse = both.lse;
  }
  return lse;
}

// The run's four elements of this thread, from `element` on.
__device__ inline float4 MergeRun(const Leaves& leaves, uint32_t block, int count, int head_dim,
                                  int element, const float (&shares)[kRunLevels]) {
  float4 out[kRunBlocks];
#pragma unroll
  for (int i = 0; i < kRunBlocks; ++i) {
    const uint32_t leaf = block + static_cast<uint32_t>(i);
    out[i] = {kNothing, kNothing, kNothing, kNothing};
    if (i < count && leaf >= leaves.first && leaf < leaves.end && element < head_dim) {
      out[i] = *reinterpret_cast<const float4*>(
          leaves.out + size_t{leaf - leaves.first} * leaves.stride * head_dim + element);
    }
  }
#pragma unroll
  for (int level = 0; level < kRunLevels; ++level) {
#pragma unroll
    for (int i = 0; i < kRunBlocks; i += 2 << level) {
      const int sibling = i + (1 << level);
      const Shares pair = {__shfl_sync(kWholeWarp, shares[level], i),
                           __shfl_sync(kWholeWarp, shares[level], sibling), 0.0f};
      out[i] = MergeFour(pair, out[i], out[sibling]);
    }
  }
  return out[0];
}

// A row's stack. The warp shares it; each thread reads and writes its own elements of `out` alone.
struct Stack {
  float* out;        // [depth, head_dim]
  float* lse;        // [depth]
  uint32_t* first;   // [depth]
  uint32_t* blocks;  // [depth]
  int head_dim;
  int size = 0;
};

__device__ inline void MergeTopTwo(Stack& stack) {
  const int a = stack.size - 2;
  const int b = stack.size - 1;
  const Shares shares = ShareOut(stack.lse[a], stack.lse[b]);
  __syncwarp();
  if (threadIdx.x == 0) {
    stack.lse[a] = shares.lse;
    stack.blocks[a] += stack.blocks[b];
  }
  for (int d = static_cast<int>(threadIdx.x) * 4; d < stack.head_dim; d += kPassElements) {
    float4* const out_a = reinterpret_cast<float4*>(stack.out + a * stack.head_dim + d);
    const auto* out_b = reinterpret_cast<const float4*>(stack.out + b * stack.head_dim + d);
    *out_a = MergeFour(shares, *out_a, *out_b);
  }
  stack.size = b;
  __syncwarp();
}

// Merges blocks [block, block + count) and pushes them as one entry of `blocks`, at least as many;
// then merges siblings. `block` is a multiple of `blocks`.
__device__ inline void PushRun(Stack& stack, const Leaves& leaves, uint32_t block, int count,
                               uint32_t blocks) {
  float shares[kRunLevels];
  const float lse = ShareOutRun(leaves, block, count, shares);
  const int top = stack.size;
  for (int first = 0; first < stack.head_dim; first += kPassElements) {
    const int element = first + static_cast<int>(threadIdx.x) * 4;
    const float4 out = MergeRun(leaves, block, count, stack.head_dim, element, shares);
    if (element < stack.head_dim) {
      *reinterpret_cast<float4*>(stack.out + top * stack.head_dim + element) = out;
    }
  }
  if (threadIdx.x == 0) {
    stack.lse[top] = lse;
    stack.first[top] = block;
    stack.blocks[top] = blocks;
  }
  ++stack.size;
  __syncwarp();
  while (stack.size >= 2 && stack.blocks[stack.size - 1] == stack.blocks[stack.size - 2] &&
         stack.first[stack.size - 2] % (2 * stack.blocks[stack.size - 2]) == 0) {
    MergeTopTwo(stack);
  }
}

// All blocks of the row in [begin, end), in runs that are as long as the tree allows. `whole`: what
// is missing of the last run counts as empty, which no output shows; entries would.
__device__ inline void PushAll(Stack& stack, const Leaves& leaves, uint32_t begin, uint32_t end,
                               bool whole) {
  uint32_t block = begin;
  while (block < end) {
    uint32_t run = kRunBlocks;
    while (block % run != 0 || (!whole && block + run > end)) {
      run /= 2;
    }
    const uint32_t left = end - block;
    PushRun(stack, leaves, block, static_cast<int>(left < run ? left : run), run);
    block += run;
  }
}

__device__ inline void WriteEntries(const MergeBlocksArguments& a, const Stack& stack) {
  const size_t head = size_t{blockIdx.x} * a.query_heads + blockIdx.y;
  for (int i = 0; i < stack.size; ++i) {
    const size_t entry = head * a.entries_max + i;
    const bool empty = stack.lse[i] == kMinusInfinity;
    for (int d = static_cast<int>(threadIdx.x); d < stack.head_dim; d += kThreads) {
      a.entry_out[entry * stack.head_dim + d] = empty ? 0.0f : stack.out[i * stack.head_dim + d];
    }
    if (threadIdx.x == 0) {
      a.entry_lse[entry] = stack.lse[i];
    }
  }
}

__device__ inline float ShareWithSink(float lse, float sink) {
  const float m = lse > sink ? lse : sink;
  const float weight = ExpCanonical(lse - m);
  return weight / (weight + ExpCanonical(sink - m));
}

__device__ inline void WriteOutput(const MergeBlocksArguments& a, const AttentionRow& row,
                                   const Stack& stack) {
  const bool empty = stack.size == 0 || stack.lse[0] == kMinusInfinity;
  const float share =
      a.has_sinks && !empty ? ShareWithSink(stack.lse[0], a.sinks[blockIdx.y]) : 1.0f;
  const size_t out_row = size_t{blockIdx.x} + row.left_out;
  uint16_t* const out = a.out + out_row * a.out_stride + size_t{blockIdx.y} * stack.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < stack.head_dim; d += kThreads) {
    out[d] = RoundOutputCanonical(empty ? 0.0f : share * stack.out[d]);
  }
}

// One warp to a row and head.
__global__ void __launch_bounds__(kThreads) MergeBlocksKernel(const MergeBlocksArguments a) {
  WaitForLaunchBefore();
  const AttentionRow row = a.rows[blockIdx.x];
  Stack stack;
  stack.head_dim = static_cast<int>(a.head_dim);
  stack.out = reinterpret_cast<float*>(DynamicShared());
  stack.lse = stack.out + a.depth * a.head_dim;
  stack.first = reinterpret_cast<uint32_t*>(stack.lse + a.depth);
  stack.blocks = stack.first + a.depth;
  const size_t partial = size_t{row.partial} * a.query_heads + blockIdx.y;
  const Leaves leaves = {.out = a.partial_out + partial * a.head_dim,
                         .lse = a.partial_lse + partial,
                         .stride = size_t{row.step} * a.query_heads,
                         .first = row.first_block,
                         .end = row.first_block + row.blocks};
  const bool entries = a.entry_out != nullptr;
  PushAll(stack, leaves, row.held_block, leaves.end, !entries);
  if (entries) {
    WriteEntries(a, stack);
    return;
  }
  while (stack.size > 1) {
    MergeTopTwo(stack);
  }
  WriteOutput(a, row, stack);
}

// A thread copies eight elements of K and of V.
__global__ void StoreRowsKernel(const StoreRowsArguments a) {
  WaitForLaunchBefore();
  const uint32_t pieces_of_head = a.head_dim / 8;
  const uint32_t pieces = a.kv_heads * pieces_of_head;
  const size_t slot = a.slots[blockIdx.x];
  for (uint32_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    const uint32_t head = i / pieces_of_head;
    const uint32_t element = i % pieces_of_head * 8;
    const size_t from = blockIdx.x * a.stride + size_t{head} * a.head_dim + element;
    const size_t to = head * a.head_stride + slot * a.head_dim + element;
    *reinterpret_cast<uint4*>(a.arena_k + to) = *reinterpret_cast<const uint4*>(a.k + from);
    *reinterpret_cast<uint4*>(a.arena_v + to) = *reinterpret_cast<const uint4*>(a.v + from);
  }
}

}  // namespace

cudaError_t LoadMergeBlocks(KernelLimits& limits) {
  return LoadEach(limits, MergeBlocksKernel, StoreRowsKernel);
}

cudaError_t MergeBlocks(const MergeBlocksArguments& arguments, uint32_t rows, cudaStream_t stream) {
  const size_t entry_bytes =
      arguments.head_dim * sizeof(float) + sizeof(float) + 2 * sizeof(uint32_t);
  const LaunchShape shape = {.grid = dim3(rows, arguments.query_heads),
                             .block = dim3(kThreads),
                             .shared_bytes = arguments.depth * entry_bytes,
                             .stream = stream,
                             .dependent = true};
  return Launch(MergeBlocksKernel, shape, arguments);
}

cudaError_t StoreRows(const StoreRowsArguments& arguments, uint32_t tokens, cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(tokens),
                             .block = dim3(kAttentionThreads),
                             .shared_bytes = 0,
                             .stream = stream,
                             .dependent = true};
  return Launch(StoreRowsKernel, shape, arguments);
}

}  // namespace lamina::kernels::cuda
