// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_sparse (ALISA, alisa.txt IV-B): a decode row attends over a part of the tokens
// before it. With n tokens before the row and caching ratio r (Algorithm 1, by its lines):
//
//   k   = round(n r / 2)                                              (3)
//   S_j = sum over rows i in [n - k, n - 1] of AW_ij                  (4)
//   I_l = [n - k, n - 1], the locally static tokens                   (5)
//   I_g = the k tokens before them with the largest S                 (6)
//   I   = I_l and I_g, which are fetched and attended                 (7, 8)
//   AW  = softmax of the row's scores over I and its own token        (9)
//
// AW_ij is summed over query heads, and 0 where row i did not attend to token j. The whole matrix
// is never kept: of each layer there is the sum S, to which each new row is added, and the rows
// that are to be subtracted again when they leave the window.
//
// Two other patterns of as many tokens are there for comparison: the most recent ones (Longformer),
// and ones at a fixed stride (SparseTransformer). The latter is a mask over tokens, the same for
// all rows, so that a token which is left out is never needed again, as in a cache. For r < 1 it
// leaves out the first one. Lossy for r < 1: with r = 1 all tokens are chosen.
//
// Threading: plain values. Determinism: pure; sums are of integers, so that subtraction is exact.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/sparse_tokens.h"

namespace lamina::policy {

struct SparsePattern {
  SparseTokens tokens = SparseTokens::kWindowSums;
  double ratio = 1;  // r, in (0, 1].
};

// k of a row with so many tokens before it; halves are rounded up.
uint32_t KeptHalf(uint32_t tokens, double ratio);

// The rows before this one do not count in S of a row with so many tokens before it. Never falls
// as tokens grow.
uint32_t FirstSummedRow(uint32_t tokens, double ratio);

// Words of a set of tokens, of which token t is bit t % 64 of word t / 64.
inline size_t TokenSetWords(uint32_t tokens) { return (size_t{tokens} + 63) / 64; }

// S of one sequence in one layer, and its rows. Weights are kept as 65535ths of the number of query
// heads, the most that they can sum up to; those that round to 0 are not kept.
// Memory: a row of n tokens takes n / 8 bytes and 2 for each weight that is not 0.
class WindowSums {
 public:
  explicit WindowSums(uint32_t query_heads) : unit_(65535.0f / static_cast<float>(query_heads)) {}

  // Row `position` attended to these tokens with these weights, summed over heads. Rows follow each
  // other; if this one does not follow the last, those before are forgotten.
  // Requires: tokens ascend; as many weights.
  void Add(uint32_t position, absl::Span<const uint32_t> tokens, absl::Span<const float> weights);

  // Becomes as the other one, of a layer with as many heads. Rows are shared, as the slots of forks
  // are, and only the sums copied.
  void TakeOver(const WindowSums& other);

  // Rows before `position`, or from there on, leave the window.
  void DropBefore(uint32_t position);
  void DropFrom(uint32_t position);

  // S by token. Tokens beyond its end have 0.
  absl::Span<const uint64_t> sums() const { return sums_; }
  size_t rows() const { return rows_.size(); }
  uint32_t end() const { return end_; }  // Behind the last row.
  // Rows that are shared count in equal parts. Cost: O(rows).
  size_t bytes() const;

 private:
  struct Row {
    std::vector<uint64_t> tokens;   // Set of the tokens with a weight.
    std::vector<uint16_t> weights;  // Weights of these tokens, in order.
    size_t bytes() const {
      return tokens.capacity() * sizeof(uint64_t) + weights.capacity() * sizeof(uint16_t);
    }
  };
  void Subtract(const Row& row);

  const float unit_;
  std::deque<std::shared_ptr<const Row>> rows_;  // The last is end_ - 1.
  uint32_t end_ = 0;
  std::vector<uint64_t> sums_;
};

// The most that a row of a sequence of so many tokens takes, whoever shares it; and that WindowSums
// of the sequence take besides their rows.
uint64_t WindowRowBytesMax(uint32_t tokens);
uint64_t WindowSumsOwnBytesMax(uint32_t tokens, double ratio);
// The most that they take with rows that nobody shares.
uint64_t WindowSumsBytesMax(uint32_t tokens, double ratio);

// Chooses the tokens of a row with `tokens` before it. Of equal sums the earlier token is taken.
// Shapes: sums    by token, or fewer: the others have 0; not used by the fixed patterns
//         chosen  [TokenSetWords(tokens) or more]; overwritten
// `order` is working memory.
// Cost: O(tokens).
void ChooseTokens(const SparsePattern& pattern, uint32_t tokens, absl::Span<const uint64_t> sums,
                  std::vector<uint32_t>& order, absl::Span<uint64_t> chosen);

}  // namespace lamina::policy
