// SPDX-License-Identifier: Apache-2.0
//
// MergeBlocks: joins the block partials of a row along the fixed tree (kernels/partial.h); and
// StoreRows, which puts K and V where attention finds them.

#include <cuda_runtime.h>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lamina::kernels::cuda {
namespace {

// One row's stack as one thread sees it. Each thread has its own elements of the head, in its own
// places of shared memory, and repeats the arithmetic of lse, which is the same for all: so threads
// need nothing of each other.
struct Stack {
  float* out;  // [kStackMax, head_dim]
  int head_dim;
  int size = 0;
  uint32_t first[kStackMax];
  uint32_t blocks[kStackMax];
  float lse[kStackMax];
};

// Merges the entry on top into the one below: MergePartials.
__device__ inline void MergeTopTwo(Stack& stack) {
  const int a = stack.size - 2;
  const int b = stack.size - 1;
  const float lse_a = stack.lse[a];
  const float lse_b = stack.lse[b];
  stack.blocks[a] += stack.blocks[b];
  stack.size = b;
  if (lse_b == kMinusInfinity) {
    return;
  }
  float* out_a = stack.out + a * stack.head_dim;
  const float* out_b = stack.out + b * stack.head_dim;
  if (lse_a == kMinusInfinity) {
    for (int d = static_cast<int>(threadIdx.x); d < stack.head_dim; d += blockDim.x) {
      out_a[d] = out_b[d];
    }
    stack.lse[a] = lse_b;
    return;
  }
  const float m = lse_a > lse_b ? lse_a : lse_b;
  const float weight_a = ExpCanonical(lse_a - m);
  const float weight_b = ExpCanonical(lse_b - m);
  const float sum = weight_a + weight_b;
  const float share_a = weight_a / sum;
  const float share_b = weight_b / sum;
  for (int d = static_cast<int>(threadIdx.x); d < stack.head_dim; d += blockDim.x) {
    out_a[d] = fmaf(share_a, out_a[d], share_b * out_b[d]);
  }
  stack.lse[a] = m + LogCanonical(sum);
}

// Pushes a partial and merges siblings. `out` null: an empty one.
__device__ inline void Push(Stack& stack, uint32_t first, uint32_t blocks, const float* out,
                            float lse) {
  const int top = stack.size;
  for (int d = static_cast<int>(threadIdx.x); d < stack.head_dim; d += blockDim.x) {
    stack.out[top * stack.head_dim + d] = out != nullptr ? out[d] : 0.0f;
  }
  stack.first[top] = first;
  stack.blocks[top] = blocks;
  stack.lse[top] = lse;
  ++stack.size;
  while (stack.size >= 2 && stack.blocks[stack.size - 1] == stack.blocks[stack.size - 2] &&
         stack.first[stack.size - 2] % (2 * stack.blocks[stack.size - 2]) == 0) {
    MergeTopTwo(stack);
  }
}

__global__ void MergeBlocksKernel(const MergeBlocksArguments a) {
  const AttentionRow row = a.rows[blockIdx.x];
  const int head_dim = static_cast<int>(a.head_dim);
  const size_t head = size_t{blockIdx.x} * a.query_heads + blockIdx.y;
  Stack stack;
  stack.out = reinterpret_cast<float*>(DynamicShared());
  stack.head_dim = head_dim;
  for (uint32_t block = row.held_block; block < row.first_block; ++block) {
    Push(stack, block, 1, nullptr, kMinusInfinity);
  }
  for (uint32_t i = 0; i < row.blocks; ++i) {
    const size_t partial =
        (size_t{row.partial} + size_t{i} * row.step) * a.query_heads + blockIdx.y;
    Push(stack, row.first_block + i, 1, a.partial_out + partial * head_dim, a.partial_lse[partial]);
  }
  if (a.entry_out != nullptr) {
    for (int i = 0; i < stack.size; ++i) {
      const size_t entry = head * a.entries_max + i;
      for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += blockDim.x) {
        a.entry_out[entry * head_dim + d] = stack.out[i * head_dim + d];
      }
      if (threadIdx.x == 0) {
        a.entry_lse[entry] = stack.lse[i];
      }
    }
    return;
  }
  while (stack.size > 1) {
    MergeTopTwo(stack);
  }
  uint16_t* out = a.out + blockIdx.x * a.out_stride + size_t{blockIdx.y} * head_dim;
  float share = 1.0f;
  if (a.has_sinks && stack.size != 0) {  // ShareBesideSink.
    const float lse = stack.lse[0];
    const float sink = a.sinks[blockIdx.y];
    const float m = lse > sink ? lse : sink;
    const float weight = ExpCanonical(lse - m);
    share = weight / (weight + ExpCanonical(sink - m));
  }
  for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += blockDim.x) {
    out[d] = RoundOutputCanonical(stack.size != 0 ? share * stack.out[d] : 0.0f);
  }
}

// A thread copies eight elements of K and of V.
__global__ void StoreRowsKernel(const StoreRowsArguments a) {
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
  const LaunchShape shape = {.grid = dim3(rows, arguments.query_heads),
                             .block = dim3(kAttentionThreads),
                             .shared_bytes = size_t{kStackMax} * arguments.head_dim * sizeof(float),
                             .stream = stream};
  return Launch(MergeBlocksKernel, shape, arguments);
}

cudaError_t StoreRows(const StoreRowsArguments& arguments, uint32_t tokens, cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(tokens), .block = dim3(kAttentionThreads), .shared_bytes = 0, .stream = stream};
  return Launch(StoreRowsKernel, shape, arguments);
}

}  // namespace lamina::kernels::cuda
