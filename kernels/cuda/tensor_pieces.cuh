// SPDX-License-Identifier: Apache-2.0
//
// Shared memory of AttendBlocksTensor, and how queries, K and V come into it: pieces of 64 tokens
// through a ring, each brought by asynchronous copies while earlier ones are used.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_tiling.h"
#include "kernels/cuda/block_partials.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lamina::kernels::cuda {

inline constexpr int kPieces = kTokens / kPieceTokens;
inline constexpr int kGroups = kTokens / kSide;  // Groups of 16 tokens.

struct SharedPlaces {
  uint16_t* ring;     // [ring, 64, RingStride()]: pieces of K, then of V
  uint16_t* queries;  // [row tiles * 16, head_dim + 8]
  uint4* weights;     // [row tiles, 16 groups, 32 lanes]: fragments of P. In the place of queries.
  float* largest;     // [warps, row tiles * 16]
  float* sums;        // [warps, row tiles * 16]
  uint32_t* slots;    // [256]
};

__device__ inline SharedPlaces Divide(unsigned char* shared, int head_dim, int row_tiles,
                                      int ring) {
  SharedPlaces places;
  places.ring = reinterpret_cast<uint16_t*>(shared);
  shared += RingBytes(static_cast<uint32_t>(head_dim), ring);
  places.queries = reinterpret_cast<uint16_t*>(shared);
  places.weights = reinterpret_cast<uint4*>(shared);
  shared += row_tiles * RowTileBytes(static_cast<uint32_t>(head_dim));
  places.largest = reinterpret_cast<float*>(shared);
  places.sums = places.largest + kWarps * row_tiles * kSide;
  places.slots = reinterpret_cast<uint32_t*>(places.sums + kWarps * row_tiles * kSide);
  return places;
}

__device__ inline int LaneOf() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int WarpOf() { return static_cast<int>(threadIdx.x) / 32; }
// The warp's index, known by the compiler to be one number for the warp: products in a branch on it
// need no gathering of threads before each of them.
__device__ inline int UniformWarp() { return __shfl_sync(0xffffffffu, WarpOf(), 0); }

struct TileShape {
  int head_dim;
  int group;
  int rows;  // Places for rows, a multiple of 16.
};

// By the whole thread block, whatever its size. Rows past the last one are zeros.
__device__ inline void LoadTileQueries(const AttendBlocksArguments& a, const AttentionUnit& unit,
                                       const TileShape& shape, uint16_t* queries) {
  const int pieces = shape.head_dim / 8;
  const int rows = static_cast<int>(unit.query_tokens) * shape.group;
  for (int i = static_cast<int>(threadIdx.x); i < shape.rows * pieces;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / pieces;
    const int element = i % pieces * 8;
    uint4 eight = {0, 0, 0, 0};
    if (row < rows) {
      const uint16_t* q = a.q + (size_t{unit.row} + row / shape.group) * a.q_stride;
      const size_t column =
          (size_t{blockIdx.y} * shape.group + row % shape.group) * shape.head_dim + element;
      eight = *reinterpret_cast<const uint4*>(q + column);
    }
    *reinterpret_cast<uint4*>(queries + row * (shape.head_dim + kPadding) + element) = eight;
  }
}

// Where an element, a multiple of 8, of a row of a piece in the ring is.
__device__ inline int PlaceInRing(int head_dim, int row, int element) {
  return row * RingStride(head_dim) + (TakesTurns(head_dim) ? element ^ row % 8 * 8 : element);
}

// The pieces of K and then of V that some row sees, on their way through the ring.
struct PieceStream {
  const uint16_t* k;
  const uint16_t* v;
  const uint32_t* slots;
  uint16_t* ring;
  int head_dim;
  Seen seen;  // What any row sees.
  int first;  // The first piece that is seen,
  int count;  // How many pieces are seen.
  int next;   // The next piece of both streams together to be brought.
  int taken;  // The next piece to be used.
};

// Starts bringing the next piece, if there is one; the copies are a group of their own. Tokens that
// no row sees become zeros: their weights are 0, and 0 times what lies there might not be.
template <int kRing>
__device__ inline void BringPiece(PieceStream& stream) {
  if (stream.next < 2 * stream.count) {
    const bool is_value = stream.next >= stream.count;
    const uint16_t* const from = is_value ? stream.v : stream.k;
    const int piece = stream.first + stream.next - (is_value ? stream.count : 0);
    uint16_t* const to =
        stream.ring + stream.next % kRing * kPieceTokens * RingStride(stream.head_dim);
    const int eights = stream.head_dim / 8;
    const int first = piece * kPieceTokens;
    // As a device fetches them, copies that may become zeros cost half as much again.
    const bool whole = first >= stream.seen.begin && first + kPieceTokens <= stream.seen.end;
    for (int i = static_cast<int>(threadIdx.x); i < kPieceTokens * eights; i += kAttentionThreads) {
      const int t = first + i / eights;
      const int element = i % eights * 8;
      uint16_t* const place = to + PlaceInRing(stream.head_dim, i / eights, element);
      const uint16_t* const value = from + size_t{stream.slots[t]} * stream.head_dim + element;
      if (whole) {
        CopyAsync16(place, value);
      } else {
        CopyAsync16OrZero(place, value, t >= stream.seen.begin && t < stream.seen.end);
      }
    }
  }
  ++stream.next;
  EndCopyGroup();
}

// Waits for the next piece to be used and has another one brought where the last was.
template <int kRing>
__device__ inline const uint16_t* TakePiece(PieceStream& stream) {
  WaitForCopyGroups<kRing - 2>();
  __syncthreads();
  BringPiece<kRing>(stream);
  const int place = stream.taken++ % kRing;
  return stream.ring + place * kPieceTokens * RingStride(stream.head_dim);
}

// Whether a row that sees `seen` may see some of the 16 tokens from `first` on.
__device__ inline bool Reaches(const Seen& seen, int first) {
  return first < seen.end && first + kSide > seen.begin;
}

}  // namespace lamina::kernels::cuda
