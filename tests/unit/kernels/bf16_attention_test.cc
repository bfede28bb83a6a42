// SPDX-License-Identifier: Apache-2.0
//
// The arithmetics of attention whose products and weights are bf16, in pairs and in tiles: every
// kernel of this processor against the reference, bit by bit, and the reference against plain
// double loops. One suite for both.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "kernels/canonical_math.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/k_tiles.h"
#include "kernels/pair_attention.h"
#include "kernels/partial.h"
#include "kernels/tile_attention.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

struct Bf16Arithmetic {
  std::string name;
  const AttentionKernel& (*reference)();
  absl::Span<const AttentionKernel* const> (*variants)();
};

class Bf16AttentionTest : public testing::TestWithParam<Bf16Arithmetic> {
 protected:
  static const AttentionKernel& reference() { return GetParam().reference(); }
  static absl::Span<const AttentionKernel* const> variants() { return GetParam().variants(); }
  static std::vector<const AttentionKernel*> all_kernels() {
    std::vector<const AttentionKernel*> all = {&reference()};
    all.insert(all.end(), variants().begin(), variants().end());
    return all;
  }
};
using Bf16AttentionDeathTest = Bf16AttentionTest;

const Bf16Arithmetic kArithmetics[] = {{"Pairs", ReferencePairAttention, CpuPairAttentionVariants},
                                       {"Tiles", ReferenceTileAttention, CpuTileAttentionVariants}};

INSTANTIATE_TEST_SUITE_P(Arithmetics, Bf16AttentionTest, testing::ValuesIn(kArithmetics),
                         [](const auto& param_info) { return param_info.param.name; });
INSTANTIATE_TEST_SUITE_P(Arithmetics, Bf16AttentionDeathTest, testing::ValuesIn(kArithmetics),
                         [](const auto& param_info) { return param_info.param.name; });

// Head sizes x groups, with odd lengths, fragments, windows and caps mixed in by the seed.
std::vector<AttentionCase> ShapeCases() {
  constexpr uint32_t kTokens[] = {1, 2, 15, 16, 17, 33, 255, 256, 257, 300, 511, 513};
  constexpr uint32_t kRuns[] = {1, 7, 64, 1024};
  std::vector<AttentionCase> cases;
  uint32_t seed = 1;
  for (const uint32_t head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 256}) {
    for (const uint32_t group : {1, 2, 3, 4, 5, 7, 8, 9, 16, 32}) {
      ++seed;
      const uint32_t tokens = kTokens[seed * 7 % 12];
      const uint32_t window = seed % 3 == 0 ? 1 + seed * 37 % 400 : 0;
      const float cap = seed % 5 == 0 ? 3.0f : 0.0f;
      const AttentionDescriptor plain = Descriptor(head_dim, 1 + seed % 2, group, window, cap);
      cases.push_back({.descriptor = seed % 4 == 0 ? WithSinks(plain) : plain,
                       .tokens = tokens,
                       .queries = seed % 2 == 0 ? 1 : 1 + seed % std::min(tokens, 5u),
                       .run_max = kRuns[seed % 4],
                       .seed = seed});
    }
  }
  return cases;
}

TEST_P(Bf16AttentionTest, EveryShapeHasTheReferenceBits) {
  ThreadPool pool({.threads = 1});
  for (const AttentionCase& c : ShapeCases()) {
    const AttentionProblem problem(c);
    const std::vector<uint16_t> want = Bits(problem.Attend(reference(), pool));
    for (const AttentionKernel* kernel : variants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want)
          << kernel->name() << " head_dim " << c.descriptor.head_dim << " group "
          << c.descriptor.group() << " window " << c.descriptor.window << " cap "
          << c.descriptor.soft_cap << " sinks " << c.descriptor.sinks.size() << " tokens "
          << c.tokens << " queries " << c.queries << " run_max " << c.run_max;
    }
  }
}

// A chunk of queries in one call against one call for each query.
TEST_P(Bf16AttentionTest, PrefillHasTheBitsOfDecode) {
  ThreadPool pool({.threads = 1});
  const AttentionCase cases[] = {
      {Descriptor(64, 2, 3), 600, 300, 100},       {Descriptor(64, 1, 1), 300, 300, 64},
      {Descriptor(128, 1, 4, 100), 400, 100, 33},  {Descriptor(80, 1, 2, 5, 4.0f), 200, 190, 9},
      {Descriptor(48, 1, 32, 300), 350, 20, 1000}, {Descriptor(16, 3, 7), 257, 257, 16}};
  for (const AttentionCase& c : cases) {
    const AttentionProblem problem(c);
    for (const AttentionKernel* kernel : variants()) {
      const std::vector<uint16_t> chunk = Bits(problem.Attend(*kernel, pool));
      std::vector<uint16_t> one_by_one;
      for (uint32_t i = 0; i < c.queries; ++i) {
        const std::vector<uint16_t> row = Bits(problem.Attend(*kernel, pool, i, 1));
        one_by_one.insert(one_by_one.end(), row.begin(), row.end());
      }
      ASSERT_EQ(chunk, one_by_one) << kernel->name() << " head_dim " << c.descriptor.head_dim;
    }
  }
}

// Parts of a chunk on 1, 2 and 5 threads, against the whole on one.
TEST_P(Bf16AttentionTest, CutsAndThreadsDoNotShow) {
  const AttentionDescriptor d = Descriptor(64, 3, 3);
  const AttentionProblem problem({d, 500, 400, 90});
  ThreadPool one({.threads = 1});
  const std::vector<uint16_t> want = Bits(problem.Attend(*variants().back(), one));
  for (const AttentionKernel* kernel : variants()) {
    for (const size_t threads : {1, 2, 5}) {
      ThreadPool pool({.threads = threads});
      std::vector<BFloat16> out(size_t{400} * d.q_width());
      std::vector<AttentionItem> items;
      for (uint32_t first = 0, i = 0; first < 400; ++i) {
        const uint32_t count = std::min(400 - first, i % 3 == 0 ? 1u : i * 37 % 90 + 1);
        items.push_back(problem.Item(first, count, out.data() + size_t{first} * d.q_width()));
        first += count;
      }
      const auto scratch = kernel->MakeScratch(d, 90, 500, threads);
      kernel->Attend(d, problem.kv(), items, *scratch, pool);
      ASSERT_EQ(Bits(out), want) << kernel->name() << " threads " << threads;
    }
  }
}

TEST_P(Bf16AttentionTest, NothingToDoIsDone) {
  const AttentionDescriptor d = Descriptor(64, 1, 2);
  ThreadPool pool({.threads = 2});
  for (const AttentionKernel* kernel : all_kernels()) {
    const auto scratch = kernel->MakeScratch(d, 4, 16, 2);
    kernel->Attend(d, KvView{}, {}, *scratch, pool);
    const AttentionItem empty = {.query_tokens = 0};
    kernel->Attend(d, KvView{}, {&empty, 1}, *scratch, pool);
  }
}

// One row has spans of two blocks, each attended by itself, merged as a holder of each would.
TEST_P(Bf16AttentionTest, PartialsOfSpansMergeToTheBitsOfTheWhole) {
  ThreadPool pool({.threads = 1});
  constexpr uint32_t kSpan = 2 * kBlockTokens;
  for (const uint32_t tokens : {1u, 512u, 700u, 1300u}) {
    PlainProblem problem(Descriptor(64, 1, 3), tokens, 1);
    problem.FillNormal();
    const AttentionDescriptor& d = problem.d;
    const std::vector<uint16_t> whole = Bits(problem.Attend(reference()));
    for (const AttentionKernel* kernel : all_kernels()) {
      std::vector<PartialStack> stacks(d.query_heads, PartialStack(d.head_dim));
      const auto scratch = kernel->MakeScratch(d, 1, tokens, 1);
      for (uint32_t first = 0; first < tokens; first += kSpan) {
        const Extent part = {.first_slot = first, .tokens = std::min(kSpan, tokens - first)};
        std::vector<float> partial(d.query_heads * PartialWidth(d));
        const AttentionItem item = {.extents = {&part, 1},
                                    .first_position = part.tokens - 1,
                                    .q = problem.q.data(),
                                    .q_stride = d.q_width(),
                                    .partial = partial.data()};
        kernel->Attend(d, problem.kv(), {&item, 1}, *scratch, pool);
        for (uint32_t head = 0; head < d.query_heads; ++head) {
          const float* own = partial.data() + head * PartialWidth(d);
          stacks[head].Push(first / kBlockTokens, part.tokens == kSpan ? 2 : 1, own,
                            own[d.head_dim]);
        }
      }
      std::vector<uint16_t> merged;
      std::vector<float> folded(d.head_dim);
      for (PartialStack& stack : stacks) {
        float lse;
        stack.Fold(folded.data(), &lse);
        for (const float x : folded) {
          merged.push_back(canonical::RoundOutput(x).bits);
        }
      }
      ASSERT_EQ(merged, whole) << kernel->name() << " " << tokens << " tokens";
    }
  }
}

// Values that are no numbers reach the rows that see them, and no others: with few rows, and with
// so many that they pack.
TEST_P(Bf16AttentionTest, InfinityAndNanOfALaterTokenDoNotReachEarlierRows) {
  constexpr uint32_t kBad = 30;  // Pairs with a token that earlier rows see.
  for (const uint32_t bad : {kBad, kBad + 1}) {
    PlainProblem problem(Descriptor(32, 1, 2), 40, 40);
    problem.FillNormal();
    problem.v[bad * 32] = ToBFloat16(std::numeric_limits<float>::infinity());
    problem.v[bad * 32 + 1] = ToBFloat16(NAN);
    problem.k[OffsetInTiles(39, 3, 32)] = ToBFloat16(NAN);
    const std::vector<BFloat16> want = problem.Attend(reference());
    EXPECT_TRUE(std::isfinite(ToFloat(want[(bad - 1) * 64])));
    EXPECT_TRUE(std::isinf(ToFloat(want[bad * 64])));
    EXPECT_EQ(want[bad * 64 + 1].bits, 0x7fc0u);
    EXPECT_TRUE(std::isfinite(ToFloat(want[38 * 64 + 2])));
    EXPECT_EQ(want[39 * 64 + 2].bits, 0x7fc0u);
    for (const AttentionKernel* kernel : variants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel)), Bits(want)) << kernel->name();
    }
  }
}

// Keys so large that scores overflow, products that are subnormal, values that are.
TEST_P(Bf16AttentionTest, ExtremeNumbersHaveTheReferenceBits) {
  for (const uint32_t group : {3, 12}) {
    for (const float scale_of_k : {1e-38f, 1e-20f, 1.0f, 1e18f, 1e37f}) {
      PlainProblem problem(Descriptor(48, 1, group), 270, 1);
      std::mt19937 random(6);
      std::normal_distribution<float> normal;
      for (size_t i = 0; i < problem.k.size(); ++i) {
        problem.k[i] = ToBFloat16(normal(random) * scale_of_k);
        problem.v[i] = ToBFloat16(normal(random) * (i % 2 == 0 ? 1e-38f : 3e-36f));
      }
      for (BFloat16& x : problem.q) {
        x = ToBFloat16(normal(random) * 100.0f);
      }
      const std::vector<uint16_t> want = Bits(problem.Attend(reference()));
      for (const AttentionKernel* kernel : variants()) {
        ASSERT_EQ(Bits(problem.Attend(*kernel)), want) << kernel->name() << " " << scale_of_k;
      }
    }
  }
}

// A sum that is flushed to -0 is +0 in the output, next to tokens that the row does not see and
// without them.
TEST_P(Bf16AttentionTest, SumsThatAreFlushedHaveOneZero) {
  constexpr uint32_t kDim = 32;
  for (const uint32_t queries : {1, 8}) {
    PlainProblem problem(Descriptor(kDim, 1, 2), 2 + queries, queries);
    for (uint32_t d = 0; d < kDim; ++d) {
      problem.v[d] = ToBFloat16(0x1p-126f);
      problem.v[2 * kDim + d] = ToBFloat16(-0x1.8p-126f);
    }
    const std::vector<uint16_t> want = Bits(problem.Attend(reference()));
    EXPECT_EQ(want[0], 0) << queries;
    for (const AttentionKernel* kernel : variants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel)), want) << kernel->name() << " " << queries;
    }
  }
}

// With values of deviation 1 and rows that average, what is left is the weights' rounding, and that
// of the output.
TEST_P(Bf16AttentionTest, AgreesWithDoubleWithinTheRoundingOfItsWeights) {
  ThreadPool pool({.threads = 1});
  const AttentionCase cases[] = {
      {Descriptor(64, 3, 3), 700, 3, 50},           {Descriptor(128, 1, 4), 1025, 2, 300},
      {Descriptor(80, 2, 2), 300, 40, 7},           {Descriptor(256, 1, 2, 100), 600, 2, 64},
      {Descriptor(64, 1, 2, 0, 30.0f), 513, 2, 64}, {WithSinks(Descriptor(64, 2, 4)), 300, 3, 64}};
  for (const AttentionCase& c : cases) {
    const AttentionProblem problem(c);
    const std::vector<BFloat16> out = problem.Attend(reference(), pool);
    const std::vector<double> exact = problem.Exact();
    ASSERT_EQ(out.size(), exact.size());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(double{ToFloat(out[i])}, exact[i], std::ldexp(1 + std::fabs(exact[i]), -8)) << i;
    }
  }
}

// Equal values come out as they are, however weights are rounded.
TEST_P(Bf16AttentionTest, WeightsThatAreRoundedAreStillAMean) {
  PlainProblem problem(Descriptor(32, 1, 1), 600, 1);
  problem.FillNormal();
  std::fill(problem.v.begin(), problem.v.end(), ToBFloat16(1.25f));
  for (const BFloat16 x : problem.Attend(reference())) {
    EXPECT_EQ(ToFloat(x), 1.25f);
  }
}

TEST_P(Bf16AttentionDeathTest, DoesNotTellItsWeights) {
  const AttentionDescriptor d = Descriptor(32, 1, 1);
  ThreadPool pool({.threads = 1});
  std::vector<float> memory(AttentionWeights::FloatsOf(1, 16));
  const AttentionWeights weights = AttentionWeights::Over(memory.data(), 1, 1, 16);
  const AttentionItem item = {.weights = &weights};
  for (const AttentionKernel* kernel : all_kernels()) {
    const auto scratch = kernel->MakeScratch(d, 1, 16, 1);
    EXPECT_DEATH(kernel->Attend(d, KvView{}, {&item, 1}, *scratch, pool), "weights");
  }
}

}  // namespace
}  // namespace lamina::kernels
