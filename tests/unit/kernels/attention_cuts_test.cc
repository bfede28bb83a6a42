// SPDX-License-Identifier: Apache-2.0
//
// Attention that is cut along runs of blocks for many threads: the tasks are each block once,
// shares are even, and the bits are those of the plain reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/attention_tasks.h"
#include "kernels/pair_attention.h"
#include "kernels/tile_attention.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

using internal::AttentionShares;
using internal::AttentionTask;
using internal::AttentionTasks;
using internal::RunPartials;

// Items of decode rows, or prompt chunks, whose last tokens have these positions.
std::vector<AttentionItem> Items(const std::vector<uint32_t>& lengths, uint32_t query_tokens = 1) {
  std::vector<AttentionItem> items;
  for (const uint32_t length : lengths) {
    items.push_back({.first_position = length - query_tokens, .query_tokens = query_tokens});
  }
  return items;
}

TEST(AttentionTasksTest, HaveEachBlockOfEachTileOnceInOrder) {
  const std::vector<std::vector<AttentionItem>> calls = {
      Items({1}), Items({256, 257, 5000}), Items({40000}), Items({4096, 100, 9000}, 100),
      Items({2000}, 2000)};
  for (const uint32_t window : {0u, 300u, 3000u}) {
    const AttentionDescriptor d = Descriptor(64, 3, 3, window);
    for (const std::vector<AttentionItem>& items : calls) {
      for (const size_t threads : {1, 2, 8, 128}) {
        const AttentionTasks tasks(d, items, 21, threads, RunPartials::TasksMax(threads));
        AttentionTasks::Cursor cursor(tasks, 0);
        size_t at = 0;
        for (const AttentionItem& item : items) {
          for (uint32_t head = 0; head < d.kv_heads; ++head) {
            for (uint32_t token = 0; token < item.query_tokens; token += 21) {
              const uint32_t end = item.first_position + token + 1;
              const uint32_t tokens = std::min(21u, item.query_tokens - token);
              uint32_t block = (window != 0 && end > window ? end - window : 0) / kBlockTokens;
              const uint32_t end_block = (end + tokens - 2) / kBlockTokens + 1;
              while (block < end_block) {
                cursor.Seek(at++);
                ASSERT_TRUE(cursor.valid());
                const AttentionTask& task = cursor.task();
                ASSERT_EQ(task.item, static_cast<size_t>(&item - items.data()));
                ASSERT_EQ(task.kv_head, head);
                ASSERT_EQ(task.first_token, token);
                ASSERT_EQ(task.query_tokens, tokens);
                ASSERT_EQ(task.first_block, block);
                ASSERT_GT(task.end_block, block);
                block = task.end_block;
                ASSERT_EQ(block == end_block, task.piece + 1 == task.pieces);
              }
              ASSERT_EQ(block, end_block);
            }
          }
        }
        ASSERT_EQ(tasks.count(), at);
        cursor.Seek(at);
        ASSERT_FALSE(cursor.valid());
      }
    }
  }
}

TEST(AttentionTasksTest, SharesAreEven) {
  struct Model {
    const char* name;
    AttentionDescriptor d;
  };
  const Model models[] = {{"SmolLM2", Descriptor(64, 3, 3)},
                          {"LLaMA-3-8B", Descriptor(128, 8, 4)},
                          {"LLaMA-3-70B", Descriptor(128, 8, 8)}};
  for (const Model& model : models) {
    for (const uint32_t context : {1024u, 3000u, 4096u, 16384u, 131072u}) {
      for (const size_t rows : {1, 2, 3, 5, 8, 16, 31, 64, 200, 512}) {
        const std::vector<AttentionItem> items = Items(std::vector<uint32_t>(rows, context));
        for (const size_t threads : {2, 8, 16, 32, 128}) {
          const Shares shares = AttentionShares(model.d, items, 64 / model.d.group(), threads);
          const std::string where = std::string(model.name) + " " + std::to_string(rows) +
                                    " rows of " + std::to_string(context) + ", " +
                                    std::to_string(threads) + " threads";
          const double each =
              static_cast<double>(shares.tasks) / static_cast<double>(shares.threads);
          EXPECT_LE(shares.largest_of_mean, each >= 8 ? 1.15 : each >= 2 ? 1.5 : 2.0) << where;
          EXPECT_LE(shares.threads, threads) << where;
          // All blocks are work enough for so many threads.
          const size_t blocks = rows * model.d.kv_heads * (context / kBlockTokens);
          EXPECT_GE(shares.speedup * 2, static_cast<double>(std::min(threads, blocks))) << where;
        }
      }
    }
  }
}

TEST(AttentionTasksTest, SharesOfPromptsAndOfUnequalRowsAreEven) {
  const AttentionDescriptor d = Descriptor(128, 8, 4);
  for (const size_t threads : {2, 8, 32, 128}) {
    for (const std::vector<AttentionItem>& items :
         {Items({131072}, 512), Items({4096}, 512), Items({32768}, 64),
          Items({100000, 300, 1000, 40, 9000, 2000, 257, 12345})}) {
      const Shares shares = AttentionShares(d, items, 16, threads);
      EXPECT_EQ(shares.threads, threads);
      EXPECT_LE(shares.largest_of_mean, 1.15)
          << shares.tasks << " tasks, " << threads << " threads";
    }
  }
}

TEST(AttentionTasksTest, LittleWorkGoesToFewThreadsAndEvenTilesStayWhole) {
  const AttentionDescriptor d = Descriptor(64, 3, 3);
  EXPECT_EQ(AttentionShares(d, Items({100}), 21, 128).threads, 3u);
  EXPECT_EQ(AttentionShares(Descriptor(16, 1, 1), Items({256}), 21, 128).threads, 1u);
  const std::vector<AttentionItem> rows = Items(std::vector<uint32_t>(64, 1024));
  for (const size_t threads : {1, 2, 3, 8, 16}) {
    EXPECT_FALSE(AttentionTasks(d, rows, 21, threads, RunPartials::TasksMax(threads)).cut());
  }
}

struct Arithmetic {
  const AttentionKernel& reference;
  absl::Span<const AttentionKernel* const> kernels;
};

std::vector<Arithmetic> Arithmetics() {
  return {{ReferenceAttention(), CpuAttentionVariants()},
          {ReferencePairAttention(), CpuPairAttentionVariants()},
          {ReferenceTileAttention(), CpuTileAttentionVariants()}};
}

constexpr size_t kThreads[] = {1, 2, 3, 8, 16, 32, 128};

TEST(AttentionCutsTest, HaveTheReferenceBits) {
  ThreadPool one({.threads = 1});
  const AttentionCase cases[] = {{Descriptor(64, 3, 3), 1025, 1, 300},
                                 {Descriptor(64, 1, 3), 5000, 1, 5000},
                                 {WithSinks(Descriptor(128, 1, 8)), 3071, 1, 90},
                                 {Descriptor(64, 2, 1, 700), 2600, 1, 400},
                                 {Descriptor(128, 1, 4, 1000), 2049, 40, 2049},
                                 {Descriptor(80, 1, 2, 0, 4.0f), 1536, 70, 64},
                                 {WithSinks(Descriptor(48, 1, 16, 1500)), 4096, 3, 4096}};
  for (const AttentionCase& c : cases) {
    const AttentionProblem problem(c);
    for (const Arithmetic& arithmetic : Arithmetics()) {
      const std::vector<uint16_t> want = Bits(problem.Attend(arithmetic.reference, one));
      for (const size_t threads : kThreads) {
        ThreadPool pool({.threads = threads});
        for (const AttentionKernel* kernel : arithmetic.kernels) {
          ASSERT_EQ(Bits(problem.Attend(*kernel, pool)), want)
              << kernel->name() << " " << c.tokens << " tokens, " << c.queries << " queries, "
              << threads << " threads";
        }
      }
    }
  }
}

// One scratch for calls that are cut in different ways, or not at all.
TEST(AttentionCutsTest, ScratchServesOneCallAfterTheOther) {
  ThreadPool one({.threads = 1});
  const AttentionDescriptor d = Descriptor(64, 1, 3);
  const AttentionProblem problem({d, 1500, 1490, 350});
  const auto width = size_t{d.q_width()};
  for (const Arithmetic& arithmetic : Arithmetics()) {
    const AttentionKernel& kernel = *arithmetic.kernels.front();
    const std::vector<uint16_t> want = Bits(problem.Attend(kernel, one));
    for (const size_t threads : {2, 16, 128}) {
      ThreadPool pool({.threads = threads});
      const auto scratch = kernel.MakeScratch(d, 1490, 1500, threads);
      for (const uint32_t step : {1490u, 350u}) {
        std::vector<BFloat16> out(1490 * width);
        for (uint32_t first = 0; first < 1490; first += step) {
          const uint32_t count = std::min(step, 1490 - first);
          // The chunk without its last token, and that one alone.
          const AttentionItem items[] = {
              problem.Item(first, count - 1, out.data() + first * width),
              problem.Item(first + count - 1, 1, out.data() + (first + count - 1) * width)};
          kernel.Attend(d, problem.kv(), items, *scratch, pool);
        }
        ASSERT_EQ(Bits(out), want) << kernel.name() << ", chunks of " << step;
      }
    }
  }
}

TEST(AttentionCutsTest, PartialsHaveTheReferenceBits) {
  ThreadPool one({.threads = 1});
  const AttentionDescriptor d = Descriptor(64, 2, 4);
  const AttentionProblem problem({d, 4096, 1, 4096});
  for (const Arithmetic& arithmetic : Arithmetics()) {
    const auto partials = [&](const AttentionKernel& kernel, ThreadPool& pool) {
      std::vector<float> partial(d.query_heads * PartialWidth(d));
      AttentionItem item = problem.Item(0, 1, nullptr);
      item.partial = partial.data();
      const auto scratch = kernel.MakeScratch(d, 1, 4096, pool.threads());
      kernel.Attend(d, problem.kv(), {&item, 1}, *scratch, pool);
      return partial;
    };
    const std::vector<float> want = partials(arithmetic.reference, one);
    for (const size_t threads : kThreads) {
      ThreadPool pool({.threads = threads});
      for (const AttentionKernel* kernel : arithmetic.kernels) {
        ASSERT_EQ(partials(*kernel, pool), want) << kernel->name() << " " << threads << " threads";
      }
    }
  }
}

// What softmax gives each token is kept by whoever attends its block.
TEST(AttentionCutsTest, WeightsAreThoseOfOneThread) {
  ThreadPool one({.threads = 1});
  const AttentionProblem problem({Descriptor(64, 1, 3), 4000, 2, 500});
  std::vector<float> want;
  problem.Attend(CpuAttention(), one, want);
  for (const size_t threads : kThreads) {
    ThreadPool pool({.threads = threads});
    for (const AttentionKernel* kernel : CpuAttentionVariants()) {
      std::vector<float> got;
      problem.Attend(*kernel, pool, got);
      ASSERT_EQ(got, want) << kernel->name() << " " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace lamina::kernels
