// SPDX-License-Identifier: Apache-2.0
//
// Every fast kernel that this processor can run against the reference, bit by bit.
#include <gtest/gtest.h>

#include <memory>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_probe.h"
#include "tests/unit/kernels/attention_fixture.h"
#include "tests/unit/kernels/instruction_sets.h"

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
      const AttentionDescriptor plain = Descriptor(head_dim, 1 + seed % 2, group, window, cap);
      cases.push_back({.descriptor = seed % 4 == 0 ? WithSinks(plain) : plain,
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
  EXPECT_GE(CpuAttentionVariants().size(), CountTargetsHere(kFmaTargets));
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
          << c.descriptor.soft_cap << " sinks " << c.descriptor.sinks.size() << " tokens "
          << c.tokens << " queries " << c.queries << " run_max " << c.run_max;
    }
  }
}

// What attends right but for one bit of the last output, where a KV head has so many query heads.
class WrongKernel final : public AttentionKernel {
 public:
  explicit WrongKernel(uint32_t group) : group_(group) {}

  const char* name() const override { return "wrong"; }
  std::unique_ptr<AttentionScratch> MakeScratch(const AttentionDescriptor& descriptor,
                                                uint32_t query_tokens_max,
                                                uint32_t context_tokens_max,
                                                size_t threads) const override {
    return ReferenceAttention().MakeScratch(descriptor, query_tokens_max, context_tokens_max,
                                            threads);
  }
  void Attend(const AttentionDescriptor& descriptor, const KvView& kv,
              absl::Span<const AttentionItem> items, AttentionScratch& scratch,
              ThreadPool& pool) const override {
    ReferenceAttention().Attend(descriptor, kv, items, scratch, pool);
    if (descriptor.group() == group_) {
      items.back().out[descriptor.head_dim - 1].bits ^= 1;
    }
  }

 private:
  const uint32_t group_;
};

TEST(AttentionProbeTest, TakesTheFirstKernelThatHasTheReferenceBits) {
  const WrongKernel wrong(/*group=*/3);
  const AttentionKernel& reference = ReferenceAttention();

  const absl::Status probed = ProbeAttention(wrong);
  EXPECT_EQ(probed.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(probed.message(),
            "wrong: other bits than the reference, head size 64, 3 query heads a KV head, "
            "276 tokens");
  EXPECT_TRUE(ProbeAttention(reference).ok());
  for (const AttentionKernel* kernel : CpuAttentionVariants()) {
    EXPECT_TRUE(ProbeAttention(*kernel).ok()) << ProbeAttention(*kernel);
  }
  EXPECT_EQ(&FirstThatPasses({&wrong, &reference}), &reference);
  EXPECT_EQ(&FirstThatPasses({&wrong}), &reference);
}

}  // namespace
}  // namespace lamina::kernels
