// SPDX-License-Identifier: Apache-2.0
//
// AttendRunsTensor: partials of aligned runs of blocks, for tiles of many query tokens, with
// products on tensor cores. Where AttendBlocksTensor leaves a partial of each block in memory, here
// a thread block goes through the blocks of a run in order and merges as it goes, along the tree.
//
// One thread block of eight warps takes a tile of up to 128 rows (query token, head) and one KV
// head; warp w has rows 16w to 16w + 15, all scores of a block in its registers, and then their
// weights, which are the left factor of P V as they lie. Pieces of 64 tokens of K and V come
// through a ring in shared memory without a pause from block to block. So no warp waits for another
// but for the ring, and K and V are read once for 128 rows.
//
// Partials wait for their sibling where their own thread alone reads them: those of the first
// levels of the tree in shared memory, of the level above in the place in global memory where the
// run's partial will be.
//
// Each element of a product, each sum and each merge has the order of AttendBlocksTensor and
// MergeBlocks: a row's bits are the same.

#include <cuda_runtime.h>

#include <initializer_list>

#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/block_partials.cuh"
#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_merge.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor_pieces.cuh"
#include "kernels/cuda/tensor_weights.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr int kHalves = 2;  // A thread has rows lane / 4 and lane / 4 + 8 of its warp.
constexpr int kEights = kPieceTokens / 8;

struct RunPlaces {
  uint16_t* ring;     // [ring, 64, RingStride()]
  uint16_t* queries;  // [128, head_dim + 8]
  float4* waiting;    // [levels, head_dim / 8, threads]. In the place of queries.
  float2* lse;        // [levels + 1, threads]
  uint32_t* slots;    // [256 << (levels + 1)]
};

template <int kHeadDim>
__device__ inline RunPlaces DivideRun(unsigned char* shared, int ring, int levels) {
  RunPlaces places;
  places.ring = reinterpret_cast<uint16_t*>(shared);
  shared += RingBytes(kHeadDim, ring);
  places.queries = reinterpret_cast<uint16_t*>(shared);
  places.waiting = reinterpret_cast<float4*>(shared);
  const size_t queries = size_t{kRunRows} * (kHeadDim + kPadding) * sizeof(uint16_t);
  const size_t waiting = levels * RunLevelBytes(kHeadDim);
  shared += queries > waiting ? queries : waiting;
  places.lse = reinterpret_cast<float2*>(shared);
  places.slots = reinterpret_cast<uint32_t*>(places.lse + (levels + 1) * kRunThreads);
  return places;
}

// The pieces of K and of V of the run's blocks, block after block, on their way through the ring.
struct RunStream {
  const uint16_t* k;
  const uint16_t* v;
  const uint32_t* slots;
  SharedAddress ring;
  Seen seen;      // Tokens of the run that any row sees.
  int end_piece;  // Behind the last piece that is seen.
  int first;      // Pieces [first, end) of this block are seen.
  int end;
  int piece;      // The next one to be brought,
  bool is_value;  // of V, or of K.
  int brought;    // Pieces so far.
  int taken;
};

__device__ inline int EndOfBlock(int piece, int end_piece) {
  return Smaller(piece / kPieces * kPieces + kPieces, end_piece);
}

template <int kHeadDim>
constexpr int kPieceBytes = kPieceTokens* kHeadDim* static_cast<int>(sizeof(uint16_t));

// A thread brings the same 16 bytes of several tokens, whose numbers mod 8 are the same.
template <int kHeadDim, int kRing>
__device__ inline void BringRunPiece(RunStream& stream) {
  static_assert(TakesTurns(kHeadDim));
  if (stream.piece < stream.end_piece) {
    constexpr int kEightsOfHead = kHeadDim / 8;
    constexpr int kTokensAtOnce = kRunThreads / kEightsOfHead;
    const int row = static_cast<int>(threadIdx.x) / kEightsOfHead;
    const int element = static_cast<int>(threadIdx.x) % kEightsOfHead * 8;
    const uint16_t* const from = (stream.is_value ? stream.v : stream.k) + element;
    const SharedAddress to = stream.ring + stream.brought % kRing * kPieceBytes<kHeadDim> +
                             PlaceInRing(kHeadDim, row, element) * 2;
    const int first = stream.piece * kPieceTokens + row;
#pragma unroll
    for (int i = 0; i < kPieceTokens; i += kTokensAtOnce) {
      const int t = first + i;
      CopyAsync16OrZeroTo(to + i * kHeadDim * 2, from + size_t{stream.slots[t]} * kHeadDim,
                          t >= stream.seen.begin && t < stream.seen.end);
    }
    ++stream.brought;
    if (++stream.piece == stream.end) {
      if (stream.is_value) {
        stream.first = stream.end;
        stream.end = EndOfBlock(stream.first, stream.end_piece);
      } else {
        stream.piece = stream.first;
      }
      stream.is_value = !stream.is_value;
    }
  }
  EndCopyGroup();
}

template <int kHeadDim, int kRing>
__device__ inline SharedAddress TakeRunPiece(RunStream& stream) {
  WaitForCopyGroups<kRing - 2>();
  __syncthreads();
  BringRunPiece<kHeadDim, kRing>(stream);
  return stream.ring + stream.taken++ % kRing * kPieceBytes<kHeadDim>;
}

// This thread's rows of a block: fragments of 8 tokens and of 8 columns, and what is known of each
// of the two rows.
template <int kHeadDim>
struct RunRowsOf {
  float out[kHeadDim / kSide][2][4];
  float lse[kHalves];
};

// The places of this lane's row of matrices in a piece, for columns 16 i and up; those of i + 4 are
// 128 bytes further, as are those of other tokens by whole rows.
struct ColumnPlaces {
  SharedAddress of[4];
};

// Row `row` of the piece, `column` 0 or 8 columns further: PlaceInRing(), whose turns are an
// exclusive or.
template <int kHeadDim>
__device__ inline ColumnPlaces PlacesOf(SharedAddress piece, int row, int column) {
  ColumnPlaces places;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    places.of[i] = piece + PlaceInRing(kHeadDim, row, i * kSide + column) * 2;
  }
  return places;
}

// Dot products of the warp's rows with a piece.
template <int kHeadDim>
__device__ inline void MultiplyRunKeys(SharedAddress piece,
                                       const uint32_t (&queries)[kHeadDim / kSide][4],
                                       float (&dots)[kEights][4]) {
  const int lane = LaneOf();
  const ColumnPlaces places = PlacesOf<kHeadDim>(piece, lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
#pragma unroll
  for (int i = 0; i < kHeadDim / kSide; ++i) {
#pragma unroll
    for (int tokens = 0; tokens < kPieceTokens / kSide; ++tokens) {
      uint32_t k[4];
      LoadMatricesAt(places.of[i % 4] + i / 4 * 128 + tokens * kSide * kHeadDim * 2, k);
      MultiplyMatrices(queries[i], k[0], k[1], dots[2 * tokens]);
      MultiplyMatrices(queries[i], k[2], k[3], dots[2 * tokens + 1]);
    }
  }
}

// A call of a function would have the thread's many scores go to memory and back around it: so soft
// caps have kernels of their own.
template <bool kCapped>
__device__ inline float RunScoreOf(const AttentionShape& shape, float dot) {
  if constexpr (kCapped) {
    return CappedScoreOf(shape, dot);
  }
  return shape.scale * dot;
}

// From dot products to scores, of both of the thread's rows; minus infinity where a row does not
// see the token, which none has to be asked for if the `whole` block is seen by all rows of the
// warp.
template <bool kCapped>
__device__ inline void ScoreRun(const AttentionShape& shape, const Seen (&seen)[kHalves],
                                bool whole, float (&scores)[kPieces][kEights][4]) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& s = scores[piece][eight][i];
        s = RunScoreOf<kCapped>(shape, s);
      }
    }
  }
  if (whole) {
    return;
  }
  const int first = LaneOf() % 4 * 2;
  const int begin[kHalves] = {seen[0].begin - first, seen[1].begin - first};
  const int end[kHalves] = {seen[0].end - first, seen[1].end - first};
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = piece * kPieceTokens + eight * 8 + i % 2;
        float& s = scores[piece][eight][i];
        s = t >= begin[i / 2] && t < end[i / 2] ? s : kMinusInfinity;
      }
    }
  }
}

// From scores to weights in bf16, of one of the thread's rows. Returns their sum, and the largest
// score in `largest`.
template <int kHalf>
__device__ inline float WeighRunRow(const float (&scores)[kPieces][kEights][4], bool sees_nothing,
                                    float* largest, uint32_t (&weights)[kPieces][kEights / 2][4]) {
  // Several at a time, since the largest of all is the same in any order.
  float most[kPieces];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    most[piece] = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      most[piece] = fmaxf(most[piece], scores[piece][i / 2][kHalf * 2 + i % 2]);
    }
  }
  const float of_row = LargestOfQuad(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
  *largest = of_row;
  const float from = sees_nothing ? 0.0f : of_row;
  // The sums that the four warps of AttendBlocksTensor have, each of its 16 tokens of every piece.
  float sums[kWarps] = {};
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const float* const s = &scores[piece][eight][kHalf * 2];
      const uint32_t pair = WeightPairOf(s[0], s[1], from);
      float& sum = sums[eight / 2];
      sum = (sum + LowBFloat16(pair)) + HighBFloat16(pair);
      weights[piece][eight / 2][eight % 2 * 2 + kHalf] = pair;
    }
  }
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    sums[i] = SumOfQuad(sums[i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Adds the values of a piece to all columns of the warp's rows.
template <int kHeadDim>
__device__ inline void AddRunValues(SharedAddress piece, const uint32_t (&weights)[kEights / 2][4],
                                    int first_token, const Seen& seen,
                                    float (&out)[kHeadDim / kSide][2][4]) {
  const int lane = LaneOf();
  const ColumnPlaces places = PlacesOf<kHeadDim>(piece, lane % 16, lane / 16 * 8);
#pragma unroll
  for (int tokens = 0; tokens < kPieceTokens / kSide; ++tokens) {
    if (Reaches(seen, first_token + tokens * kSide)) {
#pragma unroll
      for (int i = 0; i < kHeadDim / kSide; ++i) {
        uint32_t v[4];
        LoadTransposedAt(places.of[i % 4] + i / 4 * 128 + tokens * kSide * kHeadDim * 2, v);
        MultiplyMatrices(weights[tokens], v[0], v[1], out[i][0]);
        MultiplyMatrices(weights[tokens], v[2], v[3], out[i][1]);
      }
    }
  }
}

// The row of the tile that a thread has as its first or second one.
__device__ inline int RowOf(int half) { return WarpOf() * kSide + half * 8 + LaneOf() / 4; }

// Where the run's partial of a row will be. Registers are short: so this is made anew where it is
// needed, and the unit read again.
struct PartialPlace {
  float* out;  // This thread's first element.
  float* lse;
  bool there;  // The tile has this row.
};

__device__ inline PartialPlace PlaceOfPartial(const AttendBlocksArguments& a, int row) {
  const AttentionUnit& unit = a.units[blockIdx.x];
  const int group = static_cast<int>(a.shape.query_heads / a.shape.kv_heads);
  const size_t head = size_t{blockIdx.y} * group + row % group;
  const size_t partial = (size_t{unit.partial} + row / group) * a.shape.query_heads + head;
  return {a.partial_out + partial * a.shape.head_dim + LaneOf() % 4 * 2, a.partial_lse + partial,
          row < static_cast<int>(unit.query_tokens) * group};
}

// What a row sees of the block that begins with token `base` of the run; nothing, if the tile does
// not have it.
__device__ inline Seen SeenInBlock(const AttendBlocksArguments& a, int row, int base) {
  const AttentionUnit& unit = a.units[blockIdx.x];
  const auto token = static_cast<uint32_t>(row) / (a.shape.query_heads / a.shape.kv_heads);
  if (token >= unit.query_tokens) {
    return {0, 0};
  }
  const Seen of_run = SeenBy(unit, a.shape.window, token);
  const int begin = Smaller(Larger(of_run.begin - base, 0), kTokens);
  return {begin, Larger(Smaller(of_run.end - base, kTokens), begin)};
}

// The partials that wait for their sibling, and the one that was made last.
template <int kHeadDim>
struct RunTree {
  RunRowsOf<kHeadDim> last;
  uint32_t waiting = 0;  // One bit for each level that has one.
  float4* shared;        // Those of the first levels.
  float2* lse;
};

// Calls body(row half, pair of neighbouring elements of the last partial, those of `level`).
template <int kHeadDim, typename Body>
__device__ inline void ForEachWaiting(const AttendBlocksArguments& a, RunTree<kHeadDim>& tree,
                                      int level, const Body& body) {
  if (level < a.levels) {
    float4* const place =
        tree.shared + level * (kHeadDim / 8) * kRunThreads + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kHeadDim / kSide; ++i) {
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        auto* const four = reinterpret_cast<float2*>(place + (2 * i + eight) * kRunThreads);
        body(0, &tree.last.out[i][eight][0], four[0]);
        body(1, &tree.last.out[i][eight][2], four[1]);
      }
    }
    return;
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    if (const PartialPlace place = PlaceOfPartial(a, RowOf(half)); place.there) {
#pragma unroll
      for (int i = 0; i < kHeadDim / kSide; ++i) {
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          body(half, &tree.last.out[i][eight][2 * half],
               *reinterpret_cast<float2*>(place.out + i * kSide + eight * 8));
        }
      }
    }
  }
}

// The last partial waits.
template <int kHeadDim>
__device__ inline void Wait(const AttendBlocksArguments& a, RunTree<kHeadDim>& tree, int level) {
  ForEachWaiting(a, tree, level, [](int, const float* last, float2& waiting) {
    waiting = {last[0], last[1]};
  });
  tree.lse[level * kRunThreads + static_cast<int>(threadIdx.x)] = {tree.last.lse[0],
                                                                   tree.last.lse[1]};
  tree.waiting |= 1u << level;
}

// Merges the one that waits, which is earlier, with the last one.
template <int kHeadDim>
__device__ inline void MergeWaiting(const AttendBlocksArguments& a, RunTree<kHeadDim>& tree,
                                    int level) {
  const float2 lse = tree.lse[level * kRunThreads + static_cast<int>(threadIdx.x)];
  const Shares shares[kHalves] = {ShareOut(lse.x, tree.last.lse[0]),
                                  ShareOut(lse.y, tree.last.lse[1])};
  ForEachWaiting(a, tree, level, [&](int half, float* last, const float2& waiting) {
    last[0] = MergeOne(shares[half], waiting.x, last[0]);
    last[1] = MergeOne(shares[half], waiting.y, last[1]);
  });
  tree.last.lse[0] = shares[0].lse;
  tree.last.lse[1] = shares[1].lse;
  tree.waiting &= ~(1u << level);
}

// The last partial is that of `block`. Leaves the whole run's as the last one at its end.
template <int kHeadDim>
__device__ inline void PushBlock(const AttendBlocksArguments& a, RunTree<kHeadDim>& tree,
                                 uint32_t block, bool is_last) {
  int level = 0;
  for (; level <= a.levels && (block >> level & 1u) != 0; ++level) {
    if ((tree.waiting >> level & 1u) != 0) {
      MergeWaiting(a, tree, level);
    }
  }
  if (!is_last) {
    Wait(a, tree, level);
    return;
  }
  for (; level <= a.levels; ++level) {
    if ((tree.waiting >> level & 1u) != 0) {
      MergeWaiting(a, tree, level);
    }
  }
}

template <int kHeadDim, int kRing, bool kCapped>
__global__ void __launch_bounds__(kRunThreads, 1)
    AttendRunsTensorKernel(const AttendBlocksArguments a) {
  WaitForLaunchBefore();
  const AttentionUnit unit = a.units[blockIdx.x];
  const int group = static_cast<int>(a.shape.query_heads / a.shape.kv_heads);
  const int rows = static_cast<int>(unit.query_tokens) * group;
  const int warp = UniformWarp();
  const int lane = LaneOf();
  const RunPlaces shared = DivideRun<kHeadDim>(DynamicShared(), kRing, a.levels);
  const Seen all = {SeenBy(unit, a.shape.window, 0).begin,
                    SeenBy(unit, a.shape.window, unit.query_tokens - 1).end};
  Seen of_warp = {0, 0};  // What any row of the warp sees,
  Seen common = {0, 0};   // and every one.
  if (warp * kSide < rows) {
    const auto first = static_cast<uint32_t>(warp * kSide / group);
    const auto last = static_cast<uint32_t>((Smaller(warp * kSide + kSide, rows) - 1) / group);
    const Seen of_first = SeenBy(unit, a.shape.window, first);
    const Seen of_last = SeenBy(unit, a.shape.window, last);
    of_warp = {of_first.begin, of_last.end};
    common = {of_last.begin, of_first.end};
  }

  const int end_piece = (all.end + kPieceTokens - 1) / kPieceTokens;
  FillSlots(a, unit, shared.slots, end_piece * kPieceTokens);
  __syncthreads();
  const int first_piece = all.begin / kPieceTokens;
  RunStream stream = {a.k + size_t{blockIdx.y} * a.head_stride,
                      a.v + size_t{blockIdx.y} * a.head_stride,
                      shared.slots,
                      SharedAddressOf(shared.ring),
                      all,
                      end_piece,
                      first_piece,
                      EndOfBlock(first_piece, end_piece),
                      first_piece,
                      false,
                      0,
                      0};
  for (int i = 0; i < kRing - 1; ++i) {
    BringRunPiece<kHeadDim, kRing>(stream);
  }
  LoadTileQueries(a, unit,
                  {.head_dim = kHeadDim, .group = group, .rows = static_cast<int>(kRunRows)},
                  shared.queries);
  __syncthreads();
  uint32_t queries[kHeadDim / kSide][4];
#pragma unroll
  for (int d = 0; d < kHeadDim; d += kSide) {
    LoadMatrices(
        shared.queries + (warp * kSide + lane % 16) * (kHeadDim + kPadding) + d + lane / 16 * 8,
        queries[d / kSide]);
  }

  RunTree<kHeadDim> tree;
  tree.shared = shared.waiting;
  tree.lse = shared.lse;

  const int blocks = (end_piece + kPieces - 1) / kPieces;
  for (int block = first_piece / kPieces; block < blocks; ++block) {
    const int base = block * kTokens;
    float scores[kPieces][kEights][4] = {};
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int at = block * kPieces + piece;
      if (at >= first_piece && at < end_piece) {
        const SharedAddress keys = TakeRunPiece<kHeadDim, kRing>(stream);
        if (at * kPieceTokens < of_warp.end && (at + 1) * kPieceTokens > of_warp.begin) {
          MultiplyRunKeys<kHeadDim>(keys, queries, scores[piece]);
        }
      }
    }
    Seen seen[kHalves] = {{0, kTokens}, {0, kTokens}};
    const bool whole = common.begin <= base && common.end >= base + kTokens;
    if (!whole) {
      seen[0] = SeenInBlock(a, RowOf(0), base);
      seen[1] = SeenInBlock(a, RowOf(1), base);
    }
    uint32_t weights[kPieces][kEights / 2][4];
    float largest[kHalves];
    float sums[kHalves];
    ScoreRun<kCapped>(a.shape, seen, whole, scores);
    sums[0] = WeighRunRow<0>(scores, seen[0].begin == seen[0].end, &largest[0], weights);
    sums[1] = WeighRunRow<1>(scores, seen[1].begin == seen[1].end, &largest[1], weights);

#pragma unroll
    for (int i = 0; i < kHeadDim / kSide; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        tree.last.out[i][j / 4][j % 4] = 0.0f;
      }
    }
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int at = block * kPieces + piece;
      if (at >= first_piece && at < end_piece) {
        const SharedAddress values = TakeRunPiece<kHeadDim, kRing>(stream);
        AddRunValues<kHeadDim>(values, weights[piece], at * kPieceTokens, of_warp, tree.last.out);
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const bool empty = sums[half] == 0.0f;  // Else the largest weight is 1.
      const float inverse = 1.0f / sums[half];
      tree.last.lse[half] = empty ? kMinusInfinity : largest[half] + LogCanonical(sums[half]);
#pragma unroll
      for (int i = 0; i < kHeadDim / kSide; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& element = tree.last.out[i][j / 2][half * 2 + j % 2];
          element = empty ? kNothing : element * inverse;
        }
      }
    }
    PushBlock(a, tree, a.units[blockIdx.x].block + static_cast<uint32_t>(block),
              block + 1 == blocks);
  }
  WaitForCopies();
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    if (const PartialPlace place = PlaceOfPartial(a, RowOf(half)); place.there) {
#pragma unroll
      for (int i = 0; i < kHeadDim / kSide; ++i) {
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          const float* const from = &tree.last.out[i][eight][2 * half];
          *reinterpret_cast<float2*>(place.out + i * kSide + eight * 8) = {from[0], from[1]};
        }
      }
      if (lane % 4 == 0) {
        *place.lse = tree.last.lse[half];
      }
    }
  }
}

template <int kHeadDim, int kRing>
cudaError_t LaunchRun(const AttendBlocksArguments& arguments, const LaunchShape& shape) {
  return arguments.shape.soft_cap > 0.0f
             ? Launch(AttendRunsTensorKernel<kHeadDim, kRing, true>, shape, arguments)
             : Launch(AttendRunsTensorKernel<kHeadDim, kRing, false>, shape, arguments);
}

template <int kHeadDim, int kRing>
cudaError_t LoadRun(KernelLimits& limits) {
  return LoadEach(limits, AttendRunsTensorKernel<kHeadDim, kRing, true>,
                  AttendRunsTensorKernel<kHeadDim, kRing, false>);
}

}  // namespace

cudaError_t LoadAttendRunsTensor(KernelLimits& limits) {
  for (const auto load : {LoadRun<64, 4>, LoadRun<128, 4>, LoadRun<128, 3>}) {
    if (const cudaError_t error = load(limits); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t AttendRunsTensor(const AttendBlocksArguments& arguments, uint32_t units,
                             cudaStream_t stream) {
  const uint32_t head_dim = arguments.shape.head_dim;
  const LaunchShape shape = {
      .grid = dim3(units, arguments.shape.kv_heads),
      .block = dim3(kRunThreads),
      .shared_bytes = RunSharedBytes(head_dim, arguments.ring, arguments.levels),
      .stream = stream,
      .dependent = true};
  return head_dim == 64        ? LaunchRun<64, 4>(arguments, shape)
         : arguments.ring == 4 ? LaunchRun<128, 4>(arguments, shape)
                               : LaunchRun<128, 3>(arguments, shape);
}

}  // namespace lamina::kernels::cuda
