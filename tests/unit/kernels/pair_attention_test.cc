// SPDX-License-Identifier: Apache-2.0
//
// Attention in pairs of bf16: the step and the weights, and what a processor takes. The kernels are
// in bf16_attention_test.cc.
#include "kernels/pair_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_probe.h"
#include "kernels/cpu/pair_products.h"
#include "kernels/pair_math.h"
#include "tests/unit/kernels/instruction_sets.h"

namespace lamina::kernels {
namespace {

TEST(PairAttentionTest, SomethingRunsBesidesTheReference) {
  for (const AttentionKernel* kernel : CpuPairAttentionVariants()) {
    GTEST_LOG_(INFO) << kernel->name();
    EXPECT_TRUE(ProbeAttention(*kernel, ReferencePairAttention()).ok());
  }
  // The emulation, and where the processor has the instruction it too.
  EXPECT_GE(CpuPairAttentionVariants().size(), (CountTargetsHere(kFmaTargets) > 0 ? 1u : 0u) +
                                                   (ProcessorHas("avx512_bf16") ? 1u : 0u));
  EXPECT_EQ(CpuPairAttentionVariants().empty(), CpuAttentionVariants().empty());
  EXPECT_EQ(HasPairAttention(), CpuPairAttentionVariants().size() == 2);
  EXPECT_EQ(HasFastPairAttention(), HasPairAttention() && !cpu::PairProductsAreSlow());
}

TEST(PairStepTest, AddsTheSecondProductFirstAndRoundsEach) {
  const auto pair = [](float first, float second) {
    return pairs::MakePair(ToBFloat16(first), ToBFloat16(second));
  };
  EXPECT_EQ(pairs::Step(1.0f, pair(2, 3), pair(5, 7)), 32.0f);
  // 2^24 + 1 rounds to 2^24, and again; 2^24 + 2 would not.
  EXPECT_EQ(pairs::Step(0x1p24f, pair(1, 1), pair(1, 1)), 0x1p24f);
  EXPECT_EQ(pairs::Step(1.0f, pair(-0x1p24f, 0x1p24f), pair(1, 1)), 0.0f);
  EXPECT_EQ(pairs::Step(1.0f, pair(0x1p24f, -0x1p24f), pair(1, 1)), 1.0f);
}

// As measured on a processor: subnormals are zeros, on the way in and out, and what is tiny once it
// has been rounded to 24 bits counts as one.
TEST(PairStepTest, FlushesSubnormals) {
  const auto pair = [](float second) { return pairs::MakePair({}, ToBFloat16(second)); };
  EXPECT_EQ(pairs::Step(0x1p-127f, 0, 0), 0.0f);
  EXPECT_EQ(pairs::Step(0.0f, pair(0x1p-127f), pair(0x1p100f)), 0.0f);
  EXPECT_EQ(pairs::Step(0.0f, pair(0x1p-64f), pair(0x1p-63f)), 0.0f);
  EXPECT_EQ(pairs::Step(0x1p-126f, pair(-0x1p-60f), pair(0x1p-91f)), 0x1p-126f);
  EXPECT_EQ(pairs::Step(0x1p-126f, pair(-0x1.4p-60f), pair(0x1p-91f)), 0.0f);
  EXPECT_EQ(pairs::Step(0x1p-126f, pair(-0x1p-60f), pair(0x1p-90f)), 0.0f);
}

TEST(PairWeightTest, IsAPowerOfTwoInSixteenBits) {
  EXPECT_EQ(ToFloat(pairs::Weight(3.0f, 3.0f, 0.2f)), 1.0f);
  for (float s = -1.0f; s > -150.0f; s *= 1.01f) {
    const float exact = std::exp2(s);
    const float weight = ToFloat(pairs::Weight(s, 0.0f, 1.0f));
    if (exact < 0x1p-126f) {
      EXPECT_EQ(weight, 0.0f);
    } else {
      EXPECT_NEAR(weight / exact, 1.0f, 0x1.01p-8f) << s;
    }
  }
  EXPECT_EQ(ToFloat(pairs::Weight(-std::numeric_limits<float>::infinity(), 0.0f, 1.0f)), 0.0f);
  EXPECT_TRUE(std::isnan(ToFloat(pairs::Weight(NAN, 0.0f, 1.0f))));
}

}  // namespace
}  // namespace lamina::kernels
