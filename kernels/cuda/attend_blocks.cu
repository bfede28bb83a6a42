// SPDX-License-Identifier: Apache-2.0
//
// AttendBlocks: block partials of attention, to the bit those of docs/design/attention_numerics.md.
//
// One thread block takes one tile of query tokens, one KV head and one block of 256 tokens, so K
// and V of the block are read from memory once for all query heads of the KV head. "Row" below is
// one (query token, head) of the tile; their number is small (the group, for decode).
//
//   slots    a table of the block's 256 slots, from extents
//   V        starts its way into shared memory, asynchronously
//   scores   four threads to a token, each with one of a score's four lanes; K straight from memory
//   softmax  half a warp to a row, one thread to a lane
//   values   one thread to two elements of the head, over the tokens in order
//
// What fixes the bits are the orders inside a lane and inside a value's chain; every other order
// (max, which thread does what) cannot change them.

#include <cuda_runtime.h>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/block_partials.cuh"
#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/canonical_scores.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr int kTokensAtOnce = kAttentionThreads / kThreadsPerToken;
// A thread's tokens in one sweep, so that elements of q that it loaded serve twice.
constexpr int kSweepTokens = 2;
constexpr int kRowsAtOnce = 4;

// Where the pieces of dynamic shared memory begin. `queries` and `accumulators` are one place: q is
// done with when values begin.
struct SharedPieces {
  uint16_t* values;     // [stage_tokens, head_dim]
  float* queries;       // [rows_max, head_dim]
  float* accumulators;  // [rows_max, head_dim]
  float* weights;       // [rows_max, 256]: scores, then their exponentials
  float* inverses;      // [rows_max]
  uint32_t* slots;      // [256]
};

__device__ inline SharedPieces Divide(unsigned char* shared, uint32_t head_dim, uint32_t rows_max,
                                      uint32_t stage_tokens) {
  SharedPieces pieces;
  pieces.values = reinterpret_cast<uint16_t*>(shared);
  shared += size_t{stage_tokens} * head_dim * sizeof(uint16_t);
  pieces.queries = reinterpret_cast<float*>(shared);
  pieces.accumulators = pieces.queries;
  shared += size_t{rows_max} * head_dim * sizeof(float);
  pieces.weights = reinterpret_cast<float*>(shared);
  shared += size_t{rows_max} * kTokens * sizeof(float);
  pieces.inverses = reinterpret_cast<float*>(shared);
  shared += size_t{rows_max} * sizeof(float);
  pieces.slots = reinterpret_cast<uint32_t*>(shared);
  return pieces;
}

__device__ inline void LoadQueries(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                   int head_dim, int group, float* queries) {
  const int rows = static_cast<int>(unit.query_tokens) * group;
  for (int i = static_cast<int>(threadIdx.x); i < rows * head_dim; i += kAttentionThreads) {
    const int row = i / head_dim;
    const size_t column = (size_t{blockIdx.y} * group + row % group) * head_dim + i % head_dim;
    const uint16_t* q = a.q + (size_t{unit.row} + row / group) * a.q_stride;
    queries[i] = LowBFloat16(q[column]);
  }
}

// Starts bringing V of tokens [first, end) of the block into shared memory.
__device__ inline void StageValues(const uint16_t* v, const uint32_t* slots, int head_dim,
                                   int first, int end, uint16_t* values) {
  const int pieces = head_dim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < (end - first) * pieces; i += kAttentionThreads) {
    const int token = i / pieces;
    const int element = i % pieces * 8;
    const uint16_t* from = v + size_t{slots[first + token]} * head_dim + element;
    CopyAsync16(values + token * head_dim + element, from);
  }
}

// The scores of four rows and this thread's two tokens; `key` are those tokens' elements from this
// thread's eighth of the first 32 on.
template <int kHeadDim>
__device__ inline void ScoreRows(const AttentionShape& shape, int head_dim,
                                 const uint16_t* const (&key)[kSweepTokens],
                                 const int (&token)[kSweepTokens], int first_row, int rows,
                                 const SharedPieces& shared) {
  const int dim = kHeadDim != 0 ? kHeadDim : head_dim;
  const int part = static_cast<int>(threadIdx.x) % kThreadsPerToken;
  float lanes[kSweepTokens][kRowsAtOnce] = {};
#pragma unroll
  for (int chunk = 0; chunk < dim; chunk += 32) {
    const int element = chunk + part * 8;
    if (element < dim) {
      uint4 k[kSweepTokens];
      for (int i = 0; i < kSweepTokens; ++i) {
        k[i] = *reinterpret_cast<const uint4*>(key[i] + element);
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int row = Smaller(first_row + r, rows - 1);  // Too much, rather than a branch.
        const float* q = shared.queries + row * dim + element;
        const float4 q_low = *reinterpret_cast<const float4*>(q);
        const float4 q_high = *reinterpret_cast<const float4*>(q + 4);
        for (int i = 0; i < kSweepTokens; ++i) {
          lanes[i][r] = MultiplyEight(k[i], q_low, q_high, lanes[i][r]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    for (int i = 0; i < kSweepTokens; ++i) {
      const float dot = SumLanes(lanes[i][r]);
      if (r == part && first_row + r < rows) {  // Each of the four threads finishes one row.
        shared.weights[(first_row + r) * kTokens + token[i]] = ScoreOf(shape, dot);
      }
    }
  }
}

// Scores of all rows for the block's tokens in [begin, end), and some behind them that nobody uses.
template <int kHeadDim>
__device__ inline void Score(const AttendBlocksArguments& a, const uint16_t* k, int head_dim,
                             int rows, int begin, int end, const SharedPieces& shared) {
  constexpr int kSweep = kTokensAtOnce * kSweepTokens;
  const int lane_token = static_cast<int>(threadIdx.x) / kThreadsPerToken;
  for (int sweep = 0; sweep < kTokens; sweep += kSweep) {
    if (sweep + kSweep <= begin || sweep >= end) {
      continue;  // All threads take the same branch.
    }
    const int token[kSweepTokens] = {sweep + lane_token, sweep + lane_token + kTokensAtOnce};
    const uint16_t* const key[kSweepTokens] = {k + size_t{shared.slots[token[0]]} * head_dim,
                                               k + size_t{shared.slots[token[1]]} * head_dim};
    for (int row = 0; row < rows; row += kRowsAtOnce) {
      ScoreRows<kHeadDim>(a.shape, head_dim, key, token, row, rows, shared);
    }
  }
}

// Turns a row's scores into weights; `lane` is 0 to 15. Returns the lane's sum.
__device__ inline float WeighLane(const Seen& seen, int lane, float largest, float* weights) {
  float sum = 0.0f;
  for (int t = lane; t < seen.end; t += 16) {
    if (t >= seen.begin) {
      const float p = ExpCanonical(weights[t] - largest);
      weights[t] = p;
      sum = sum + p;
    }
  }
  return sum;
}

__device__ inline float LargestOfLane(const Seen& seen, int lane, const float* scores) {
  float largest = kMinusInfinity;
  for (int t = lane; t < seen.end; t += 16) {
    if (t >= seen.begin) {
      largest = scores[t] > largest ? scores[t] : largest;
    }
  }
  return largest;
}

__device__ inline void Softmax(const AttendBlocksArguments& a, const AttentionUnit& unit, int group,
                               const SharedPieces& shared) {
  const int rows = static_cast<int>(unit.query_tokens) * group;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int half = static_cast<int>(threadIdx.x) / 16;
  constexpr int kHalves = kAttentionThreads / 16;
  for (int first = 0; first < rows;
       first += kHalves) {  // All threads loop alike: they shuffle below.
    const int row = Smaller(first + half, rows - 1);
    const bool mine = first + half < rows;
    const uint32_t query_token = static_cast<uint32_t>(row / group);
    const Seen seen = mine ? SeenBy(unit, a.shape.window, query_token) : Seen{0, 0};
    float* weights = shared.weights + row * kTokens;
    const float largest = LargestOfSixteen(LargestOfLane(seen, lane, weights));
    const float sum = SumSixteen(WeighLane(seen, lane, largest, weights));
    if (mine && lane == 0) {
      const bool empty = seen.begin == seen.end;
      shared.inverses[row] = empty ? 0.0f : 1.0f / sum;
      const size_t head = size_t{blockIdx.y} * group + row % group;
      a.partial_lse[(size_t{unit.partial} + query_token) * a.shape.query_heads + head] =
          empty ? kMinusInfinity : largest + LogCanonical(sum);
    }
  }
}

// Continues the chains of up to kHeads rows from `row`, in this thread's two elements, over tokens
// [begin, end) of the block; values start at token `stage`.
template <int kHeads>
__device__ inline void AccumulateHeads(const SharedPieces& shared, int head_dim, int row, int rows,
                                       int element, int stage, int begin, int end) {
  float acc[kHeads][2];
  const float* weights[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    const int mine = Smaller(row + h, rows - 1);
    const bool real = row + h < rows;
    acc[h][0] = real ? shared.accumulators[mine * head_dim + element] : 0.0f;
    acc[h][1] = real ? shared.accumulators[mine * head_dim + element + 1] : 0.0f;
    weights[h] = shared.weights + mine * kTokens;
  }
#pragma unroll 4
  for (int t = begin; t < end; ++t) {
    const uint32_t v =
        *reinterpret_cast<const uint32_t*>(shared.values + (t - stage) * head_dim + element);
    for (int h = 0; h < kHeads; ++h) {
      const float p = weights[h][t];
      acc[h][0] = fmaf(p, LowBFloat16(v), acc[h][0]);
      acc[h][1] = fmaf(p, HighBFloat16(v), acc[h][1]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    if (row + h < rows) {
      shared.accumulators[(row + h) * head_dim + element] = acc[h][0];
      shared.accumulators[(row + h) * head_dim + element + 1] = acc[h][1];
    }
  }
}

// One query token's rows over the staged tokens [begin, end). Threads are laid out as columns of
// two elements times shares of the heads.
__device__ inline void Accumulate(const SharedPieces& shared, int head_dim, int group,
                                  int query_token, int stage, int begin, int end) {
  const int columns = head_dim / 2;
  const int shares = kAttentionThreads / columns;
  const int share = static_cast<int>(threadIdx.x) / columns;
  if (share >= shares) {
    return;
  }
  const int element = static_cast<int>(threadIdx.x) % columns * 2;
  const int wanted = (group + shares - 1) / shares;
  const int heads = wanted <= 1 ? 1 : wanted == 2 ? 2 : 4;
  const int first = query_token * group;
  const int rows = first + group;
  for (int row = first + share * heads; row < rows; row += shares * heads) {
    switch (heads) {
      case 1:
        AccumulateHeads<1>(shared, head_dim, row, rows, element, stage, begin, end);
        break;
      case 2:
        AccumulateHeads<2>(shared, head_dim, row, rows, element, stage, begin, end);
        break;
      default:
        AccumulateHeads<4>(shared, head_dim, row, rows, element, stage, begin, end);
    }
  }
}

__device__ inline void WritePartials(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                     int head_dim, int group, const SharedPieces& shared) {
  const int rows = static_cast<int>(unit.query_tokens) * group;
  for (int i = static_cast<int>(threadIdx.x); i < rows * head_dim; i += kAttentionThreads) {
    const int row = i / head_dim;
    const size_t head = size_t{blockIdx.y} * group + row % group;
    const size_t partial = size_t{unit.partial} + row / group;
    a.partial_out[(partial * a.shape.query_heads + head) * head_dim + i % head_dim] =
        shared.accumulators[i] * shared.inverses[row];
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kAttentionThreads)
    AttendBlocksKernel(const AttendBlocksArguments a) {
  WaitForLaunchBefore();
  const AttentionUnit unit = a.units[blockIdx.x];
  const int head_dim = kHeadDim != 0 ? kHeadDim : static_cast<int>(a.shape.head_dim);
  const int group = static_cast<int>(a.shape.query_heads / a.shape.kv_heads);
  const int rows = static_cast<int>(unit.query_tokens) * group;
  const int stage_tokens = static_cast<int>(a.stage_tokens);
  const SharedPieces shared =
      Divide(DynamicShared(), static_cast<uint32_t>(head_dim), a.rows_max, a.stage_tokens);
  const uint16_t* k = a.k + size_t{blockIdx.y} * a.head_stride;
  const uint16_t* v = a.v + size_t{blockIdx.y} * a.head_stride;
  const int begin = SeenBy(unit, a.shape.window, 0).begin;
  const int end = SeenBy(unit, a.shape.window, unit.query_tokens - 1).end;

  FillSlots(a, unit, shared.slots);
  LoadQueries(a, unit, head_dim, group, shared.queries);
  __syncthreads();
  int stage = begin / stage_tokens * stage_tokens;
  StageValues(v, shared.slots, head_dim, stage, Smaller(stage + stage_tokens, end), shared.values);
  Score<kHeadDim>(a, k, head_dim, rows, begin, end, shared);
  __syncthreads();
  Softmax(a, unit, group, shared);
  for (int i = static_cast<int>(threadIdx.x); i < rows * head_dim; i += kAttentionThreads) {
    shared.accumulators[i] = 0.0f;  // The queries are done with.
  }
  for (; stage < end; stage += stage_tokens) {
    WaitForCopies();
    __syncthreads();
    for (int i = 0; i < static_cast<int>(unit.query_tokens); ++i) {
      const Seen seen = SeenBy(unit, a.shape.window, static_cast<uint32_t>(i));
      Accumulate(shared, head_dim, group, i, stage, Larger(seen.begin, stage),
                 Smaller(seen.end, stage + stage_tokens));
    }
    __syncthreads();
    const int next = stage + stage_tokens;
    if (next < end) {
      StageValues(v, shared.slots, head_dim, next, Smaller(next + stage_tokens, end),
                  shared.values);
    }
  }
  WaitForCopies();
  __syncthreads();
  WritePartials(a, unit, head_dim, group, shared);
}

}  // namespace

cudaError_t LoadAttendBlocks(KernelLimits& limits) {
  return LoadEach(limits, AttendBlocksKernel<64>, AttendBlocksKernel<96>, AttendBlocksKernel<128>,
                  AttendBlocksKernel<256>, AttendBlocksKernel<0>);
}

cudaError_t AttendBlocks(const AttendBlocksArguments& arguments, uint32_t units,
                         cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(units, arguments.shape.kv_heads),
      .block = dim3(kAttentionThreads),
      .shared_bytes = CanonicalSharedBytes(arguments.shape.head_dim, arguments.rows_max,
                                           arguments.stage_tokens),
      .stream = stream,
      .dependent = true};
  switch (arguments.shape.head_dim) {
    case 64:
      return Launch(AttendBlocksKernel<64>, shape, arguments);
    case 96:
      return Launch(AttendBlocksKernel<96>, shape, arguments);
    case 128:
      return Launch(AttendBlocksKernel<128>, shape, arguments);
    case 256:
      return Launch(AttendBlocksKernel<256>, shape, arguments);
    default:
      return Launch(AttendBlocksKernel<0>, shape, arguments);
  }
}

}  // namespace lamina::kernels::cuda
