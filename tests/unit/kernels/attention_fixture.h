// SPDX-License-Identifier: Apache-2.0
//
// A random sequence in a fragmented arena, for tests of attention.
//
// The arena's unused slots hold NaN, so that reading a token that is none of the sequence shows.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/k_tiles.h"

namespace lamina::kernels {

struct AttentionCase {
  AttentionDescriptor descriptor;
  uint32_t tokens = 1;      // The sequence's length, queries included.
  uint32_t queries = 1;     // Its last tokens.
  uint32_t run_max = 1024;  // Longest extent.
  uint32_t seed = 1;
};

inline AttentionDescriptor Descriptor(uint32_t head_dim, uint32_t kv_heads, uint32_t group,
                                      uint32_t window = 0, float soft_cap = 0.0f) {
  return {.query_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .window = window,
          .soft_cap = soft_cap};
}

// With sinks: some far below all scores, some far above, most among them.
inline AttentionDescriptor WithSinks(AttentionDescriptor descriptor) {
  for (uint32_t head = 0; head < descriptor.query_heads; ++head) {
    const float among = 0.7f * static_cast<float>(head % 8) - 2.0f;
    descriptor.sinks.push_back(head % 5 == 3 ? -200.0f : head % 5 == 4 ? 90.0f : among);
  }
  return descriptor;
}

class AttentionProblem {
 public:
  explicit AttentionProblem(const AttentionCase& c) : case_(c), random_(c.seed) {
    Scatter();
    const AttentionDescriptor& d = c.descriptor;
    head_stride_ = WholeTiles(slots_) * d.head_dim;
    k_.assign(d.kv_heads * head_stride_, BFloat16{0x7fc0});
    v_ = k_;
    rows_k_ = Normal(size_t{c.tokens} * d.kv_width(), 1.0f);
    rows_v_ = Normal(size_t{c.tokens} * d.kv_width(), 1.0f);
    // Long queries: sharp peaks next to flat rows.
    q_ = Normal(size_t{c.queries} * d.q_width(), 1.5f);
    StoreKv(d, rows_k_.data(), rows_v_.data(), d.kv_width(), extents_, k_.data(), v_.data(),
            head_stride_);
  }

  // Attends queries [first, first + count) of the case in one call.
  std::vector<BFloat16> Attend(const AttentionKernel& kernel, ThreadPool& pool, uint32_t first,
                               uint32_t count) const {
    const AttentionDescriptor& d = case_.descriptor;
    std::vector<BFloat16> out(size_t{count} * d.q_width());
    const AttentionItem item = Item(first, count, out.data());
    const auto scratch = kernel.MakeScratch(d, count, case_.tokens, pool.threads());
    kernel.Attend(d, kv(), {&item, 1}, *scratch, pool);
    return out;
  }

  std::vector<BFloat16> Attend(const AttentionKernel& kernel, ThreadPool& pool) const {
    return Attend(kernel, pool, 0, case_.queries);
  }

  // Attends all queries with their weights, [queries, tokens]: summed over heads, 0 behind a query.
  std::vector<BFloat16> Attend(const AttentionKernel& kernel, ThreadPool& pool,
                               std::vector<float>& summed) const {
    const AttentionDescriptor& d = case_.descriptor;
    // Not written: a token that a query does not see.
    std::vector<float> memory(
        AttentionWeights::FloatsOf(d.query_heads, case_.tokens) * case_.queries, NAN);
    const AttentionWeights weights =
        AttentionWeights::Over(memory.data(), case_.queries, d.query_heads, case_.tokens);
    std::vector<BFloat16> out(size_t{case_.queries} * d.q_width());
    AttentionItem item = Item(0, case_.queries, out.data());
    item.weights = &weights;
    const auto scratch = kernel.MakeScratch(d, case_.queries, case_.tokens, pool.threads());
    kernel.Attend(d, kv(), {&item, 1}, *scratch, pool);
    summed.assign(size_t{case_.queries} * case_.tokens, 0.0f);
    for (uint32_t i = 0; i < case_.queries; ++i) {
      SumWeights(weights, i, case_.tokens - case_.queries + i + 1,
                 summed.data() + size_t{i} * case_.tokens);
    }
    return out;
  }

  // Attends all queries and has the kernel add the sums over heads to `summed`, [queries, tokens].
  std::vector<BFloat16> AttendSummed(const AttentionKernel& kernel, ThreadPool& pool,
                                     std::vector<float>& summed) const {
    const AttentionDescriptor& d = case_.descriptor;
    const AttentionWeights weights = {
        .query_heads = d.query_heads, .summed = summed.data(), .summed_stride = case_.tokens};
    std::vector<BFloat16> out(size_t{case_.queries} * d.q_width());
    AttentionItem item = Item(0, case_.queries, out.data());
    item.weights = &weights;
    const auto scratch = kernel.MakeScratch(d, case_.queries, case_.tokens, pool.threads());
    kernel.Attend(d, kv(), {&item, 1}, *scratch, pool);
    return out;
  }

  AttentionItem Item(uint32_t first, uint32_t count, BFloat16* out) const {
    const size_t width = case_.descriptor.q_width();
    return {.extents = extents_,
            .first_position = case_.tokens - case_.queries + first,
            .query_tokens = count,
            .q = q_.data() + first * width,
            .q_stride = width,
            .out = out,
            .out_stride = width};
  }

  KvView kv() const { return {.k = k_.data(), .v = v_.data(), .head_stride = head_stride_}; }
  // K as devices hold it: [kv_heads, slots, head_dim].
  std::vector<BFloat16> k_in_rows() const {
    const size_t dim = case_.descriptor.head_dim;
    std::vector<BFloat16> rows(k_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t in_head = i % head_stride_;
      rows[i] = k_[i - in_head + OffsetInTiles(in_head / dim, in_head % dim, dim)];
    }
    return rows;
  }
  const AttentionDescriptor& descriptor() const { return case_.descriptor; }

  // Plain double loops over the rows as they were before they were stored: softmax by its textbook
  // definition. [queries, query_heads, head_dim]
  std::vector<double> Exact() const {
    std::vector<double> out;
    for (uint32_t i = 0; i < case_.queries; ++i) {
      for (uint32_t h = 0; h < case_.descriptor.query_heads; ++h) {
        ExactRow(i, h, out);
      }
    }
    return out;
  }

  // Returns the weights in double, [queries, tokens]: softmax by its textbook definition, without
  // sinks.
  std::vector<double> ExactWeights() const {
    std::vector<double> summed(size_t{case_.queries} * case_.tokens);
    for (uint32_t i = 0; i < case_.queries; ++i) {
      for (uint32_t head = 0; head < case_.descriptor.query_heads; ++head) {
        const std::vector<double> scores = ExactScores(i, head);
        const double m = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (const double s : scores) {
          sum += std::exp(s - m);
        }
        for (size_t t = 0; t < scores.size(); ++t) {
          summed[size_t{i} * case_.tokens + t] += std::exp(scores[t] - m) / sum;
        }
      }
    }
    return summed;
  }

 private:
  std::vector<BFloat16> Normal(size_t count, float sigma) {
    std::normal_distribution<float> normal(0.0f, sigma);
    std::vector<BFloat16> values(count);
    for (BFloat16& x : values) {
      x = ToBFloat16(normal(random_));
    }
    return values;
  }

  // Cuts the tokens into runs and lays them down in random order, with holes between.
  void Scatter() {
    for (uint32_t left = case_.tokens; left > 0;) {
      const uint32_t run =
          std::min<uint32_t>(left, 1 + static_cast<uint32_t>(random_() % case_.run_max));
      extents_.push_back({.first_slot = 0, .tokens = run});
      left -= run;
    }
    std::vector<size_t> order(extents_.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t i : order) {
      slots_ += static_cast<uint32_t>(random_() % 3);
      extents_[i].first_slot = slots_;
      slots_ += extents_[i].tokens;
    }
  }

  // By token up to the query's; -inf before its window.
  std::vector<double> ExactScores(uint32_t query, uint32_t head) const {
    const AttentionDescriptor& d = case_.descriptor;
    const size_t column = size_t{head} / d.group() * d.head_dim;
    const size_t end = case_.tokens - case_.queries + query + 1;
    const size_t begin = d.window != 0 && end > d.window ? end - d.window : 0;
    const BFloat16* q = q_.data() + (size_t{query} * d.query_heads + head) * d.head_dim;
    std::vector<double> scores(end, -INFINITY);
    for (size_t t = begin; t < end; ++t) {
      double s = 0;
      for (size_t i = 0; i < d.head_dim; ++i) {
        s += double{ToFloat(q[i])} * double{ToFloat(rows_k_[t * d.kv_width() + column + i])};
      }
      s *= double{d.scale};
      scores[t] = d.soft_cap > 0 ? d.soft_cap * std::tanh(s / d.soft_cap) : s;
    }
    return scores;
  }

  void ExactRow(uint32_t query, uint32_t head, std::vector<double>& out) const {
    const AttentionDescriptor& d = case_.descriptor;
    const size_t column = size_t{head} / d.group() * d.head_dim;
    const std::vector<double> scores = ExactScores(query, head);
    double m = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    if (!d.sinks.empty()) {
      m = std::max(m, double{d.sinks[head]});
      sum = std::exp(double{d.sinks[head]} - m);
    }
    std::vector<double> row(d.head_dim, 0.0);
    for (size_t t = 0; t < scores.size(); ++t) {
      const double p = std::exp(scores[t] - m);
      sum += p;
      for (size_t i = 0; i < d.head_dim; ++i) {
        row[i] += p * double{ToFloat(rows_v_[t * d.kv_width() + column + i])};
      }
    }
    for (const double x : row) {
      out.push_back(x / sum);
    }
  }

  AttentionCase case_;
  std::mt19937 random_;
  std::vector<Extent> extents_;
  uint32_t slots_ = 0;
  size_t head_stride_ = 0;
  std::vector<BFloat16> k_, v_;            // As in KvView, on the host.
  std::vector<BFloat16> rows_k_, rows_v_;  // [tokens, kv_heads, head_dim]
  std::vector<BFloat16> q_;                // [queries, query_heads, head_dim]
};

// Numbers of a problem of one KV head, in order from slot 0; zeros unless they are filled.
struct PlainProblem {
  PlainProblem(const AttentionDescriptor& descriptor, uint32_t token_count, uint32_t query_count)
      : d(descriptor),
        tokens(token_count),
        queries(query_count),
        k(WholeTiles(token_count) * d.head_dim),
        v(k.size()),
        q(query_count * d.q_width()) {}

  void FillNormal() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (auto* values : {&k, &v, &q}) {
      for (BFloat16& x : *values) {
        x = ToBFloat16(normal(random));
      }
    }
  }
  KvView kv() const { return {.k = k.data(), .v = v.data(), .head_stride = k.size()}; }

  std::vector<BFloat16> Attend(const AttentionKernel& kernel) const {
    ThreadPool pool({.threads = 1});
    const Extent extent = {.first_slot = 0, .tokens = tokens};
    std::vector<BFloat16> out(q.size());
    const AttentionItem item = {.extents = {&extent, 1},
                                .first_position = tokens - queries,
                                .query_tokens = queries,
                                .q = q.data(),
                                .q_stride = d.q_width(),
                                .out = out.data(),
                                .out_stride = d.q_width()};
    const auto scratch = kernel.MakeScratch(d, queries, tokens, 1);
    kernel.Attend(d, kv(), {&item, 1}, *scratch, pool);
    return out;
  }

  AttentionDescriptor d;
  uint32_t tokens;
  uint32_t queries;
  std::vector<BFloat16> k, v, q;
};

inline std::vector<uint16_t> Bits(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> bits;
  bits.reserve(values.size());
  for (const BFloat16 x : values) {
    bits.push_back(x.bits);
  }
  return bits;
}

}  // namespace lamina::kernels
