// SPDX-License-Identifier: Apache-2.0
//
// Every fast kernel that this processor can run against the reference, bit by bit.
#include <gtest/gtest.h>

#include "kernels/cpu/attention_internal.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

// Head sizes x groups, with odd lengths, fragments, windows and caps mixed in by the seed.
std::vector<AttentionCase> ShapeCases() {
  constexpr uint32_t kTokens[] = {1, 15, 16, 17, 255, 256, 257, 300, 511, 513, 700};
  constexpr uint32_t kRuns[] = {1, 7, 64, 1024};
  std::vector<AttentionCase> cases;
  uint32_t seed = 1;
  for (uint32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (uint32_t group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
      ++seed;
      const uint32_t tokens = kTokens[seed * 7 % 11];
      const uint32_t window = seed % 3 == 0 ? 1 + seed * 37 % 400 : 0;
      const float cap = seed % 5 == 0 ? 3.0f : 0.0f;
      cases.push_back({.descriptor = Descriptor(head_dim, 1 + seed % 2, group, window, cap),
                       .tokens = tokens,
                       .queries = 1 + seed % std::min(tokens, 4u),
                       .run_max = kRuns[seed % 4],
                       .seed = seed});
    }
  }
  return cases;
}

TEST(AttentionVariantsTest, ThereIsAFastKernelWhereThereIsFusedMultiplyAdd) {
  for (const AttentionKernel* kernel : CpuAttentionVariants()) {
    GTEST_LOG_(INFO) << kernel->name();
  }
  EXPECT_EQ(CpuAttentionVariants().empty(), &CpuAttention() == &ReferenceAttention());
}

TEST(AttentionVariantsTest, EveryShapeHasTheReferenceBits) {
  ThreadPool pool({.threads = 1});
  for (const AttentionCase& c : ShapeCases()) {
    const AttentionProblem problem(c);
    const std::vector<uint16_t> want = Bits(problem.Attend(ReferenceAttention(), pool));
    for (const AttentionKernel* kernel : CpuAttentionVariants()) {
      ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want)
          << kernel->name() << " head_dim " << c.descriptor.head_dim << " group "
          << c.descriptor.group() << " window " << c.descriptor.window << " cap "
          << c.descriptor.soft_cap << " tokens " << c.tokens << " queries " << c.queries
          << " run_max " << c.run_max;
    }
  }
}

}  // namespace
}  // namespace lamina::kernels
