// SPDX-License-Identifier: Apache-2.0
#include "kernels/work_cuts.h"

#include <numeric>
#include <vector>

namespace lamina::kernels {
namespace {

size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }

// Whether the largest share of n tasks on t threads is at most an eighth above the mean.
bool IsEven(size_t largest, size_t tasks, size_t threads) {
  return 8 * largest * threads <= 9 * tasks;
}

// What the busiest thread has of a product, in features times rows.
size_t LargestShare(const DenseCut& cut, const DenseWork& product) {
  return CeilDiv(cut.Tasks(product), cut.threads) * cut.strips * kCutFeatures *
         cut.RowsEach(product.rows);
}

}  // namespace

DenseCut CutDense(absl::Span<const DenseWork> products, size_t rows_max, size_t threads) {
  size_t work = 0;
  size_t rows = 0;
  for (const DenseWork& product : products) {
    work += WorkOf(product);
    rows = std::max(rows, product.rows);
  }
  DenseCut best = {.rows = rows_max};
  const size_t useful = UsefulThreads(work, threads);
  if (useful == 1) {
    return best;
  }
  // Wide tasks first, and of these those of many rows: both read less from caches.
  size_t best_load = std::numeric_limits<size_t>::max();
  for (size_t strips = kCutStripsMax; strips > 0; strips /= 2) {
    for (size_t piece = rows_max; piece >= kCutRowsMin; piece /= 2) {
      if (piece < rows_max && piece >= rows) {
        continue;  // Tasks are those of more rows.
      }
      DenseCut cut = {.strips = strips, .rows = piece};
      size_t tasks = 0;
      for (const DenseWork& product : products) {
        tasks += cut.Tasks(product);
      }
      const size_t largest = CeilDiv(tasks, useful);
      const size_t load =
          largest * strips * std::min(piece, cut.RowsEach(std::max<size_t>(1, rows)));
      if (load < best_load) {
        best_load = load;
        best = cut;
        // More of them would not shorten the largest share.
        best.threads = CeilDiv(tasks, largest);
      }
      if (IsEven(largest, tasks, useful)) {
        return best;
      }
    }
  }
  return best;
}

std::optional<DenseCut> CutGated(const DenseWork& product, size_t rows_max, size_t threads) {
  // A gate and its up are like one feature of twice as many inputs.
  const DenseWork pairs = {product.rows, 2 * product.inputs, product.features / 2};
  const DenseCut cut = CutDense({&pairs, 1}, rows_max, threads);
  const DenseCut apart = CutDense({&product, 1}, rows_max, threads);
  if (cut.strips != kCutStripsMax || 2 * LargestShare(cut, pairs) > LargestShare(apart, product)) {
    return std::nullopt;
  }
  return cut;
}

AttentionCut CutAttention(const AttentionLoad& load, size_t threads, size_t tasks_max) {
  const size_t useful = UsefulThreads(load.work, threads);
  AttentionCut best = {.threads = std::clamp<size_t>(load.tiles, 1, useful)};
  // Whether tasks of at most so much work, so many if all are alike, have even shares.
  const auto even = [&](size_t task_work, size_t tasks) {
    return tasks != 0 ? IsEven(CeilDiv(tasks, useful), tasks, useful)
                      : 8 * task_work * useful <= load.work;
  };
  if (useful == 1 || even(load.blocks_max * load.block_work_max, load.alike() ? load.tiles : 0)) {
    return best;
  }
  for (uint32_t log2 = std::bit_width(load.blocks_max - 1); log2-- > 0;) {
    const size_t run = size_t{1} << log2;
    // Tiles may begin and end inside a run.
    if (load.all_blocks / run + 2 * load.tiles > tasks_max) {
      break;
    }
    const bool alike = load.alike() && load.blocks_max % run == 0;
    const size_t tasks = load.all_blocks / run;
    best = {.run_log2 = log2,
            .threads = alike ? CeilDiv(tasks, CeilDiv(tasks, useful)) : std::min(useful, tasks)};
    if (even(run * load.block_work_max, alike ? tasks : 0)) {
      break;
    }
  }
  return best;
}

Shares ShareOut(absl::Span<const double> tasks, size_t threads) {
  std::vector<double> shares(std::max<size_t>(1, std::min(threads, tasks.size())), 0.0);
  for (const double task : tasks) {
    *std::min_element(shares.begin(), shares.end()) += task;
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const double largest = *std::max_element(shares.begin(), shares.end());
  if (sum == 0) {
    return {};
  }
  return {.tasks = tasks.size(),
          .threads = shares.size(),
          .largest_of_mean = largest * static_cast<double>(shares.size()) / sum,
          .speedup = sum / largest};
}

Shares DenseShares(const DenseWork& product, size_t rows_max, size_t threads) {
  const DenseCut cut = CutDense({&product, 1}, rows_max, threads);
  const size_t features = cut.strips * kCutFeatures;
  std::vector<double> tasks;
  ForDenseTasks(product, cut, cut.RowsEach(product.rows), /*last=*/true,
                [&](size_t /*row*/, size_t rows, size_t first) {
                  const size_t wide = std::min(features, product.features - first);
                  tasks.push_back(static_cast<double>(WorkOf({rows, product.inputs, wide})));
                });
  return ShareOut(tasks, cut.threads);
}

}  // namespace lamina::kernels
