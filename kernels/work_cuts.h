// SPDX-License-Identifier: Apache-2.0
//
// How work is cut for many threads: which tasks a call of the dense layers or of attention
// consists of, and how many threads take them. Pure functions of sizes, called by the code that
// runs the tasks, and by the table and the test that show shares without a machine of many cores.
//
// A cut never shows in results: dense layers are cut by features and rows, whose sums are their
// own, and attention along the merge tree of docs/design/attention_numerics.md.
//
// Tasks have about equal work, and threads take one after the other as they get on, or with few
// rows neighbours first (cpu/task_shares.h). The largest share of
// n tasks on t threads is ceil(n / t); a cut takes the widest tasks with which that is at most an
// eighth above n / t, or else the ones with the least.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/types/span.h"

namespace lamina::kernels {

// Work is counted in reads of one weight of bf16, or one value of K or V, from memory, which take
// some 0.1 ns of a core; the arithmetic of eight rows takes about as long.
inline constexpr size_t kRowsOfRead = 8;

// The least work for which a thread is worth waking. Measured on two cores, where a second thread
// pays from 37,000 on and gains nothing at 18,000 (docs/performance.md, "many cores").
inline constexpr size_t kLeastWork = 32768;

// Threads worth using for so much work. At least 1.
inline size_t UsefulThreads(size_t work, size_t threads) {
  return std::clamp<size_t>(work / kLeastWork, 1, std::max<size_t>(1, threads));
}

// --- dense layers ---

// Features of the narrowest task, and of the widest in these.
inline constexpr size_t kCutFeatures = 16;
inline constexpr size_t kCutStripsMax = 4;

// The most rows of a task: of products of bf16 pairs their activations stay in the second cache; of
// multiply-adds in f32 it is their f32 copy.
inline constexpr size_t kCutRowsOfPairs = 256;
inline constexpr size_t kCutRowsOfFloats = 64;

// Tasks of fewer rows make weights come from cache too often.
inline constexpr size_t kCutRowsMin = 32;

// Tasks for each thread from which on the last ones go in quarters.
inline constexpr size_t kCutTasksBefore = 3;

// One product of a call: [rows, inputs] times [inputs, features].
struct DenseWork {
  size_t rows = 0;
  size_t inputs = 0;
  size_t features = 0;
};

inline size_t WorkOf(const DenseWork& product) {
  return product.features * product.inputs * (kRowsOfRead + product.rows) / kRowsOfRead;
}

// A task: `strips` times 16 features, for at most `rows` rows.
struct DenseCut {
  size_t strips = kCutStripsMax;  // 1, 2 or 4.
  size_t rows = 0;
  size_t threads = 1;  // That take part.

  // Rows of each task of a product that has so many, the last one's perhaps fewer. Requires: rows.
  size_t RowsEach(size_t product_rows) const {
    const size_t pieces = (product_rows + rows - 1) / rows;
    return (product_rows + pieces - 1) / pieces;
  }
  size_t Tasks(const DenseWork& work) const {
    const size_t features = strips * kCutFeatures;
    return work.rows == 0 ? 0
                          : (work.features + features - 1) / features *
                                ((work.rows + RowsEach(work.rows) - 1) / RowsEach(work.rows));
  }
};

// `rows_max`: the most rows that one task should have, a power of two.
DenseCut CutDense(absl::Span<const DenseWork> products, size_t rows_max, size_t threads);

// Calls `add(row, rows, feature)` for the tasks of a product, each of as many features as the cut
// says, in the order of their numbers: pieces of about even rows, `rows_each` at most,
// and of each piece all features. `last`: no other product's tasks follow. The last tasks then, one
// for each thread, go in quarters of their rows where these are many: threads end closer to each
// other, for weights that come from a cache four times. Requires: rows; rows_each.
template <class Add>
void ForDenseTasks(const DenseWork& product, const DenseCut& cut, size_t rows_each, bool last,
                   Add add) {
  const size_t features = cut.strips * kCutFeatures;
  size_t left =
      (product.rows + rows_each - 1) / rows_each * ((product.features + features - 1) / features);
  const bool enough = cut.threads > 1 && left >= kCutTasksBefore * cut.threads;
  const size_t in_quarters = last && enough ? cut.threads : 0;
  for (size_t row = 0; row < product.rows; row += rows_each) {
    const size_t rows = std::min(rows_each, product.rows - row);
    for (size_t feature = 0; feature < product.features; feature += features, --left) {
      const size_t each = left <= in_quarters && rows >= 4 * kCutRowsMin ? (rows + 3) / 4 : rows;
      for (size_t done = 0; done < rows; done += each) {
        add(row + done, std::min(each, rows - done), feature);
      }
    }
  }
}

// How a product is cut whose features are gates and, behind them, as many ups, where each task has
// 64 of the gates and the ups of these. None where its busiest thread would have more to do than
// as CutDense() cuts the product. Requires: rows; features a multiple of 128.
std::optional<DenseCut> CutGated(const DenseWork& product, size_t rows_max, size_t threads);

// --- attention ---

// Tokens of a leaf of the merge tree.
inline constexpr uint32_t kCutBlockTokens = 256;

// The tiles of a call: query rows of one KV head, each tile with the blocks that it sees. A tile
// that is not cut is one task; else each aligned run of 2^k blocks is one, and whoever ends last
// merges the runs' partials along the tree.
class AttentionLoad {
 public:
  // `count` tiles alike.
  void Add(size_t count, uint32_t rows, uint32_t blocks, uint32_t head_dim) {
    const size_t of_block =
        size_t{kCutBlockTokens} * head_dim * 2 * (kRowsOfRead + rows) / kRowsOfRead;
    tiles += count;
    all_blocks += count * blocks;
    work += count * blocks * of_block;
    blocks_max = std::max(blocks_max, blocks);
    blocks_min = std::min(blocks_min, blocks);
    block_work_max = std::max(block_work_max, of_block);
    block_work_min = std::min(block_work_min, of_block);
  }

  bool alike() const { return blocks_min == blocks_max && block_work_min == block_work_max; }

  size_t tiles = 0;
  size_t all_blocks = 0;
  size_t work = 0;
  uint32_t blocks_max = 0;
  uint32_t blocks_min = UINT32_MAX;
  size_t block_work_max = 0;
  size_t block_work_min = SIZE_MAX;
};

struct AttentionCut {
  static constexpr uint32_t kWhole = 31;
  uint32_t run_log2 = kWhole;  // Blocks of a run: 2^run_log2.
  size_t threads = 1;          // That take part.

  bool whole() const { return run_log2 == kWhole; }
  // Tasks of a tile that sees blocks [first, end).
  uint32_t Pieces(uint32_t first, uint32_t end) const {
    return ((end - 1) >> run_log2) - (first >> run_log2) + 1;
  }
};

// `tasks_max`: how many tasks a call that is cut may have.
AttentionCut CutAttention(const AttentionLoad& load, size_t threads, size_t tasks_max);

// --- shares ---

// What the busiest of `threads` threads does, over the mean of those that get any of the tasks,
// where each takes the next task when it is done with its last, and all are equally fast.
struct Shares {
  size_t tasks = 0;
  size_t threads = 0;          // That get a task.
  double largest_of_mean = 1;  // 1 or more.
  double speedup = 1;          // All work over the largest share.
};
Shares ShareOut(absl::Span<const double> tasks, size_t threads);

// Those of a call as CutDense() cuts it, in the order of the dense layers' tasks. Requires: rows.
Shares DenseShares(const DenseWork& product, size_t rows_max, size_t threads);

}  // namespace lamina::kernels
