// SPDX-License-Identifier: Apache-2.0
#include "policy/fetch_heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/kv_form.h"
#include "common/philox.h"
#include "plan/fetch_pieces.h"

namespace lamina::policy {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

HeadsProfile Draw(Prng& random) {
  return {.weights = random.Below(100'000),
          .kv_heads = static_cast<uint32_t>(1 + random.Below(40)),
          .head_token = 1 + random.Below(50),
          .chunk_token = 1 + random.Below(300),
          .buffers = static_cast<uint32_t>(1 + random.Below(6))};
}

// Table 10 of HeadInfer, whose GB are 2^30 bytes: Llama-3-8B at 1M tokens.
TEST(FetchHeadsTest, TheFormulaGivesThePapersTable10) {
  const uint64_t token = ActivationBytes({.row = 4096, .hidden = 14336});
  EXPECT_EQ(token, 64u << 10);
  const uint64_t weights = 15'442 * kMiB;  // 15.08 GB
  const HeadsProfile llama{
      .weights = weights, .kv_heads = 8, .head_token = 2 * 128 * 2, .chunk_token = token};
  const HeadsMemory one = MemoryOf(llama, {.tokens = kMiB, .group = 1, .chunk_tokens = 10 * 1024});
  EXPECT_EQ(one, (HeadsMemory{.weights = weights, .kv = 1024 * kMiB, .activations = 640 * kMiB}));
  EXPECT_EQ(one.total(), 17'106 * kMiB);  // 16.7 GB
  const HeadsMemory layer = MemoryOf(llama, {.tokens = kMiB, .group = 8, .chunk_tokens = kMiB});
  EXPECT_EQ(layer.kv, 8192 * kMiB);
  EXPECT_EQ(layer.activations, 65'536 * kMiB);
}

TEST(FetchHeadsTest, TheGroupIsTheLargestThatFits) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Prng random(seed);
    const HeadsProfile profile = Draw(random);
    HeadsUse use{.tokens = 1 + random.Below(1000), .chunk_tokens = random.Below(100)};
    const uint64_t budget = random.Below(1'000'000);
    uint32_t largest = 0;
    for (use.group = 1; use.group <= profile.kv_heads; ++use.group) {
      largest = MemoryOf(profile, use).total() <= budget ? use.group : largest;
    }
    EXPECT_EQ(LargestGroup(profile, budget, use), largest) << "seed " << seed;
  }
}

TEST(FetchHeadsTest, TheChunkIsTheLargestPowerOfTwoThatFits) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Prng random(seed);
    const HeadsProfile profile = Draw(random);
    HeadsUse use{.tokens = random.Below(1000), .group = static_cast<uint32_t>(random.Below(9))};
    const uint64_t budget = random.Below(1'000'000);
    uint64_t largest = 0;
    for (use.chunk_tokens = 1; use.chunk_tokens <= budget; use.chunk_tokens *= 2) {
      largest = MemoryOf(profile, use).total() <= budget ? use.chunk_tokens : largest;
    }
    EXPECT_EQ(LargestChunk(profile, budget, use), largest) << "seed " << seed;
  }
}

TEST(FetchHeadsTest, NothingFitsBehindWeightsThatTakeAll) {
  const HeadsProfile profile{.weights = 100, .kv_heads = 2, .head_token = 1, .chunk_token = 1};
  for (const uint64_t budget : {uint64_t{0}, uint64_t{99}, uint64_t{100}}) {
    EXPECT_EQ(LargestGroup(profile, budget, {.tokens = 1}), 0u);
    EXPECT_EQ(LargestChunk(profile, budget, {.tokens = 0}), 0u);
  }
}

// Windows are the memory then, two of them, and slots are whole tiles.
TEST(FetchHeadsTest, PiecesHaveTheGroupOfTheRule) {
  uint32_t fit = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Prng random(seed);
    const auto kv_heads = static_cast<uint32_t>(1 + random.Below(12));
    const AttentionDescriptor layer{
        .query_heads = 2 * kv_heads,
        .kv_heads = kv_heads,
        .head_dim = static_cast<uint32_t>(32 << random.Below(3)),
    };
    std::vector<plan::FetchRun> runs(1 + random.Below(3));
    uint64_t slots = 0;
    uint64_t longest = 0;
    for (plan::FetchRun& run : runs) {
      run = {.before = static_cast<uint32_t>(random.Below(700)),
             .tokens = static_cast<uint32_t>(1 + random.Below(20))};
      slots += run.slots();
      longest = std::max<uint64_t>(longest, run.slots());
    }
    const HeadsProfile profile{.kv_heads = kv_heads,
                               .head_token = KvHeadBytes(layer.head_dim, KvForm::kBF16)};
    const uint64_t window =
        longest * profile.head_token + random.Below(2 * slots * kv_heads * profile.head_token);
    std::vector<plan::FetchPiece> pieces;
    plan::PiecesOf(layer, runs, {.window_bytes = window}, pieces);

    const uint32_t group = LargestGroup(profile, 2 * window, {.tokens = slots});

    ASSERT_FALSE(pieces.empty());
    EXPECT_EQ(pieces[0].heads.count, std::max(group, 1u)) << "seed " << seed;
    // Where one head of all runs does not fit, it comes by runs.
    EXPECT_EQ(pieces[0].runs_end == runs.size(), group > 0) << "seed " << seed;
    fit += group > 0 ? 1 : 0;
  }
  EXPECT_GT(fit, 1000u);
  EXPECT_LT(fit, 2000u);
}

}  // namespace
}  // namespace lamina::policy
