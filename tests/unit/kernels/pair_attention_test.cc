// SPDX-License-Identifier: Apache-2.0
//
// Attention in pairs of bf16: the instruction against its emulation, every kernel of this processor
// against the reference, bit by bit, and the reference against plain double loops.
#include "kernels/pair_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/canonical_math.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_probe.h"
#include "kernels/k_tiles.h"
#include "kernels/pair_math.h"
#include "kernels/partial.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

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

TEST(PairAttentionTest, SomethingRunsBesideTheReference) {
  for (const AttentionKernel* kernel : CpuPairAttentionVariants()) {
    GTEST_LOG_(INFO) << kernel->name();
    EXPECT_TRUE(ProbeAttention(*kernel, ReferencePairAttention()).ok());
  }
  EXPECT_EQ(CpuPairAttentionVariants().empty(), CpuAttentionVariants().empty());
  EXPECT_EQ(HasFastPairAttention(), CpuPairAttentionVariants().size() == 2);
}

TEST(PairAttentionTest, EveryShapeHasTheReferenceBits) {
  ThreadPool pool({.threads = 1});
  for (const AttentionCase& c : ShapeCases()) {
    const AttentionProblem problem(c);
    const std::vector<uint16_t> want = Bits(problem.Attend(ReferencePairAttention(), pool));
    for (const AttentionKernel* kernel : CpuPairAttentionVariants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want)
          << kernel->name() << " head_dim " << c.descriptor.head_dim << " group "
          << c.descriptor.group() << " window " << c.descriptor.window << " cap "
          << c.descriptor.soft_cap << " sinks " << c.descriptor.sinks.size() << " tokens "
          << c.tokens << " queries " << c.queries << " run_max " << c.run_max;
    }
  }
}

}  // namespace
}  // namespace lamina::kernels
