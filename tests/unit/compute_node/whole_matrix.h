// SPDX-License-Identifier: Apache-2.0
//
// Algorithm 1 of ALISA by the whole matrix of attention weights: which tokens a row of path sparse
// attends to, from all rows before it. For tests.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/attention.h"
#include "policy/fetch_sparse.h"

namespace lamina::compute_node {

class WholeMatrix {
 public:
  // The row behind the last: the weights of these tokens, summed over heads.
  void Add(const std::vector<uint32_t>& tokens, const std::vector<float>& weights,
           uint32_t query_heads) {
    std::vector<uint64_t>& row = rows_.emplace_back();
    for (size_t i = 0; i < tokens.size(); ++i) {
      row.resize(std::max<size_t>(row.size(), tokens[i] + 1));
      row[tokens[i]] = static_cast<uint64_t>(
          std::floor(weights[i] * (65535.0f / static_cast<float>(query_heads)) + 0.5f));
    }
  }

  // The tokens of the next row, in order.
  std::vector<uint32_t> Choose(double ratio) const {
    const auto n = static_cast<uint32_t>(rows_.size());
    const uint32_t k = policy::KeptHalf(n, ratio);
    std::vector<uint64_t> sums(n);
    for (uint32_t row = n - k; row < n; ++row) {
      for (size_t token = 0; token < rows_[row].size(); ++token) {
        sums[token] += rows_[row][token];
      }
    }
    std::vector<uint32_t> chosen(n - k);
    std::iota(chosen.begin(), chosen.end(), 0);
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](uint32_t a, uint32_t b) { return sums[a] > sums[b]; });
    chosen.resize(std::min<size_t>(k, chosen.size()));
    for (uint32_t token = n - k; token < n; ++token) {
      chosen.push_back(token);
    }
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  std::vector<std::vector<uint64_t>> rows_;
};

// What softmax gives the tokens that each query of the item sees, summed over heads. By the fastest
// kernel: weights have no promised bits.
inline std::vector<std::vector<float>> WeightsOf(
    const AttentionDescriptor& shape, const kernels::KvView& kv, kernels::AttentionItem item,
    ThreadPool& pool, const kernels::AttentionKernel& kernel = kernels::CpuAttention()) {
  const uint32_t seen = item.first_position + item.query_tokens;
  std::vector<float> memory(kernels::AttentionWeights::FloatsOf(shape.query_heads, seen) *
                            item.query_tokens);
  const auto weights =
      kernels::AttentionWeights::Over(memory.data(), item.query_tokens, shape.query_heads, seen);
  item.weights = &weights;
  const auto scratch = kernel.MakeScratch(shape, item.query_tokens, seen, pool.threads());
  kernel.Attend(shape, kv, {&item, 1}, *scratch, pool);
  std::vector<std::vector<float>> rows;
  for (uint32_t i = 0; i < item.query_tokens; ++i) {
    std::vector<float>& row = rows.emplace_back(item.first_position + i + 1);
    kernels::SumWeights(weights, i, static_cast<uint32_t>(row.size()), row.data());
  }
  return rows;
}

}  // namespace lamina::compute_node
