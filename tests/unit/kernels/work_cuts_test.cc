// SPDX-License-Identifier: Apache-2.0
//
// How work is shared among 1 to 128 threads, by the code that cuts it.

#include "kernels/work_cuts.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace lamina::kernels {
namespace {

constexpr size_t kThreads[] = {2, 8, 16, 32, 128};

// Largest shares that are allowed with so many tasks for each thread in use.
void ExpectEven(const Shares& shares, const std::string& where) {
  const double each = static_cast<double>(shares.tasks) / static_cast<double>(shares.threads);
  if (each >= 8) {
    EXPECT_LE(shares.largest_of_mean, 1.15) << where;
  } else if (each >= 2) {
    EXPECT_LE(shares.largest_of_mean, 1.5) << where;
  }
}

struct Products {
  const char* model;
  size_t width, qkv, hidden, vocabulary;
};
constexpr Products kModels[] = {{"SmolLM2", 576, 960, 1536, 49152},
                                {"LLaMA-3-8B", 4096, 6144, 14336, 128256},
                                {"LLaMA-3-70B", 8192, 10240, 28672, 128256}};

TEST(DenseCutTest, SharesAreEven) {
  for (const Products& model : kModels) {
    const size_t shapes[][2] = {{model.width, model.qkv},
                                {model.width, model.width},
                                {model.width, 2 * model.hidden},
                                {model.hidden, model.width},
                                {model.width, model.vocabulary}};
    for (const auto& [inputs, features] : shapes) {
      for (size_t rows = 1; rows <= 512; rows += rows < 16 ? 1 : rows / 5) {
        for (const size_t threads : kThreads) {
          const DenseWork work = {.rows = rows, .inputs = inputs, .features = features};
          const Shares shares = DenseShares(work, kCutRowsOfPairs, threads);
          const std::string where = std::string(model.model) + " " + std::to_string(features) +
                                    " x " + std::to_string(inputs) + ", " + std::to_string(rows) +
                                    " rows, " + std::to_string(threads) + " threads";
          ExpectEven(shares, where);
          EXPECT_LE(shares.threads, threads) << where;
          // Work that is enough for threads uses them, down to tasks of 16 features: half of them
          // where there is little more than one such task for each.
          const size_t useful =
              std::min(UsefulThreads(WorkOf(work), threads), features / kCutFeatures);
          EXPECT_GE(shares.speedup * 2.001, static_cast<double>(useful)) << where;
        }
      }
    }
  }
}

// In one task with their ups they give no thread more to do; up to eight threads they always are.
TEST(DenseCutTest, GatesWithTheirUpsLeaveSharesAsEven) {
  for (const Products& model : kModels) {
    for (const size_t rows_max : {kCutRowsOfPairs, kCutRowsOfFloats}) {
      for (size_t rows = 9; rows <= 512; rows += rows < 16 ? 1 : rows / 5) {
        for (const size_t threads : kThreads) {
          const DenseWork work = {
              .rows = rows, .inputs = model.width, .features = 2 * model.hidden};
          const std::string where = std::string(model.model) + ", " + std::to_string(rows) +
                                    " rows, " + std::to_string(threads) + " threads";
          const std::optional<DenseCut> cut = CutGated(work, rows_max, threads);
          if (!cut.has_value()) {
            EXPECT_GT(threads, 8u) << where;
            continue;
          }
          EXPECT_EQ(cut->strips, kCutStripsMax) << where;
          const Shares together =
              DenseShares({.rows = rows, .inputs = 2 * model.width, .features = model.hidden},
                          rows_max, threads);
          const Shares apart = DenseShares(work, rows_max, threads);
          EXPECT_GE(together.speedup * 1.02, apart.speedup) << where;
          ExpectEven(together, where);
        }
      }
    }
  }
}

TEST(DenseCutTest, GatesAreApartFromTheirUpsWhereThatIsMoreEven) {
  const DenseWork odd = {.rows = 16, .inputs = 4096, .features = 2 * 23 * 64};
  EXPECT_FALSE(CutGated(odd, kCutRowsOfPairs, 2).has_value());
  EXPECT_TRUE(CutGated(odd, kCutRowsOfPairs, 1).has_value());
  DenseWork many = odd;
  many.rows = 512;
  EXPECT_TRUE(CutGated(many, kCutRowsOfPairs, 2).has_value());
  const DenseWork narrow = {.rows = 16, .inputs = 576, .features = 2 * 1536};
  EXPECT_FALSE(CutGated(narrow, kCutRowsOfPairs, 128).has_value());
}

TEST(DenseCutTest, PanelsStayWholeWhereThereAreEnough) {
  const DenseWork work = {.rows = 64, .inputs = 4096, .features = 4096};
  for (const size_t threads : {1, 2, 4, 8}) {
    const DenseCut cut = CutDense({&work, 1}, kCutRowsOfPairs, threads);
    EXPECT_EQ(cut.strips, kCutStripsMax);
    EXPECT_EQ(cut.rows, kCutRowsOfPairs);
    EXPECT_EQ(cut.threads, threads);
  }
}

TEST(DenseCutTest, LittleWorkGoesToFewThreads) {
  const DenseWork tiny = {.rows = 1, .inputs = 64, .features = 256};
  EXPECT_EQ(CutDense({&tiny, 1}, kCutRowsOfPairs, 128).threads, 1u);
  const DenseWork small = {.rows = 1, .inputs = 576, .features = 576};
  const size_t threads = CutDense({&small, 1}, kCutRowsOfPairs, 128).threads;
  EXPECT_GT(threads, 4u);
  EXPECT_LE(threads, WorkOf(small) / kLeastWork);
}

// Products of few rows each, as experts have them, are cut together.
TEST(DenseCutTest, SeveralProductsAreOneCall) {
  const std::vector<DenseWork> experts(64, {.rows = 3, .inputs = 2048, .features = 2048});
  EXPECT_EQ(CutDense(experts, kCutRowsOfPairs, 128).strips, kCutStripsMax);
  const std::vector<DenseWork> one(1, experts[0]);
  EXPECT_LT(CutDense(one, kCutRowsOfPairs, 128).strips, kCutStripsMax);
}

TEST(DenseCutTest, RowsAreCutEvenly) {
  const DenseCut cut = {.rows = 256};
  EXPECT_EQ(cut.RowsEach(256), 256u);
  EXPECT_EQ(cut.RowsEach(257), 129u);
  EXPECT_EQ(cut.RowsEach(1), 1u);
  EXPECT_EQ(cut.Tasks({.rows = 257, .inputs = 1, .features = 65}), 4u);
  EXPECT_EQ(cut.Tasks({.rows = 0, .inputs = 1, .features = 65}), 0u);
}

// Nine panels of 2 times 255 rows are 16 tasks and, for two threads, 8 quarters.
TEST(DenseCutTest, TheLastTasksGoInQuarters) {
  struct Task {
    size_t row, rows, feature;
  };
  const auto tasks_of = [](const DenseWork& work, size_t threads, bool last) {
    const DenseCut cut = {.rows = 256, .threads = threads};
    std::vector<Task> tasks;
    ForDenseTasks(work, cut, cut.RowsEach(work.rows), last,
                  [&](size_t row, size_t rows, size_t feature) {
                    tasks.push_back({row, rows, feature});
                  });
    return tasks;
  };
  const DenseWork work = {.rows = 510, .inputs = 576, .features = 576};
  const std::vector<Task> tasks = tasks_of(work, 2, /*last=*/true);
  ASSERT_EQ(tasks.size(), 24u);
  std::vector<size_t> rows_of_feature(work.features);
  for (size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(tasks[i].rows, i < 16 ? 255u : i % 4 == 3 ? 63u : 64u) << i;
    EXPECT_EQ(tasks[i].row, (i < 9 ? 0u : 255u) + (i < 16 ? 0u : i % 4 * 64)) << i;
    rows_of_feature[tasks[i].feature] += tasks[i].rows;
  }
  for (size_t feature = 0; feature < work.features; ++feature) {
    EXPECT_EQ(rows_of_feature[feature], feature % 64 == 0 ? 510u : 0u) << feature;
  }
  EXPECT_EQ(tasks_of(work, 1, true).size(), 18u);
  EXPECT_EQ(tasks_of(work, 2, false).size(), 18u);
  EXPECT_EQ(tasks_of(work, 7, true).size(), 18u);  // There are too few.
  EXPECT_EQ(tasks_of({.rows = 127, .inputs = 576, .features = 576}, 2, true).size(), 9u);
  // Threads end closer to each other: 17 panels of 256 rows are 9 and 8, or 8.5 each.
  const Shares shares = DenseShares({.rows = 256, .inputs = 576, .features = 17 * 64}, 256, 2);
  EXPECT_LT(shares.largest_of_mean, 1.03);
}

TEST(ShareOutTest, EachTakesTheNextTaskWhenItIsDone) {
  const std::vector<double> tasks = {4, 1, 1, 1, 1, 1};
  const Shares shares = ShareOut(tasks, 2);
  EXPECT_EQ(shares.tasks, 6u);
  EXPECT_EQ(shares.threads, 2u);
  EXPECT_DOUBLE_EQ(shares.largest_of_mean, 5.0 / 4.5);
  EXPECT_DOUBLE_EQ(shares.speedup, 9.0 / 5.0);
  EXPECT_EQ(ShareOut({tasks.data(), 3}, 8).threads, 3u);
  EXPECT_EQ(ShareOut({}, 8).tasks, 0u);
}

}  // namespace
}  // namespace lamina::kernels
