// SPDX-License-Identifier: Apache-2.0
//
// Scores of INT8 tokens: q.k for every row of a tile and the tokens of one part of a block.
//
// A vector holds one channel of sixteen tokens, or of a part of these; u is widened, made
// step * u - step * zero by one fused operation, which is exact, and multiplied for a few rows. The
// four lanes of a score are chains side by side. Meanwhile V of the part is asked for.

// Included once for each instruction set, which is Highway's pattern.
#if defined(LAMINA_INT8_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LAMINA_INT8_SCORES_INL_H
#undef LAMINA_INT8_SCORES_INL_H
#else
#define LAMINA_INT8_SCORES_INL_H
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/attention_ahead.h"
#include "kernels/cpu/int8_attention_internal.h"

HWY_BEFORE_NAMESPACE();
namespace lamina::kernels::internal::HWY_NAMESPACE {

// u as floats, and scales as floats.
template <class D>
struct Int8s {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  using D32 = hwy::HWY_NAMESPACE::RebindToSigned<D>;
  using DU32 = hwy::HWY_NAMESPACE::RebindToUnsigned<D>;
  using D8 = hwy::HWY_NAMESPACE::Rebind<uint8_t, D>;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());

  static HWY_INLINE V Load(const uint8_t* p) {
    return ConvertTo(D(), PromoteTo(D32(), LoadU(D8(), p)));
  }

  // Steps and -step * zero of `count` scales, a multiple of kN.
  static HWY_INLINE void Expand(const Int8Scale* scales, size_t count, float* steps, float* bases) {
    const D d;
    const DU32 du32;
    for (size_t i = 0; i < count; i += kN) {
      const auto words = LoadU(du32, reinterpret_cast<const uint32_t*>(scales + i));
      const V step = BitCast(d, ShiftLeft<16>(words));
      const V zero = ConvertTo(d, ShiftRight<16>(BitCast(D32(), words)));
      StoreU(step, d, steps + i);
      StoreU(Neg(Mul(step, zero)), d, bases + i);
    }
  }
};

template <class D>
struct Int8Scores {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  static constexpr size_t kN = hwy::HWY_NAMESPACE::MaxLanes(D());
  static constexpr size_t kVectors = kRunTokens / kN;  // Vectors of a tile's tokens.
  static constexpr uint32_t kRows = kN == 16 ? 4 : 2;
  static constexpr uint32_t kTiles = kInt8BlockTokens / kRunTokens;
  static constexpr size_t kLineBytes = 64;

  // Scores of the tokens of part `part`, whose scales are in the workspace.
  static void Run(const Int8Tile& tile, const Int8Block& block, uint32_t part,
                  Int8Workspace& work) {
    const uint8_t* tiles[kTiles];
    for (uint32_t i = 0; i < kTiles; ++i) {
      tiles[i] = TileOf(tile, block, part, i, work);
    }
    RunPart(tile, block, part, tiles,
            {.end = kTiles,
             .scores = work.work.scores + part * kInt8BlockTokens,
             .stride = kScoreStride},
            work);
  }

  // Scores of chosen tokens: each segment's by scales of its own.
  static void RunSegments(const Int8Tile& tile, const Int8Block& block, Int8Workspace& work) {
    const Int8Segment* segment = block.segments.begin();
    const uint32_t begin = block.all.begin / kInt8BlockTokens;
    for (uint32_t part = begin; part * kInt8BlockTokens < block.int8_end; ++part) {
      const uint32_t first = part * kInt8BlockTokens;
      const uint32_t end = std::min(first + kInt8BlockTokens, block.int8_end);
      const uint8_t* tiles[kTiles];
      for (uint32_t i = 0; i < kTiles; ++i) {
        // Behind the last token any tile does.
        tiles[i] = first + i * kRunTokens < end ? TileOf(tile, block, part, i, work) : tiles[0];
      }
      while (segment != block.segments.end() && segment->end <= first) {
        ++segment;
      }
      for (const Int8Segment* at = segment; at != block.segments.end() && at->begin < end; ++at) {
        Int8s<D>::Expand(at->k_scales, tile.tile.head_dim, work.k_steps, work.k_bases);
        const uint32_t from = std::max(at->begin, first) - first;
        const uint32_t to = std::min(at->end, end) - first;
        RunPart(tile, block, part, tiles,
                {.begin = from / kRunTokens,
                 .end = (to + kRunTokens - 1) / kRunTokens,
                 .scores = work.part_scores,
                 .stride = kInt8BlockTokens},
                work);
        for (uint32_t row = 0; row < tile.tile.rows(); ++row) {
          std::copy_n(work.part_scores + size_t{row} * kInt8BlockTokens + from, to - from,
                      work.work.scores + size_t{row} * kScoreStride + first + from);
        }
      }
    }
  }

 private:
  // Tiles [begin, end) of a part, and where scores of its tokens go.
  struct Tiles {
    uint32_t begin = 0;
    uint32_t end = 0;
    float* scores = nullptr;
    size_t stride = 0;
  };

  // May go on to the part's other tiles.
  static void RunPart(const Int8Tile& tile, const Int8Block& block, uint32_t part,
                      const uint8_t* const* tiles, const Tiles& wanted, Int8Workspace& work) {
    const uint32_t head_dim = tile.tile.head_dim;
    const uint32_t rows = tile.tile.rows();
    const uint32_t passes = (rows + kRows - 1) / kRows;
    uint32_t row = 0;
    for (uint32_t pass = 0; pass < passes; ++pass) {
      const uint32_t count = (rows - row) / (passes - pass);
      const Pass p = {.head_dim = head_dim,
                      .tiles = tiles,
                      .first_tile = wanted.begin,
                      .end_tile = wanted.end,
                      .steps = work.k_steps,
                      .bases = work.k_bases,
                      .q = work.work.q + size_t{row} * tile.tile.padded_dim,
                      .q_stride = tile.tile.padded_dim,
                      .scores = wanted.scores + size_t{row} * wanted.stride,
                      .score_stride = wanted.stride,
                      .ahead = pass > 0 ? nullptr
                                        : tile.int8.v + size_t{head_dim} *
                                                            block.slots[part * kInt8BlockTokens]};
      RunRows(count, p);
      row += count;
    }
  }

  struct Pass {
    uint32_t head_dim;
    const uint8_t* const* tiles;  // [kTiles]
    uint32_t first_tile;
    uint32_t end_tile;
    const float* steps;
    const float* bases;
    const float* q;
    size_t q_stride;
    float* scores;
    size_t score_stride;
    const uint8_t* ahead;  // Or null: as many bytes as K has are asked for.
  };

  // K of tokens 16 i to 16 i + 15 of the part as one tile.
  static const uint8_t* TileOf(const Int8Tile& tile, const Int8Block& block, uint32_t part,
                               uint32_t i, Int8Workspace& work) {
    const uint32_t head_dim = tile.tile.head_dim;
    const uint32_t first = part * kInt8BlockTokens + i * kRunTokens;
    const uint32_t* const slots = block.slots + first;
    if ((block.tiles >> (first / kRunTokens) & 1) != 0) {
      return tile.int8.k + size_t{slots[0]} * head_dim;
    }
    uint8_t* const to = work.k_tiles + size_t{i} * kRunTokens * head_dim;
    for (uint32_t t = 0; t < kRunTokens; ++t) {
      const uint8_t* const from = tile.int8.k + OffsetInInt8Tiles(slots[t], 0, head_dim);
      for (size_t channel = 0; channel < head_dim; ++channel) {
        to[channel * kRunTokens + t] = from[channel * kRunTokens];
      }
    }
    return to;
  }

  static HWY_INLINE void RunRows(uint32_t count, const Pass& p) {
    if constexpr (kRows == 4) {
      switch (count) {
        case 1:
          return RunSize<1, 4>(p);
        case 2:
          return RunSize<2, 2>(p);
        case 3:
          return RunSize<3, 1>(p);
        default:
          return RunSize<4, 1>(p);
      }
    } else {
      return count == 1 ? RunSize<1, 2>(p) : RunSize<2, 1>(p);
    }
  }

  template <int kCount, int kAtOnce>
  static HWY_INLINE void RunSize(const Pass& p) {
    switch (p.head_dim) {
      case 64:
        return RunTiles<kCount, kAtOnce, 64>(p);
      case 128:
        return RunTiles<kCount, kAtOnce, 128>(p);
      default:
        return RunTiles<kCount, kAtOnce, 0>(p);
    }
  }

  // kAtOnce tiles side by side, for kCount rows. kDim: the head size if the compiler is to
  // know it, else 0.
  template <int kCount, int kAtOnce, uint32_t kDim>
  static HWY_INLINE void RunTiles(const Pass& p) {
    p.ahead != nullptr ? Run<kCount, kAtOnce, kDim, true>(p) : Run<kCount, kAtOnce, kDim, false>(p);
  }

  template <int kCount, int kAtOnce, uint32_t kDim, bool kPrefetch>
  static HWY_NOINLINE void Run(const Pass& p) {
    const D d;
    const uint8_t* ahead = p.ahead;
    const uint32_t head_dim = kDim != 0 ? kDim : p.head_dim;
    for (uint32_t first = p.first_tile / kAtOnce * kAtOnce; first < p.end_tile; first += kAtOnce) {
      for (size_t v = 0; v < kVectors; ++v) {
        V sums[kCount][kAtOnce][4];
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int t = 0; t < kAtOnce; ++t) {
#pragma GCC unroll 4
            for (int lane = 0; lane < 4; ++lane) {
              sums[r][t][lane] = Zero(d);
            }
          }
        }
        uint32_t channel = 0;
        for (; channel + 32 <= head_dim; channel += 32) {
          v == 0 ? Channels<kCount, kAtOnce, 4, kPrefetch>(p, first, v, channel, ahead, sums)
                 : Channels<kCount, kAtOnce, 4, false>(p, first, v, channel, ahead, sums);
        }
        if (channel < head_dim) {
          Channels<kCount, kAtOnce, 2, false>(p, first, v, channel, ahead, sums);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int t = 0; t < kAtOnce; ++t) {
            const V sum = Add(Add(sums[r][t][0], sums[r][t][2]), Add(sums[r][t][1], sums[r][t][3]));
            Store(sum, d,
                  p.scores + r * p.score_stride + (first + static_cast<uint32_t>(t)) * kRunTokens +
                      v * kN);
          }
        }
      }
    }
  }

  // Eight channels of each of the first kLanes lanes.
  template <int kCount, int kAtOnce, int kLanes, bool kPrefetch>
  static HWY_INLINE void Channels(const Pass& p, uint32_t first, size_t v, uint32_t channel,
                                  const uint8_t*& ahead, V (&sums)[kCount][kAtOnce][4]) {
    const D d;
#pragma GCC unroll 1
    for (uint32_t i = 0; i < 8; ++i) {
      if (kPrefetch) {
#pragma GCC unroll 4
        for (int line = 0; line < kAtOnce; ++line, ahead += kLineBytes) {
          PrefetchLine(ahead);
        }
      }
#pragma GCC unroll 4
      for (int lane = 0; lane < kLanes; ++lane) {
        const uint32_t at = channel + 8 * static_cast<uint32_t>(lane) + i;
        const V step = Set(d, p.steps[at]);
        const V base = Set(d, p.bases[at]);
        V k[kAtOnce];
#pragma GCC unroll 4
        for (int t = 0; t < kAtOnce; ++t) {
          const uint8_t* const line =
              p.tiles[first + static_cast<uint32_t>(t)] + size_t{at} * kRunTokens + v * kN;
          k[t] = MulAdd(Int8s<D>::Load(line), step, base);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) {
          const V query = Set(d, p.q[r * p.q_stride + at]);
#pragma GCC unroll 4
          for (int t = 0; t < kAtOnce; ++t) {
            sums[r][t][lane] = MulAdd(query, k[t], sums[r][t][lane]);
          }
        }
      }
    }
  }
};

}  // namespace lamina::kernels::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
