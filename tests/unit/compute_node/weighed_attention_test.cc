// SPDX-License-Identifier: Apache-2.0
//
// Weights of several items, against the kernel's weights of all queries summed by plain loops.
#include "compute_node/weighed_attention.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::compute_node {
namespace {

using kernels::AttentionCase;
using kernels::AttentionProblem;

// Queries of a prompt come in tiles, whose weights take turns in a thread's memory.
TEST(WeighedAttentionTest, ItemsHaveTheSumsOfTheirQueriesHoweverTheyAreCut) {
  const AttentionCase c{
      .descriptor = kernels::Descriptor(16, 4, 6), .tokens = 601, .queries = 57, .run_max = 64};
  const AttentionProblem problem(c);
  const size_t width = c.descriptor.q_width();
  const kernels::AttentionKernel& kernel = kernels::CpuAttention();
  for (const size_t threads : {1, 3}) {
    ThreadPool pool({.threads = threads});
    std::vector<float> want;
    const std::vector<BFloat16> out = problem.Attend(kernel, pool, want);
    WeighedAttention attention(kernel, pool, {&c.descriptor, 1}, c.queries, c.tokens);

    std::vector<BFloat16> attended(c.queries * width);
    std::vector<float> summed(want.size());
    const auto item = [&](uint32_t first, uint32_t count, bool weighed) {
      return WeighedAttention::Item{
          .attention = problem.Item(first, count, attended.data() + first * width),
          .weights = weighed ? summed.data() + first * size_t{c.tokens} : nullptr,
          .stride = c.tokens};
    };
    const std::vector<WeighedAttention::Item> items = {item(0, 33, true), item(33, 3, false),
                                                       item(36, 21, true)};
    attention.Attend(c.descriptor, problem.kv(), items);

    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(attended[i].bits, out[i].bits) << threads << " threads, element " << i;
    }
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t query = i / c.tokens;
      ASSERT_EQ(summed[i], query >= 33 && query < 36 ? 0.0f : want[i])
          << threads << " threads, query " << query << " token " << i % c.tokens;
    }
  }
}

}  // namespace
}  // namespace lamina::compute_node
