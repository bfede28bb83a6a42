// SPDX-License-Identifier: Apache-2.0
//
// The reference and the fast kernel against numpy in float64: tests/fidelity/
// make_attention_goldens.py made the file.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/attention.h"
#include "kernels/k_tiles.h"
#include "tests/support/source_path.h"

namespace lamina::kernels {
namespace {

std::vector<BFloat16> Take(size_t count, uint32_t& state) {
  std::vector<BFloat16> values(count);
  for (BFloat16& x : values) {
    state = state * 1664525u + 1013904223u;
    x.bits = static_cast<uint16_t>(0x3f00u | (state >> 16 & 0x80ffu));
  }
  return values;
}

void ExpectGolden(const nlohmann::json& golden, const AttentionKernel& kernel) {
  const uint32_t head_dim = golden["head_dim"];
  const uint32_t kv_heads = golden["kv_heads"];
  const uint32_t tokens = golden["tokens"];
  const uint32_t queries = golden["queries"];
  const AttentionDescriptor d = {.query_heads = kv_heads * golden["group"].get<uint32_t>(),
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                                 .window = golden["window"],
                                 .soft_cap = golden["soft_cap"]};
  uint32_t state = 1;
  const std::vector<BFloat16> k = Take(size_t{tokens} * d.kv_width(), state);
  const std::vector<BFloat16> v = Take(size_t{tokens} * d.kv_width(), state);
  const std::vector<BFloat16> q = Take(size_t{queries} * d.q_width(), state);
  std::vector<BFloat16> arena_k(WholeTiles(tokens) * d.kv_width()), arena_v(arena_k), out(q.size());
  const Extent extent = {.first_slot = 0, .tokens = tokens};
  const size_t head_stride = WholeTiles(tokens) * head_dim;
  StoreKv(d, k.data(), v.data(), d.kv_width(), {&extent, 1}, arena_k.data(), arena_v.data(),
          head_stride);
  const AttentionItem item = {.extents = {&extent, 1},
                              .first_position = tokens - queries,
                              .query_tokens = queries,
                              .q = q.data(),
                              .q_stride = d.q_width(),
                              .out = out.data(),
                              .out_stride = d.q_width()};
  ThreadPool pool({.threads = 1});
  const auto scratch = kernel.MakeScratch(d, queries, tokens, 1);
  kernel.Attend(d, {arena_k.data(), arena_v.data(), head_stride}, {&item, 1}, *scratch, pool);

  ASSERT_EQ(golden["out"].size(), out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const double want = golden["out"][i];
    // Half an ulp of bf16, and fp32's share of the largest |v|, 2.
    ASSERT_NEAR(double{ToFloat(out[i])}, want, std::ldexp(std::fabs(want), -8) + 1e-5) << i;
  }
}

TEST(AttentionGoldenTest, AgreesWithNumpyInFloat64) {
  std::ifstream file(test_support::SourcePath("tests/fidelity/attention_golden.json"));
  const nlohmann::json goldens = nlohmann::json::parse(file);
  ASSERT_EQ(goldens.size(), 5u);
  for (const nlohmann::json& golden : goldens) {
    SCOPED_TRACE(golden["head_dim"].dump());
    ExpectGolden(golden, ReferenceAttention());
    ExpectGolden(golden, CpuAttention());
  }
}

}  // namespace
}  // namespace lamina::kernels
