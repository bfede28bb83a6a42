// SPDX-License-Identifier: Apache-2.0
//
// What softmax gives each token, of every kernel: against double loops, and without a change of the
// outputs.
#include "kernels/attention_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/attention_internal.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

std::vector<AttentionCase> Cases() {
  constexpr uint32_t kTokens[] = {1, 16, 17, 256, 257, 600};
  std::vector<AttentionCase> cases;
  uint32_t seed = 1;
  for (const uint32_t head_dim : {16, 64, 80}) {
    for (const uint32_t group : {1, 3, 8}) {
      for (const uint32_t tokens : kTokens) {
        ++seed;
        const float cap = seed % 5 == 0 ? 3.0f : 0.0f;
        cases.push_back({.descriptor = Descriptor(head_dim, 1 + seed % 3, group, 0, cap),
                         .tokens = tokens,
                         // More than a tile has at times.
                         .queries = 1 + seed * 13 % std::min(tokens, 26u),
                         .run_max = seed % 2 == 0 ? 1u : 64u,
                         .seed = seed});
      }
    }
  }
  return cases;
}

TEST(AttentionWeightsTest, AreThoseOfSoftmaxSummedOverHeads) {
  ThreadPool pool({.threads = 2});
  std::vector<const AttentionKernel*> kernels = {&ReferenceAttention()};
  kernels.insert(kernels.end(), CpuAttentionVariants().begin(), CpuAttentionVariants().end());
  for (const AttentionCase& c : Cases()) {
    const AttentionProblem problem(c);
    const std::vector<double> want = problem.ExactWeights();
    const std::vector<uint16_t> out = Bits(problem.Attend(ReferenceAttention(), pool));
    for (const AttentionKernel* kernel : kernels) {
      std::vector<float> summed;
      EXPECT_EQ(Bits(problem.Attend(*kernel, pool, summed)), out) << kernel->name();
      ASSERT_EQ(summed.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        // Scores of some 20 are off by a few of their last bits, 2e-6 each, and so is exp() of
        // them.
        ASSERT_NEAR(summed[i], want[i], 1e-5 * c.descriptor.query_heads)
            << kernel->name() << " token " << i << " of " << c.tokens << " queries " << c.queries;
      }
    }
  }
}

// A sharp peak in one block leaves nothing to the tokens of others.
TEST(AttentionWeightsTest, BlocksShareByTheirPeaks) {
  std::vector<float> memory(AttentionWeights::FloatsOf(1, 2 * kBlockTokens));
  const AttentionWeights weights = AttentionWeights::Over(memory.data(), 1, 1, 2 * kBlockTokens);
  ASSERT_EQ(weights.blocks(), 2u);
  std::fill_n(weights.weights, 2 * kBlockTokens, 1.0f);
  weights.peaks[0] = 0.0f;
  weights.peaks[1] = 200.0f;
  weights.sums[0] = weights.sums[1] = kBlockTokens;
  std::vector<float> summed(2 * kBlockTokens, 1.0f);
  SumWeights(weights, 0, 2 * kBlockTokens, summed.data());
  EXPECT_EQ(summed[0], 1.0f);
  EXPECT_FLOAT_EQ(summed[kBlockTokens], 1.0f + 1.0f / kBlockTokens);
}

}  // namespace
}  // namespace lamina::kernels
