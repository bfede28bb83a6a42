// SPDX-License-Identifier: Apache-2.0
//
// The reference against plain double loops. See docs/design/attention_numerics.md for the bound.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

class AttentionNumericsTest : public testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionNumericsTest, AgreesWithDoubleWithinOneRoundingToBFloat16) {
  const AttentionProblem problem(GetParam());
  ThreadPool pool({.threads = 1});
  const std::vector<BFloat16> out = problem.Attend(ReferenceAttention(), pool);
  const std::vector<double> exact = problem.Exact();

  ASSERT_EQ(out.size(), exact.size());
  for (size_t i = 0; i < out.size(); ++i) {
    // Half an ulp of bf16 is at most 2^-8 of the value; fp32 adds a few 1e-6 of the largest |v|
    // (about 4).
    const double bound = std::ldexp(std::fabs(exact[i]), -8) + 1e-5;
    ASSERT_NEAR(double{ToFloat(out[i])}, exact[i], bound) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionNumericsTest,
    testing::Values(AttentionCase{Descriptor(64, 3, 3), 700, 3, 50},
                    AttentionCase{Descriptor(128, 1, 4), 1025, 2, 300},
                    AttentionCase{Descriptor(16, 2, 1), 1, 1, 4},
                    AttentionCase{Descriptor(80, 2, 2), 300, 40, 7},
                    AttentionCase{Descriptor(256, 1, 2, 100), 600, 2, 64},
                    AttentionCase{Descriptor(64, 1, 2, 0, 30.0f), 513, 2, 64},
                    AttentionCase{Descriptor(112, 1, 1, 300, 2.0f), 1100, 2, 64},
                    AttentionCase{WithSinks(Descriptor(64, 2, 4)), 300, 3, 64},
                    AttentionCase{WithSinks(Descriptor(32, 1, 5, 128)), 700, 2, 64}));

}  // namespace
}  // namespace lamina::kernels
