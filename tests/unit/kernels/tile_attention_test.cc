// SPDX-License-Identifier: Apache-2.0
//
// Attention in tiles of bf16: the step against the emulated tiles, what the definition says by
// hand, the processor's instructions, where it has none with each of them emulated, and what a
// processor takes. The kernels are in bf16_attention_test.cc.
#include "kernels/tile_attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "common/philox.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_probe.h"
#include "kernels/cpu/tile_attention_internal.h"
#include "kernels/cpu/tile_emulation.h"
#include "kernels/cpu/tile_multiplier-inl.h"
#include "kernels/cpu/tile_products.h"
#include "kernels/tile_math.h"
#include "tests/unit/kernels/amx_trap.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

uint32_t Pair(float first, float second) {
  return pairs::MakePair(ToBFloat16(first), ToBFloat16(second));
}

// --- the step ---

TEST(TileStepTest, SumsFirstAndSecondProductsApart) {
  uint32_t a[tiles::kStepPairs] = {};
  uint32_t b[tiles::kStepPairs] = {};
  a[0] = Pair(0x1p24f, 3);
  b[0] = Pair(1, 2);
  a[1] = Pair(1, 5);
  b[1] = Pair(1, 1);
  a[15] = Pair(-0x1p24f, 0);
  b[15] = Pair(1, 0);
  // The first products give 2^24 + 1 = 2^24, then 0; the second ones 11.
  EXPECT_EQ(tiles::Step(0.5f, a, b), 11.5f);
}

TEST(TileStepTest, FlushesSubnormals) {
  uint32_t a[tiles::kStepPairs] = {};
  uint32_t b[tiles::kStepPairs] = {};
  EXPECT_EQ(tiles::Step(0x1p-127f, a, b), 0.0f);
  a[3] = Pair(0x1p-127f, 0);
  b[3] = Pair(0x1p100f, 0);
  EXPECT_EQ(tiles::Step(0.0f, a, b), 0.0f);
  a[3] = Pair(0x1p-64f, 0x1p-60f);
  b[3] = Pair(0x1p-63f, 0x1p-66f);
  EXPECT_EQ(tiles::Step(0.0f, a, b), 0x1p-126f);
  a[3] = Pair(0, -0x1.8p-63f);
  b[3] = Pair(0, 0x1p-63f);
  EXPECT_EQ(std::bit_cast<uint32_t>(tiles::Step(0x1p-126f, a, b)), 0x80000000u);
}

// Numbers of all sizes, zeros, subnormals and infinities among them.
TEST(TileStepTest, IsWhatTheEmulatedTilesDo) {
  constexpr size_t kPairs = tiles::kStepPairs;
  static_assert(kPairs == cpu::kTileSteps);
  Prng prng(11);
  cpu::EmulatedTiles unit;
  cpu::TileConfig config;
  config.Set(0, 1);
  config.Set(1, 1);
  config.Set(2, kPairs);
  unit.Configure(config);
  for (int i = 0; i < 3000; ++i) {
    // Exponents around that of one, or around the least of products.
    const uint64_t exponents = 1 + prng.Below(i % 2 == 0 ? 6 : 255);
    const uint64_t least = i % 2 == 0 ? 60 : 0;
    const auto word = [&] {
      const auto half = [&] {
        const uint64_t exponent = std::min<uint64_t>(255, least + prng.Below(exponents));
        return static_cast<uint32_t>(prng.Below(2) << 15 | exponent << 7 | prng.Below(128));
      };
      const uint32_t low = half();
      return low | half() << 16;
    };
    uint32_t a[kPairs];
    uint32_t columns[kPairs][cpu::kTileColumns];
    float sums[cpu::kTileColumns];
    for (size_t pair = 0; pair < kPairs; ++pair) {
      a[pair] = word();
      for (uint32_t& column : columns[pair]) {
        column = word();
      }
    }
    for (float& sum : sums) {
      sum = std::bit_cast<float>(word());
    }
    float got[cpu::kTileColumns];
    unit.Load<0>(sums, sizeof(sums));
    unit.Load<1>(a, sizeof(a));
    unit.Load<2>(columns, sizeof(columns[0]));
    unit.Dot<0, 1, 2>();
    unit.Store<0>(got, sizeof(got));
    for (size_t c = 0; c < cpu::kTileColumns; ++c) {
      uint32_t b[kPairs];
      for (size_t pair = 0; pair < kPairs; ++pair) {
        b[pair] = columns[pair][c];
      }
      const float want = tiles::Step(sums[c], a, b);
      ASSERT_TRUE(std::bit_cast<uint32_t>(got[c]) == std::bit_cast<uint32_t>(want) ||
                  (std::isnan(got[c]) && std::isnan(want)))
          << got[c] << " instead of " << want << ", round " << i;
    }
  }
}

// --- the definition, by hand ---

std::vector<const AttentionKernel*> AllKernels() {
  std::vector<const AttentionKernel*> all = {&ReferenceTileAttention()};
  for (const AttentionKernel* kernel : CpuTileAttentionVariants()) {
    all.push_back(kernel);
  }
  return all;
}

// Queries of zeros weigh all tokens alike. Of the first 32 tokens the even ones, which are the
// first of their pairs, give 2^24 + 15 = 2^24, and the odd ones 16; the next 32 begin with -2^24.
TEST(TileAttentionTest, ValuesAreSummedInStepsOf32Tokens) {
  PlainProblem problem(Descriptor(32, 1, 1), 33, 1);
  for (uint32_t token = 0; token < 33; ++token) {
    const float v = token == 0 ? 0x1p24f : token == 32 ? -0x1p24f : 1.0f;
    problem.v[token * size_t{32} + 7] = ToBFloat16(v);
  }
  for (const AttentionKernel* kernel : AllKernels()) {
    const std::vector<BFloat16> out = problem.Attend(*kernel);
    EXPECT_EQ(out[7].bits, ToBFloat16(16.0f / 33).bits) << kernel->name();
    EXPECT_EQ(out[6].bits, 0u) << kernel->name();
  }
}

// Elements 0 and 1 are a pair, and 32 of the 64 elements are a step: those of the first and the
// second eight of each half.
TEST(TileAttentionTest, ScoresAreSummedInStepsOf32Elements) {
  PlainProblem problem(Descriptor(64, 1, 1), 2, 1);
  problem.d.scale = 1.0f;
  const auto set = [&](size_t element, float k) {
    problem.q[element] = ToBFloat16(1.0f);
    problem.k[OffsetInTiles(1, element, 64)] = ToBFloat16(k);
  };
  problem.v[64] = ToBFloat16(1.0f);
  // One step: 2^24 + 1 = 2^24 among the first products, and 4 among the second ones. Then -2^24 in
  // the next: the score is 4 instead of 5.
  set(0, 0x1p24f);
  set(32, 1.0f);
  set(1, 4.0f);
  set(16, -0x1p24f);
  const float share = 1.0f / (1.0f + std::exp(-4.0f));
  for (const AttentionKernel* kernel : AllKernels()) {
    EXPECT_NEAR(ToFloat(problem.Attend(*kernel)[0]), share, 0x1p-8f) << kernel->name();
  }
}

// A sum that becomes -0 by flushing in the last step that a row sees is +0 in the end, as it is
// where other rows of the tile see more and the row takes steps of zeros.
TEST(TileAttentionTest, ASumThatIsFlushedHasNoSign) {
  constexpr uint32_t kTokens = 100;
  PlainProblem problem(Descriptor(32, 1, 1), kTokens, kTokens);
  problem.v[0] = ToBFloat16(0x1p-126f);
  problem.v[size_t{32} * 32] = ToBFloat16(-0x1.8p-126f);
  for (const AttentionKernel* kernel : AllKernels()) {
    const std::vector<BFloat16> chunk = problem.Attend(*kernel);
    EXPECT_EQ(chunk[size_t{32} * 32].bits, 0u) << kernel->name();
    PlainProblem decode(Descriptor(32, 1, 1), 33, 1);
    std::copy_n(problem.v.begin(), decode.v.size(), decode.v.begin());
    EXPECT_EQ(decode.Attend(*kernel)[0].bits, 0u) << kernel->name();
  }
}

// Nor has one that a row takes on in a step of which it sees a part: zeros stand in the reference
// for what it does not see, and here weights of zero times negative values, which are -0.
TEST(TileAttentionTest, ASumOfProductsThatAreFlushedHasNoSign) {
  constexpr uint32_t kTokens = kBlockTokens;
  PlainProblem problem(Descriptor(32, 1, 1), kTokens, 6);
  problem.d.scale = 1.0f;
  for (size_t row = 0; row < 6; ++row) {
    problem.q[row * 32] = ToBFloat16(1.0f);
  }
  problem.v[size_t{160} * 32] = ToBFloat16(0x1p-126f);
  problem.v[size_t{192} * 32] = ToBFloat16(-0x1.8p-126f);
  for (size_t token = 224; token < kTokens; ++token) {
    problem.k[OffsetInTiles(token, 0, 32)] = ToBFloat16(-6.9375f);  // Some 2^-10 of a weight.
    problem.v[token * 32] = ToBFloat16(-0x1p-120f);
  }
  for (const AttentionKernel* kernel : AllKernels()) {
    const std::vector<BFloat16> out = problem.Attend(*kernel);
    for (size_t row = 0; row < 6; ++row) {
      EXPECT_EQ(out[row * 32].bits, 0u) << kernel->name() << ", row " << row;
    }
  }
}

// --- the loop ---

// Rows and strips of every count, with a step of zeros and without, against the step.
TEST(TileMultiplierTest, MultipliesAllCountsOfRowsAndStrips) {
  constexpr size_t kSteps = 2 * cpu::kTileSteps;
  constexpr size_t kRowWords = kSteps + 3;
  constexpr size_t kStripWords = kSteps * cpu::kTileColumns + 16;
  constexpr size_t kOutStride = 7 * cpu::kTileColumns + 5;
  Prng prng(3);
  std::vector<uint32_t> rows(32 * kRowWords);
  std::vector<uint32_t> strips(7 * kStripWords);
  for (auto* words : {&rows, &strips}) {
    for (uint32_t& word : *words) {
      const auto first = static_cast<float>(prng.Normal());
      word = Pair(first, static_cast<float>(prng.Normal()));
    }
  }
  cpu::EmulatedTiles unit;
  for (uint32_t row_count = 1; row_count <= 32; ++row_count) {
    for (const uint32_t strip_count : {1, 2, 3, 4, 5, 7}) {
      std::vector<float> out(32 * kOutStride, -1.0f);
      {
        cpu::TileMultiplier<cpu::EmulatedTiles> multiplier(unit);
        multiplier.Multiply({.rows = rows.data(),
                             .row_words = kRowWords,
                             .strips = strips.data(),
                             .strip_words = kStripWords,
                             .steps = kSteps,
                             .out = out.data(),
                             .out_stride = kOutStride,
                             .ends_with_zeros = strip_count % 2 == 0},
                            row_count, strip_count);
      }
      EXPECT_FALSE(unit.configured());
      for (uint32_t row = 0; row < 32; ++row) {
        for (size_t i = 0; i < kOutStride; ++i) {
          float want = -1.0f;
          if (row < row_count && i < strip_count * cpu::kTileColumns) {
            want = 0.0f;
            for (size_t step = 0; step < kSteps; step += cpu::kTileSteps) {
              uint32_t column[cpu::kTileSteps];
              for (size_t pair = 0; pair < cpu::kTileSteps; ++pair) {
                column[pair] = strips[i / cpu::kTileColumns * kStripWords +
                                      (step + pair) * cpu::kTileColumns + i % cpu::kTileColumns];
              }
              want = tiles::Step(want, rows.data() + row * kRowWords + step, column);
            }
          }
          ASSERT_EQ(out[row * kOutStride + i], want)
              << "row " << row << " of " << row_count << ", column " << i << " of "
              << strip_count * cpu::kTileColumns;
        }
      }
    }
  }
}

// --- the processor's instructions ---

// Every row count of tiles, fragments, windows and chunks.
void CompareWithReference(const AttentionKernel& kernel) {
  const absl::Status status = ProbeAttention(kernel, ReferenceTileAttention());
  EXPECT_TRUE(status.ok()) << status;
  ThreadPool pool({.threads = 1});
  const AttentionCase cases[] = {
      {Descriptor(64, 1, 16), 300, 3, 64},
      {Descriptor(96, 2, 1), 70, 37, 9},
      {Descriptor(128, 1, 8, 40), 290, 5, 1024},
      {WithSinks(Descriptor(64, 1, 3, 0, 5.0f)), 33, 20, 1024},
  };
  for (const AttentionCase& c : cases) {
    const AttentionProblem problem(c);
    EXPECT_EQ(Bits(problem.Attend(kernel, pool)),
              Bits(problem.Attend(ReferenceTileAttention(), pool)))
        << kernel.name() << " head_dim " << c.descriptor.head_dim;
  }
}

TEST(AmxAttentionTest, TheInstructionsDoWhatIsDefined) {
  const internal::AttentionOps* const ops = internal::AmxTileOpsWithPlainVectors();
  if (ops == nullptr) {
    GTEST_SKIP() << "this build has no tiles";
  }
  const std::unique_ptr<AttentionKernel> kernel = internal::MakeAttentionKernel(*ops);
  if (cpu::HasTileInstructions()) {
    ASSERT_TRUE(cpu::TilePermission().ok()) << cpu::TilePermission();
    CompareWithReference(*kernel);
    return;
  }
  const cpu::AmxTrap trap;
  CompareWithReference(*kernel);
  EXPECT_GT(trap.dots(), 500u);
  EXPECT_GT(trap.instructions(), 2 * trap.dots());
  EXPECT_FALSE(trap.configured()) << "the tiles were not given back";
}

TEST(AmxAttentionTest, TilesAreGivenBackAfterEachCall) {
  const internal::AttentionOps* const ops = internal::AmxTileOpsWithPlainVectors();
  if (ops == nullptr || cpu::HasTileInstructions()) {
    GTEST_SKIP() << "this processor does not tell";
  }
  const std::unique_ptr<AttentionKernel> kernel = internal::MakeAttentionKernel(*ops);
  const cpu::AmxTrap trap;
  for (const uint32_t queries : {1, 17, 40}) {
    PlainProblem problem(Descriptor(32, 1, 1), 40, queries);
    problem.FillNormal();
    problem.Attend(*kernel);
    EXPECT_FALSE(trap.configured()) << queries << " queries";
  }
  EXPECT_GT(trap.dots(), 0u);
}

// --- the choice ---

TEST(TileAttentionChoiceTest, TheProcessorsTilesAreTakenWhereTheyAre) {
  const absl::Span<const AttentionKernel* const> variants = CpuTileAttentionVariants();
  for (const AttentionKernel* kernel : variants) {
    GTEST_LOG_(INFO) << kernel->name();
    EXPECT_TRUE(ProbeAttention(*kernel, ReferenceTileAttention()).ok());
  }
  EXPECT_EQ(variants.empty(), CpuAttentionVariants().empty());
  EXPECT_EQ(HasTileAttention(), variants.size() == 2);
  EXPECT_EQ(&CpuTileAttention(), variants.empty()     ? &ReferenceTileAttention()
                                 : HasTileAttention() ? variants.front()
                                                      : variants.back());
}

}  // namespace
}  // namespace lamina::kernels
