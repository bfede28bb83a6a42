// SPDX-License-Identifier: Apache-2.0
//
// AttendBlocksDecode: block partials of one query token each, to the bit those of AttendBlocks
// (docs/design/attention_numerics.md).
//
// One warp takes one KV head of one block of 256 tokens, for up to eight of its query heads, and
// needs nothing of other warps. K and V go from memory into registers, each once: loads of tokens
// ahead are on their way while those that came are used. "Row" below is one of the query heads.
// Where there are more of them, several warps have eight each, side by side, so that all but one
// find K and V in the second-level cache.
//
//   scores   four threads to a token, each with one of a score's four lanes; 16 or 32 tokens at
//            once, the next ones' K being loaded
//   weights  half a warp to a row, one thread to a lane of the sum, in shared memory
//   values   each thread has neighbouring elements of the head, of all rows, over the tokens in
//   order

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/block_partials.cuh"
#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/canonical_scores.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr int kThreads = 32;
constexpr int kTokensAtOnce = kThreads / kThreadsPerToken;
// Thread blocks that fit on a multiprocessor: 128 registers for each thread.
constexpr int kBlocksAtOnce = 16;

// What is chosen by the head size and the rows, so that registers hold the tokens ahead.
template <int kHeadDim, int kRows>
struct Plan {
  static constexpr int kChunks = kHeadDim / 32;
  // Tokens of a thread in one sweep over K.
  static constexpr int kSweepTokens = kChunks <= 4 && kRows <= 4 ? 4 : 2;
  static constexpr int kSweep = kTokensAtOnce * kSweepTokens;
  // Neighbouring elements of V that a thread has, as one load.
  static constexpr int kElements = kHeadDim <= 64 ? 2 : kHeadDim <= 128 ? 4 : 8;
  using Words = std::conditional_t<kElements == 2, uint32_t,
                                   std::conditional_t<kElements == 4, uint2, uint4>>;
  // Tokens of V that are loaded together.
  static constexpr int kBatch = kRows <= 4 ? 32 / kElements * 2 : 32 / kElements;
};

template <int kHeadDim, int kRows>
struct Places {
  float* queries;   // [rows, head_dim]
  float* weights;   // [256, rows]: scores, then their exponentials
  float* inverses;  // [rows]
  uint32_t* slots;  // [256]

  static constexpr size_t kBytes =
      (size_t{kRows} * (kHeadDim + kTokens) + 8) * sizeof(float) + kTokens * sizeof(uint32_t);

  __device__ explicit Places(unsigned char* shared) {
    queries = reinterpret_cast<float*>(shared);
    weights = queries + kRows * kHeadDim;
    inverses = weights + kRows * kTokens;
    slots = reinterpret_cast<uint32_t*>(inverses + 8);
  }
};

// The query heads of this warp: `count` from `first` on.
struct Heads {
  size_t first;
  int count;
};

__device__ inline Heads HeadsOf(const AttentionShape& shape, int rows_max) {
  const int group = static_cast<int>(shape.query_heads / shape.kv_heads);
  const int shares = (group + rows_max - 1) / rows_max;
  const int before = static_cast<int>(blockIdx.x) % shares * rows_max;
  return {size_t{blockIdx.y} * group + before, Smaller(group - before, rows_max)};
}

__device__ inline const AttentionUnit& UnitOf(const AttendBlocksArguments& a, int rows_max) {
  const uint32_t group = a.shape.query_heads / a.shape.kv_heads;
  return a.units[blockIdx.x / ((group + rows_max - 1) / rows_max)];
}

// Rows past the last take its place: too much is computed, rather than asked about.
template <int kHeadDim, int kRows>
__device__ inline void LoadQueries(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                   const Heads& heads, float* queries) {
  const uint16_t* const q = a.q + size_t{unit.row} * a.q_stride + heads.first * kHeadDim;
  constexpr int kEights = kHeadDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kEights; i += kThreads) {
    const int row = Smaller(i / kEights, heads.count - 1);
    const int element = i % kEights * 8;
    const uint4 eight = *reinterpret_cast<const uint4*>(q + row * kHeadDim + element);
    float4* const to = reinterpret_cast<float4*>(queries + i / kEights * kHeadDim + element);
    to[0] = {LowBFloat16(eight.x), HighBFloat16(eight.x), LowBFloat16(eight.y),
             HighBFloat16(eight.y)};
    to[1] = {LowBFloat16(eight.z), HighBFloat16(eight.z), LowBFloat16(eight.w),
             HighBFloat16(eight.w)};
  }
}

// Products of q and K, scaled, of the block's tokens in [begin, end), and some behind them that
// nobody uses.
template <int kHeadDim, int kRows>
__device__ inline void Score(const AttentionShape& shape, const uint16_t* k, int begin, int end,
                             const Places<kHeadDim, kRows>& shared) {
  using P = Plan<kHeadDim, kRows>;
  const int part = static_cast<int>(threadIdx.x) % kThreadsPerToken;
  const int mine = static_cast<int>(threadIdx.x) / kThreadsPerToken;
  const uint16_t* key[P::kSweepTokens];
  uint4 keys[P::kChunks][P::kSweepTokens];
  const auto locate = [&](int sweep) {
#pragma unroll
    for (int i = 0; i < P::kSweepTokens; ++i) {
      key[i] = k + size_t{shared.slots[sweep + mine + i * kTokensAtOnce]} * kHeadDim + part * 8;
    }
  };
  const int first = begin / P::kSweep * P::kSweep;
  locate(first);
#pragma unroll
  for (int chunk = 0; chunk < P::kChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < P::kSweepTokens; ++i) {
      LoadOnce(key[i] + chunk * 32, keys[chunk][i]);
    }
  }
  for (int sweep = first; sweep < end; sweep += P::kSweep) {
    const bool goes_on = sweep + P::kSweep < end;
    if (goes_on) {
      locate(sweep + P::kSweep);
    }
    float lanes[P::kSweepTokens][kRows] = {};
#pragma unroll
    for (int chunk = 0; chunk < P::kChunks; ++chunk) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4* const q =
            reinterpret_cast<const float4*>(shared.queries + r * kHeadDim + chunk * 32 + part * 8);
        const float4 q_low = q[0];
        const float4 q_high = q[1];
#pragma unroll
        for (int i = 0; i < P::kSweepTokens; ++i) {
          lanes[i][r] = MultiplyEight(keys[chunk][i], q_low, q_high, lanes[i][r]);
        }
      }
      if (goes_on) {
#pragma unroll
        for (int i = 0; i < P::kSweepTokens; ++i) {
          LoadOnce(key[i] + chunk * 32, keys[chunk][i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < P::kSweepTokens; ++i) {
      const int token = sweep + mine + i * kTokensAtOnce;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float dot = SumLanes(lanes[i][r]);
        if (r % kThreadsPerToken == part) {  // Each of the four threads writes some of the rows.
          shared.weights[token * kRows + r] = shape.scale * dot;
        }
      }
    }
  }
}

// Turns scores into weights, and leaves the inverse of their sum; writes the partial's lse.
template <int kHeadDim, int kRows>
__device__ inline void Weigh(const AttendBlocksArguments& a, const AttentionUnit& unit,
                             const Heads& heads, const Seen& seen,
                             const Places<kHeadDim, kRows>& shared) {
  constexpr int kLaneTokens = kTokens / 16;
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int half = static_cast<int>(threadIdx.x) / 16;
  const float cap = a.shape.soft_cap;
  for (int first = 0; first < kRows; first += 2) {  // All threads loop alike: they shuffle below.
    const int row = Smaller(first + half, kRows - 1);
    float* const weights = shared.weights + row;
    float scores[kLaneTokens];
    float largest = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      const int t = i * 16 + lane;
      const float s = weights[t * kRows];
      scores[i] = t >= seen.begin && t < seen.end ? s : kMinusInfinity;
    }
    if (cap > 0.0f) {
      for (int i = 0; i < kLaneTokens; ++i) {
        const int t = i * 16 + lane;
        scores[i] =
            t >= seen.begin && t < seen.end ? cap * TanhCanonical(scores[i] / cap) : kMinusInfinity;
      }
    }
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      largest = scores[i] > largest ? scores[i] : largest;
    }
    largest = LargestOfSixteen(largest);
    float sum = 0.0f;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      const int t = i * 16 + lane;
      if (t >= seen.begin && t < seen.end) {
        const float p = ExpCanonical(scores[i] - largest);
        sum = sum + p;
        if (first + half < kRows) {
          weights[t * kRows] = p;
        }
      }
    }
    sum = SumSixteen(sum);
    if (first + half < heads.count && lane == 0) {
      const bool empty = seen.begin == seen.end;
      shared.inverses[row] = empty ? 0.0f : 1.0f / sum;
      a.partial_lse[size_t{unit.partial} * a.shape.query_heads + heads.first + row] =
          empty ? kMinusInfinity : largest + LogCanonical(sum);
    }
  }
}

__device__ inline void Widen(uint32_t words, float (&values)[2]) {
  values[0] = LowBFloat16(words);
  values[1] = HighBFloat16(words);
}
__device__ inline void Widen(const uint2& words, float (&values)[4]) {
  values[0] = LowBFloat16(words.x);
  values[1] = HighBFloat16(words.x);
  values[2] = LowBFloat16(words.y);
  values[3] = HighBFloat16(words.y);
}
__device__ inline void Widen(const uint4& words, float (&values)[8]) {
  values[0] = LowBFloat16(words.x);
  values[1] = HighBFloat16(words.x);
  values[2] = LowBFloat16(words.y);
  values[3] = HighBFloat16(words.y);
  values[4] = LowBFloat16(words.z);
  values[5] = HighBFloat16(words.z);
  values[6] = LowBFloat16(words.w);
  values[7] = HighBFloat16(words.w);
}

// The weights of a token, of all rows.
template <int kRows>
__device__ inline void LoadWeights(const float* weights, float (&p)[kRows]) {
  if constexpr (kRows % 4 == 0) {
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
      const float4 four = *reinterpret_cast<const float4*>(weights + r);
      p[r] = four.x;
      p[r + 1] = four.y;
      p[r + 2] = four.z;
      p[r + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      p[r] = weights[r];
    }
  }
}

// One step of the chains of this thread's elements.
template <int kHeadDim, int kRows>
__device__ inline void AddToken(const typename Plan<kHeadDim, kRows>::Words& words,
                                const float* weights,
                                float (&acc)[kRows][Plan<kHeadDim, kRows>::kElements]) {
  constexpr int kElements = Plan<kHeadDim, kRows>::kElements;
  float v[kElements];
  Widen(words, v);
  float p[kRows];
  LoadWeights(weights, p);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      acc[r][e] = fmaf(p[r], v[e], acc[r][e]);
    }
  }
}

// The chains of this thread's elements over tokens [begin, end); `v` is that of its first element.
template <int kHeadDim, int kRows>
__device__ inline void AddValues(const uint16_t* v, int begin, int end,
                                 const Places<kHeadDim, kRows>& shared,
                                 float (&acc)[kRows][Plan<kHeadDim, kRows>::kElements]) {
  using P = Plan<kHeadDim, kRows>;
  typename P::Words ahead[P::kBatch];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < P::kBatch; ++i) {
      const int t = Smaller(first + i, kTokens - 1);
      LoadOnce(v + size_t{shared.slots[t]} * kHeadDim, ahead[i]);
    }
  };
  load(begin);
  int t = begin;
  for (; t + P::kBatch <= end; t += P::kBatch) {
    typename P::Words now[P::kBatch];
#pragma unroll
    for (int i = 0; i < P::kBatch; ++i) {
      now[i] = ahead[i];
    }
    if (t + P::kBatch < end) {
      load(t + P::kBatch);
    }
#pragma unroll
    for (int i = 0; i < P::kBatch; ++i) {
      AddToken<kHeadDim, kRows>(now[i], shared.weights + (t + i) * kRows, acc);
    }
  }
#pragma unroll
  for (int i = 0; i < P::kBatch; ++i) {
    if (t + i < end) {
      AddToken<kHeadDim, kRows>(ahead[i], shared.weights + (t + i) * kRows, acc);
    }
  }
}

template <int kHeadDim, int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    AttendBlocksDecodeKernel(const AttendBlocksArguments a) {
  WaitForLaunchBefore();  // Its own launch is not dependent, but the next one is.
  constexpr int kElements = Plan<kHeadDim, kRows>::kElements;
  const AttentionUnit unit = UnitOf(a, kRows);
  const Heads heads = HeadsOf(a.shape, kRows);
  const Places<kHeadDim, kRows> shared(DynamicShared());
  const Seen seen = SeenBy(unit, a.shape.window, 0);
  FillSlots(a, unit, shared.slots);
  LoadQueries<kHeadDim, kRows>(a, unit, heads, shared.queries);
  __syncwarp();
  if (seen.begin < seen.end) {
    Score<kHeadDim, kRows>(a.shape, a.k + size_t{blockIdx.y} * a.head_stride, seen.begin, seen.end,
                           shared);
  }
  __syncwarp();
  Weigh<kHeadDim, kRows>(a, unit, heads, seen, shared);
  __syncwarp();
  const int element = static_cast<int>(threadIdx.x) * kElements;
  if (element >= kHeadDim) {
    return;
  }
  float acc[kRows][kElements] = {};
  if (seen.begin < seen.end) {
    AddValues<kHeadDim, kRows>(a.v + size_t{blockIdx.y} * a.head_stride + element, seen.begin,
                               seen.end, shared, acc);
  }
  float* const out = a.partial_out +
                     (size_t{unit.partial} * a.shape.query_heads + heads.first) * kHeadDim +
                     element;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r < heads.count) {
      const float inverse = shared.inverses[r];
#pragma unroll
      for (int e = 0; e < kElements; e += 2) {
        *reinterpret_cast<float2*>(out + r * kHeadDim + e) = {acc[r][e] * inverse,
                                                              acc[r][e + 1] * inverse};
      }
    }
  }
}

template <int kHeadDim>
cudaError_t LoadRows(KernelLimits& limits) {
  return LoadEach(limits, AttendBlocksDecodeKernel<kHeadDim, 1>,
                  AttendBlocksDecodeKernel<kHeadDim, 2>, AttendBlocksDecodeKernel<kHeadDim, 4>,
                  AttendBlocksDecodeKernel<kHeadDim, 8>);
}

template <int kHeadDim, int kRows>
cudaError_t LaunchDecode(const AttendBlocksArguments& arguments, uint32_t units,
                         cudaStream_t stream) {
  const uint32_t group = arguments.shape.query_heads / arguments.shape.kv_heads;
  return Launch(AttendBlocksDecodeKernel<kHeadDim, kRows>,
                {.grid = dim3(units * ((group + kRows - 1) / kRows), arguments.shape.kv_heads),
                 .block = dim3(kThreads),
                 .shared_bytes = Places<kHeadDim, kRows>::kBytes,
                 .stream = stream,
                 // K and V come by the read-only path (LoadOnce), for what no kernel writes while
                 // this one is there, be it in its wait.
                 .dependent = false},
                arguments);
}

template <int kHeadDim>
cudaError_t LaunchRows(const AttendBlocksArguments& arguments, uint32_t units,
                       cudaStream_t stream) {
  const uint32_t group = arguments.shape.query_heads / arguments.shape.kv_heads;
  return group == 1   ? LaunchDecode<kHeadDim, 1>(arguments, units, stream)
         : group == 2 ? LaunchDecode<kHeadDim, 2>(arguments, units, stream)
         : group <= 4 ? LaunchDecode<kHeadDim, 4>(arguments, units, stream)
                      : LaunchDecode<kHeadDim, 8>(arguments, units, stream);
}

}  // namespace

cudaError_t LoadAttendBlocksDecode(KernelLimits& limits) {
  for (const auto load : {LoadRows<64>, LoadRows<96>, LoadRows<128>, LoadRows<256>}) {
    if (const cudaError_t error = load(limits); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t AttendBlocksDecode(const AttendBlocksArguments& arguments, uint32_t units,
                               cudaStream_t stream) {
  switch (arguments.shape.head_dim) {
    case 64:
      return LaunchRows<64>(arguments, units, stream);
    case 96:
      return LaunchRows<96>(arguments, units, stream);
    case 128:
      return LaunchRows<128>(arguments, units, stream);
    default:
      return LaunchRows<256>(arguments, units, stream);
  }
}

}  // namespace lamina::kernels::cuda
