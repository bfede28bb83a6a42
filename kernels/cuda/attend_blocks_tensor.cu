// SPDX-License-Identifier: Apache-2.0
//
// AttendBlocksTensor: block partials of attention with products on tensor cores.
//
// One thread block of four warps takes one tile of query tokens, one KV head and one block of 256
// tokens. A "row" is one (query token, head) of the tile; rows are padded to tiles of 16, of which
// there is one for decode with up to 16 heads to a KV head, and up to four for prompts. Tokens come
// in pieces of 64, K and then V, through a ring in shared memory that is filled asynchronously:
//
//   scores   warp w has tokens 16w to 16w + 15 of every piece, for all rows
//   softmax  in registers; the warps show each other only a row's largest score and sum
//   values   warp w has every fourth group of 16 columns, over all tokens in order
//
// An element of a product follows from one row and one column of its factors, and both of its
// chains (over the head, over the tokens) have the order of one row's work. So neither the rows
// batched with a row nor the tiles that a prompt was cut into show in its bits.

#include <cuda_runtime.h>

#include <initializer_list>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/block_partials.cuh"
#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor_pieces.cuh"
#include "kernels/cuda/tensor_weights.cuh"

namespace lamina::kernels::cuda {
namespace {

// Dot products of all rows with this warp's 16 tokens of a piece. `dots` is [row tiles][8 tokens]
// [fragment]; those of row tiles that see none of the tokens are left alone.
template <int kRowTiles>
__device__ inline void MultiplyKeys(const uint16_t* piece, const uint16_t* queries, int head_dim,
                                    int first_token, const Seen (&seen)[kRowTiles],
                                    float (&dots)[kRowTiles][2][4]) {
  const int lane = LaneOf();
  const int stride = head_dim + kPadding;
  const int key_row = WarpOf() * kSide + lane / 16 * 8 + lane % 8;
  const uint16_t* const query = queries + lane % 16 * stride + lane / 16 * 8;
#pragma unroll
  for (int d = 0; d < head_dim; d += kSide) {
    uint32_t k[4];
    LoadMatrices(piece + PlaceInRing(head_dim, key_row, d + lane / 8 % 2 * 8), k);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      if (Reaches(seen[tile], first_token)) {
        uint32_t q[4];
        LoadMatrices(query + tile * kSide * stride + d, q);
        MultiplyMatrices(q, k[0], k[1], dots[tile][0]);
        MultiplyMatrices(q, k[2], k[3], dots[tile][1]);
      }
    }
  }
}

// A thread's part of the score matrix: of each row tile rows lane / 4 and 8 further, of each piece
// the fragments of 2 x 8 tokens.
template <int kRowTiles>
struct Scores {
  float of[kPieces][kRowTiles][2][4];
};

// The four warps' sums of a row, by the order of the tokens that they have.
__device__ inline float SumOfWarps(const float* sums, int rows) {
  return (sums[0] + sums[rows]) + (sums[2 * rows] + sums[3 * rows]);
}

__device__ inline float LargestOfWarps(const float* largest, int rows) {
  float most = largest[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    const float other = largest[warp * rows];
    most = other > most ? other : most;
  }
  return most;
}

// Turns a row's dot products into scores, minus infinity where it does not see the token, and notes
// the largest.
template <int kRowTiles>
__device__ inline void ScoreRow(const AttentionShape& shape, const Seen& seen, int tile, int half,
                                Scores<kRowTiles>& scores, float* largest) {
  const int lane = LaneOf();
  float most = kMinusInfinity;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = piece * kPieceTokens + WarpOf() * kSide + i / 2 * 8 + lane % 4 * 2 + i % 2;
      float& s = scores.of[piece][tile][i / 2][half * 2 + i % 2];
      s = t >= seen.begin && t < seen.end ? TensorScoreOf(shape, s) : kMinusInfinity;
      most = s > most ? s : most;
    }
  }
  most = LargestOfQuad(most);
  if (lane % 4 == 0) {
    *largest = most;
  }
}

// Turns a row's scores into weights, rounded to bf16, and returns the thread's part of their sum.
// The sum is that of the rounded weights: so they are shares of exactly 1.
template <int kRowTiles>
__device__ inline float WeighRow(float largest, int tile, int half, const Scores<kRowTiles>& scores,
                                 uint32_t (&weights)[kPieces][4]) {
  float sum = 0.0f;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float* s = &scores.of[piece][tile][part][half * 2];
      const uint32_t pair = WeightPairOf(s[0], s[1], largest);
      sum = (sum + LowBFloat16(pair)) + HighBFloat16(pair);
      weights[piece][part * 2 + half] = pair;
    }
  }
  return SumOfQuad(sum);
}

// From dot products to weights in shared memory, as fragments of the left factor of P V. Leaves
// each row's largest scores and sums there too.
template <int kRowTiles>
__device__ inline void Weigh(const AttendBlocksArguments& a, const AttentionUnit& unit, int group,
                             Scores<kRowTiles>& scores, const SharedPlaces& shared) {
  constexpr int kRows = kRowTiles * kSide;
  const int rows = static_cast<int>(unit.query_tokens) * group;
  const int lane = LaneOf();
  unsigned empty = 0;  // One bit for each of this thread's rows.
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int row = i * 8 + lane / 4;
    const Seen seen =
        row < rows ? SeenBy(unit, a.shape.window, static_cast<uint32_t>(row / group)) : Seen{0, 0};
    empty |= (seen.begin == seen.end ? 1u : 0u) << i;
    ScoreRow<kRowTiles>(a.shape, seen, i / 2, i % 2, scores,
                        shared.largest + WarpOf() * kRows + row);
  }
  __syncthreads();  // Also the end of the queries, in whose place the weights are.
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    uint32_t weights[kPieces][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * kSide + half * 8 + lane / 4;
      const float largest = (empty >> (tile * 2 + half) & 1u) != 0
                                ? 0.0f  // All scores are minus infinity.
                                : LargestOfWarps(shared.largest + row, kRows);
      const float sum = WeighRow<kRowTiles>(largest, tile, half, scores, weights);
      if (lane % 4 == 0) {
        shared.sums[WarpOf() * kRows + row] = sum;
      }
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int tokens = piece * kWarps + WarpOf();
      shared.weights[(tile * kGroups + tokens) * 32 + lane] = {
          weights[piece][0], weights[piece][1], weights[piece][2], weights[piece][3]};
    }
  }
}

// Adds the values of a piece to this warp's columns of all rows.
template <int kRowTiles, int kColumnGroups>
__device__ inline void AddValues(const uint16_t* piece, const uint4* weights, int head_dim,
                                 int warp, int first_token, const Seen (&seen)[kRowTiles],
                                 float (&out)[kRowTiles][kColumnGroups][2][4]) {
  const int lane = LaneOf();
  const uint16_t* const value =
      piece + PlaceInRing(head_dim, lane % 16, WarpOf() * kSide + lane / 16 * 8);
#pragma unroll
  for (int t = 0; t < kPieceTokens; t += kSide) {
    uint32_t p[kRowTiles][4] = {};
    bool needed = false;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      if (Reaches(seen[tile], first_token + t)) {
        const uint4 four = weights[(tile * kGroups + (first_token + t) / kSide) * 32 + lane];
        p[tile][0] = four.x;
        p[tile][1] = four.y;
        p[tile][2] = four.z;
        p[tile][3] = four.w;
        needed = true;
      }
    }
    if (!needed) {
      continue;  // The whole thread block takes the same branch.
    }
#pragma unroll
    for (int i = 0; i < kColumnGroups; ++i) {
      if ((i * kWarps + warp) * kSide < head_dim) {
        uint32_t v[4];
        LoadTransposed(value + t * RingStride(head_dim) + i * kWarps * kSide, v);
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          if (Reaches(seen[tile], first_token + t)) {
            MultiplyMatrices(p[tile], v[0], v[1], out[tile][i][0]);
            MultiplyMatrices(p[tile], v[2], v[3], out[tile][i][1]);
          }
        }
      }
    }
  }
}

template <int kRowTiles, int kColumnGroups>
__device__ inline void WritePartials(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                     int head_dim, int group, const SharedPlaces& shared,
                                     const float (&out)[kRowTiles][kColumnGroups][2][4]) {
  constexpr int kRows = kRowTiles * kSide;
  const int rows = static_cast<int>(unit.query_tokens) * group;
  const int lane = LaneOf();
#pragma unroll
  for (int part = 0; part < 2 * kRowTiles; ++part) {
    const int row = part * 8 + lane / 4;
    if (row < rows) {
      const float sum = SumOfWarps(shared.sums + row, kRows);
      const bool empty = sum == 0.0f;  // Else the largest weight is 1.
      const float inverse = empty ? 0.0f : 1.0f / sum;
      const size_t head = size_t{blockIdx.y} * group + row % group;
      const size_t partial = (size_t{unit.partial} + row / group) * a.shape.query_heads + head;
      if (threadIdx.x % 4 == 0 && WarpOf() == 0) {
        const float largest = LargestOfWarps(shared.largest + row, kRows);
        a.partial_lse[partial] = empty ? kMinusInfinity : largest + LogCanonical(sum);
      }
      float* const to = a.partial_out + partial * head_dim + WarpOf() * kSide + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kColumnGroups; ++i) {
        if ((i * kWarps + WarpOf()) * kSide < head_dim) {
#pragma unroll
          for (int eight = 0; eight < 2; ++eight) {
            const float* const acc = &out[part / 2][i][eight][part % 2 * 2];
            *reinterpret_cast<float2*>(to + i * kWarps * kSide + eight * 8) = {acc[0] * inverse,
                                                                               acc[1] * inverse};
          }
        }
      }
    }
  }
}

// What any row of each row tile sees.
template <int kRowTiles>
__device__ inline void SeenByTiles(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                   int group, Seen (&seen)[kRowTiles]) {
  const int rows = static_cast<int>(unit.query_tokens) * group;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    seen[tile] = {0, 0};
    if (tile * kSide < rows) {
      const int last = Smaller((tile + 1) * kSide, rows) - 1;
      const auto first_token = static_cast<uint32_t>(tile * kSide / group);
      const auto last_token = static_cast<uint32_t>(last / group);
      seen[tile] = {SeenBy(unit, a.shape.window, first_token).begin,
                    SeenBy(unit, a.shape.window, last_token).end};
    }
  }
}

template <int kHeadDim, int kRowTiles, int kRing>
__global__ void __launch_bounds__(kAttentionThreads)
    AttendBlocksTensorKernel(const AttendBlocksArguments a) {
  WaitForLaunchBefore();
  constexpr int kHeadDimMax = kHeadDim != 0 ? kHeadDim : 256;
  // Column groups of each warp.
  constexpr int kColumnGroups = (kHeadDimMax / kSide + kWarps - 1) / kWarps;
  const AttentionUnit unit = a.units[blockIdx.x];
  const int head_dim = kHeadDim != 0 ? kHeadDim : static_cast<int>(a.shape.head_dim);
  const int group = static_cast<int>(a.shape.query_heads / a.shape.kv_heads);
  const int warp = UniformWarp();
  const SharedPlaces shared = Divide(DynamicShared(), head_dim, kRowTiles, kRing);
  Seen seen[kRowTiles];
  SeenByTiles<kRowTiles>(a, unit, group, seen);
  const Seen all = {SeenBy(unit, a.shape.window, 0).begin,
                    SeenBy(unit, a.shape.window, unit.query_tokens - 1).end};
  const int first_piece = all.begin / kPieceTokens;
  const int end_piece = (all.end + kPieceTokens - 1) / kPieceTokens;

  FillSlots(a, unit, shared.slots);
  __syncthreads();
  PieceStream stream = {a.k + size_t{blockIdx.y} * a.head_stride,
                        a.v + size_t{blockIdx.y} * a.head_stride,
                        shared.slots,
                        shared.ring,
                        head_dim,
                        all,
                        first_piece,
                        Larger(end_piece - first_piece, 0),
                        0,
                        0};
  for (int i = 0; i < kRing - 1; ++i) {
    BringPiece<kRing>(stream);
  }
  LoadTileQueries(a, unit, {.head_dim = head_dim, .group = group, .rows = kRowTiles * kSide},
                  shared.queries);

  Scores<kRowTiles> scores = {};
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if (piece >= first_piece && piece < end_piece) {
      const uint16_t* const keys = TakePiece<kRing>(stream);
      MultiplyKeys<kRowTiles>(keys, shared.queries, head_dim, piece * kPieceTokens + warp * kSide,
                              seen, scores.of[piece]);
    }
  }
  Weigh<kRowTiles>(a, unit, group, scores, shared);
  __syncthreads();

  float out[kRowTiles][kColumnGroups][2][4] = {};
  for (int piece = first_piece; piece < end_piece; ++piece) {
    const uint16_t* const values = TakePiece<kRing>(stream);
    AddValues<kRowTiles, kColumnGroups>(values, shared.weights, head_dim, warp,
                                        piece * kPieceTokens, seen, out);
  }
  WaitForCopies();
  WritePartials<kRowTiles, kColumnGroups>(a, unit, head_dim, group, shared, out);
}

template <int kHeadDim, int kRing>
cudaError_t LaunchRows(const AttendBlocksArguments& arguments, const LaunchShape& shape) {
  switch (RowTilesOf(arguments.rows_max)) {
    case 1:
      return Launch(AttendBlocksTensorKernel<kHeadDim, 1, kRing>, shape, arguments);
    case 2:
      return Launch(AttendBlocksTensorKernel<kHeadDim, 2, kRing>, shape, arguments);
    default:
      return Launch(AttendBlocksTensorKernel<kHeadDim, 4, kRing>, shape, arguments);
  }
}

template <int kHeadDim>
cudaError_t LaunchRing(const AttendBlocksArguments& arguments, const LaunchShape& shape) {
  return arguments.ring == LongestRing(kHeadDim)
             ? LaunchRows<kHeadDim, LongestRing(kHeadDim)>(arguments, shape)
             : LaunchRows<kHeadDim, ShortestRing(kHeadDim)>(arguments, shape);
}

template <int kHeadDim, int kRing>
cudaError_t LoadRows(KernelLimits& limits) {
  return LoadEach(limits, AttendBlocksTensorKernel<kHeadDim, 1, kRing>,
                  AttendBlocksTensorKernel<kHeadDim, 2, kRing>,
                  AttendBlocksTensorKernel<kHeadDim, 4, kRing>);
}

template <int kHeadDim>
cudaError_t LoadRings(KernelLimits& limits) {
  const cudaError_t error = LoadRows<kHeadDim, LongestRing(kHeadDim)>(limits);
  return error == cudaSuccess ? LoadRows<kHeadDim, ShortestRing(kHeadDim)>(limits) : error;
}

}  // namespace

cudaError_t LoadAttendBlocksTensor(KernelLimits& limits) {
  for (const auto load : {LoadRings<64>, LoadRings<80>, LoadRings<96>, LoadRings<128>,
                          LoadRings<256>, LoadRings<0>}) {
    if (const cudaError_t error = load(limits); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t AttendBlocksTensor(const AttendBlocksArguments& arguments, uint32_t units,
                               cudaStream_t stream) {
  const uint32_t head_dim = arguments.shape.head_dim;
  const LaunchShape shape = {
      .grid = dim3(units, arguments.shape.kv_heads),
      .block = dim3(kAttentionThreads),
      .shared_bytes = TensorSharedBytes(head_dim, arguments.rows_max, arguments.ring),
      .stream = stream,
      .dependent = true};
  switch (OwnHeadDim(head_dim)) {
    case 64:
      return LaunchRing<64>(arguments, shape);
    case 80:
      return LaunchRing<80>(arguments, shape);
    case 96:
      return LaunchRing<96>(arguments, shape);
    case 128:
      return LaunchRing<128>(arguments, shape);
    case 256:
      return LaunchRing<256>(arguments, shape);
    default:
      return LaunchRing<0>(arguments, shape);
  }
}

}  // namespace lamina::kernels::cuda
