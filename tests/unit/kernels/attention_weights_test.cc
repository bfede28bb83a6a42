// SPDX-License-Identifier: Apache-2.0
//
// What softmax gives each token, of every kernel: against double loops, and without a change of the
// outputs.
#include "kernels/attention_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_kept.h"
#include "kernels/cpu/attention_tasks.h"
#include "kernels/cpu/weight_sums.h"
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

std::vector<const AttentionKernel*> Kernels() {
  std::vector<const AttentionKernel*> kernels = {&ReferenceAttention()};
  kernels.insert(kernels.end(), CpuAttentionVariants().begin(), CpuAttentionVariants().end());
  return kernels;
}

// What a query has of `heads` heads over `tokens` tokens, in `memory`.
AttentionWeights DrawWeights(uint32_t heads, uint32_t tokens, std::mt19937& random,
                             std::vector<float>& memory) {
  std::uniform_real_distribution<float> uniform;
  memory.resize(AttentionWeights::FloatsOf(heads, tokens));
  std::generate(memory.begin(), memory.end(), [&] { return uniform(random); });
  const AttentionWeights weights = AttentionWeights::Over(memory.data(), 1, heads, tokens);
  for (size_t i = 0; i < heads * weights.blocks(); ++i) {
    weights.peaks[i] *= 20.0f;
    weights.sums[i] += 1.0f;
  }
  return weights;
}

// Copies what the query has of a head to a row of a tile.
void CopyHead(const AttentionWeights& from, uint32_t head, uint32_t row,
              const internal::KeptTile& to) {
  for (uint32_t i = 0; i < from.tokens_max; ++i) {
    to.weights[i / kBlockTokens * to.block_floats() + row * internal::kScoreStride +
               i % kBlockTokens] = from.weights[size_t{head} * from.tokens_max + i];
  }
  for (size_t block = 0; block < from.blocks(); ++block) {
    to.peaks[block * to.rows + row] = from.peaks[head * from.blocks() + block];
    to.sums[block * to.rows + row] = from.sums[head * from.blocks() + block];
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(AttentionWeightsTest, AreThoseOfSoftmaxSummedOverHeads) {
  ThreadPool pool({.threads = 2});
  const std::vector<const AttentionKernel*> kernels = Kernels();
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

// A KV head that is done before the one that is next waits for it, whichever thread has that one.
TEST(AttentionWeightsTest, KernelsAddThemToTheBitAsPlainLoopsDo) {
  struct Heads {
    uint32_t kv;
    uint32_t group;
  };
  constexpr Heads kHeads[] = {{1, 1}, {2, 1}, {1, 3}, {4, 1}, {5, 1}, {2, 3},
                              {7, 1}, {2, 4}, {1, 9}, {3, 5}, {1, 8}};
  constexpr uint32_t kTokens[] = {1, 15, 17, 64, 255, 256, 257, 512, 600, 1000, 2100};
  uint32_t seed = 0;
  for (const size_t threads : {1, 4}) {
    ThreadPool pool({.threads = threads});
    for (const Heads& heads : kHeads) {
      for (const uint32_t tokens : kTokens) {
        ++seed;
        const AttentionCase c{.descriptor = Descriptor(16, heads.kv, heads.group),
                              .tokens = tokens,
                              .queries = 1 + seed * 13 % std::min(tokens, 20u),
                              .run_max = 64,
                              .seed = seed};
        const AttentionProblem problem(c);
        for (const AttentionKernel* kernel : Kernels()) {
          std::vector<float> want;
          const std::vector<uint16_t> out = Bits(problem.Attend(*kernel, pool, want));
          std::vector<float> got(want.size());
          EXPECT_EQ(Bits(problem.AttendSummed(*kernel, pool, got)), out) << kernel->name();
          EXPECT_TRUE(SameBits(got, want))
              << kernel->name() << ", " << threads << " threads, " << heads.kv << " KV heads of "
              << heads.group << ", " << tokens << " tokens";
        }
      }
    }
  }
}

// Tiles have several sizes, items of a call share its memory, and calls with one scratch do.
TEST(AttentionWeightsTest, TilesUseTheMemoryOfOthersAgain) {
  constexpr uint32_t kQueries = 40;
  constexpr uint32_t kCuts[] = {0, 1, 1, 17, kQueries};  // One item has no queries.
  const AttentionDescriptor d = Descriptor(16, 5, 3);
  for (const size_t threads : {1, 4}) {
    ThreadPool pool({.threads = threads});
    for (const AttentionKernel* kernel : Kernels()) {
      const auto scratch = kernel->MakeScratch(d, kQueries, 1000, pool.threads());
      for (const uint32_t tokens : {600u, 90u, 1000u, 999u}) {
        const AttentionCase c{
            .descriptor = d, .tokens = tokens, .queries = kQueries, .run_max = 64, .seed = tokens};
        const AttentionProblem problem(c);
        std::vector<float> want;
        const std::vector<uint16_t> out = Bits(problem.Attend(*kernel, pool, want));
        std::vector<float> got(want.size());
        std::vector<BFloat16> attended(kQueries * d.q_width());
        std::vector<AttentionWeights> weights(std::size(kCuts) - 1);
        std::vector<AttentionItem> items;
        for (size_t i = 0; i < weights.size(); ++i) {
          const uint32_t first = kCuts[i];
          weights[i].summed = got.data() + size_t{first} * tokens;
          weights[i].summed_stride = tokens;
          items.push_back(
              problem.Item(first, kCuts[i + 1] - first, attended.data() + first * d.q_width()));
          items.back().weights = &weights[i];
        }

        kernel->Attend(d, problem.kv(), items, *scratch, pool);

        EXPECT_EQ(Bits(attended), out) << kernel->name();
        EXPECT_TRUE(SameBits(got, want))
            << kernel->name() << ", " << threads << " threads, " << tokens << " tokens";
      }
    }
  }
}

// Many heads of short rows end at about the same time; few of a long row are cut into runs, which
// keep what they have in one place.
TEST(AttentionWeightsTest, WorkersThatEndTogetherAddEachHeadOnceInOrder) {
  struct Shape {
    uint32_t kv_heads;
    uint32_t group;
    uint32_t tokens;
    uint32_t rows;
  };
  constexpr Shape kShapes[] = {{24, 1, 290, 12}, {3, 8, 40, 30}, {2, 1, 6000, 1}, {1, 3, 5000, 2}};
  constexpr int kCalls = 20;
  ThreadPool pool({.threads = 8});
  for (const Shape& shape : kShapes) {
    const AttentionDescriptor d = Descriptor(64, shape.kv_heads, shape.group);
    const AttentionCase c{
        .descriptor = d, .tokens = shape.tokens, .queries = shape.rows, .run_max = 64};
    const AttentionProblem problem(c);
    for (const AttentionKernel* kernel : CpuAttentionVariants()) {
      std::vector<float> want;
      const std::vector<uint16_t> out = Bits(problem.Attend(*kernel, pool, want));
      const auto scratch = kernel->MakeScratch(d, 1, shape.tokens, pool.threads());
      for (int call = 0; call < kCalls; ++call) {
        std::vector<float> got(want.size());
        std::vector<BFloat16> attended(shape.rows * d.q_width());
        std::vector<AttentionWeights> weights(shape.rows);
        std::vector<AttentionItem> items;
        for (uint32_t row = 0; row < shape.rows; ++row) {
          weights[row].summed = got.data() + size_t{row} * shape.tokens;
          items.push_back(problem.Item(row, 1, attended.data() + row * d.q_width()));
          items.back().weights = &weights[row];
        }

        kernel->Attend(d, problem.kv(), items, *scratch, pool);

        ASSERT_EQ(Bits(attended), out) << kernel->name() << ", call " << call;
        ASSERT_TRUE(SameBits(got, want))
            << kernel->name() << ", " << shape.kv_heads << " KV heads, call " << call;
      }
    }
  }
}

// KV heads of a query end in every order, each kept by one worker and ended by the other.
TEST(AttentionWeightsTest, HeadsAreAddedInTheirOrderWhicheverEndsFirst) {
  constexpr uint32_t kKvHeads = 4;
  constexpr uint32_t kTokens = 300;
  const AttentionDescriptor d = Descriptor(16, kKvHeads, 1);
  std::mt19937 random(1);
  std::vector<float> memory;
  const AttentionWeights weights = DrawWeights(kKvHeads, kTokens, random, memory);
  std::vector<float> want(kTokens);
  SumWeights(weights, 0, kTokens, want.data());
  internal::WeightSums sums(kTokens, 2);
  std::set<const float*> used;
  std::vector<uint32_t> order(kKvHeads);
  std::iota(order.begin(), order.end(), 0u);
  do {
    std::vector<float> got(kTokens);
    const AttentionWeights asked = {.summed = got.data()};
    const AttentionItem item = {.first_position = kTokens - 1, .weights = &asked};
    const internal::Tile tile = {
        .group = 1, .first_position = kTokens - 1, .query_tokens = 1, .weights = &asked};
    sums.Begin(d, {&item, 1}, 64);
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      const internal::AttentionTask task = {.kv_head = head, .query_tokens = 1};
      internal::Tile first_run = tile;
      internal::Tile second_run = tile;
      const internal::KeptTile* const kept = sums.Keep(task, head % 2, first_run);
      ASSERT_NE(kept, nullptr);
      EXPECT_EQ(sums.Keep(task, 1 - head % 2, second_run), kept);
      EXPECT_EQ(first_run.weights, nullptr);
      EXPECT_EQ(second_run.weights, nullptr);
      CopyHead(weights, head, 0, *kept);
      used.insert(kept->weights);
    }

    for (const uint32_t head : order) {
      sums.End({.kv_head = head, .query_tokens = 1}, tile, 1 - head % 2);
    }

    ASSERT_TRUE(SameBits(got, want)) << order[0] << order[1] << order[2] << order[3];
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(used.size(), kKvHeads) << "calls use the memory of earlier ones again";
}

TEST(AttentionWeightsTest, VectorsAddHeadsToTheBitAsPlainLoopsDo) {
  constexpr uint32_t kHeadsMax = 9;
  constexpr uint32_t kTokensMax = 1000;
  std::mt19937 random(1);
  std::vector<float> memory;
  AttentionWeights weights = DrawWeights(kHeadsMax, kTokensMax, random, memory);
  std::uniform_real_distribution<float> uniform;
  std::vector<float> start(kTokensMax);
  std::generate(start.begin(), start.end(), [&] { return uniform(random); });
  std::vector<float> shares(internal::kHeadsAdded * weights.blocks());
  // Rows of a tile before those that are added.
  constexpr uint32_t kFirstRow = 3;
  constexpr uint32_t kRows = kFirstRow + kHeadsMax;
  std::vector<float> tile(internal::KeptTile::FloatsOf(kRows, weights.blocks()), NAN);
  const auto kept = internal::KeptTile::Over(tile.data(), kRows, weights.blocks());
  for (uint32_t head = 0; head < kHeadsMax; ++head) {
    CopyHead(weights, head, kFirstRow + head, kept);
  }
  for (weights.query_heads = 1; weights.query_heads <= kHeadsMax; ++weights.query_heads) {
    for (uint32_t tokens = 1; tokens <= kTokensMax; ++tokens) {
      std::vector<float> want = start;
      SumWeights(weights, 0, tokens, want.data());

      std::vector<float> got = start;
      internal::AddHeads(kept, kFirstRow, weights.query_heads, tokens, shares.data(), got.data());

      ASSERT_TRUE(SameBits(got, want)) << weights.query_heads << " heads, " << tokens << " tokens";
    }
  }
}

TEST(AttentionWeightsTest, NothingIsWrittenBehindWhatAQuerySees) {
  ThreadPool pool({.threads = 2});
  const AttentionCase c{
      .descriptor = Descriptor(16, 2, 2), .tokens = 300, .queries = 60, .run_max = 64};
  const AttentionProblem problem(c);
  const AttentionDescriptor& d = c.descriptor;
  for (const AttentionKernel* kernel : Kernels()) {
    std::vector<float> memory(AttentionWeights::FloatsOf(d.query_heads, c.tokens) * c.queries, NAN);
    const AttentionWeights weights =
        AttentionWeights::Over(memory.data(), c.queries, d.query_heads, c.tokens);
    std::vector<BFloat16> out(c.queries * d.q_width());
    AttentionItem item = problem.Item(0, c.queries, out.data());
    item.weights = &weights;
    const auto scratch = kernel->MakeScratch(d, c.queries, c.tokens, pool.threads());
    kernel->Attend(d, problem.kv(), {&item, 1}, *scratch, pool);

    for (uint32_t query = 0; query < c.queries; ++query) {
      const uint32_t seen = c.tokens - c.queries + query + 1;
      for (uint32_t head = 0; head < d.query_heads; ++head) {
        const float* const row = weights.weights + weights.row(query, head) * c.tokens;
        for (uint32_t i = 0; i < c.tokens; ++i) {
          ASSERT_EQ(std::isnan(row[i]), i >= seen)
              << kernel->name() << " query " << query << " head " << head << " token " << i;
        }
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
