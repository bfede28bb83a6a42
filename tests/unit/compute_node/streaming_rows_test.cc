// SPDX-License-Identifier: Apache-2.0
//
// Rows of heads that stream against attention in float64 with a mask, and their bits against those
// of the same rows cut otherwise.

#include "compute_node/streaming_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/k_tiles.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {
namespace {

constexpr uint32_t kTokens = 620;
constexpr AttentionDescriptor kShape = {
    .query_heads = 6, .kv_heads = 2, .head_dim = 32, .scale = 0.2f};

class StreamingRowsTest : public ::testing::TestWithParam<StreamingHeads> {
 protected:
  void SetUp() override {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<BFloat16>& values, size_t count) {
      values.resize(count);
      std::generate(values.begin(), values.end(), [&] { return ToBFloat16(normal(random)); });
    };
    fill(q_, size_t{kTokens} * kShape.q_width());
    fill(k_, size_t{kTokens} * kShape.kv_width());
    fill(v_, size_t{kTokens} * kShape.kv_width());
  }

  StreamingRows Make() {
    return StreamingRows(streaming_, layers_, {.rows = kTokens, .context_tokens = kTokens},
                         kernels::CpuAttention(), pool_);
  }

  // K and V of tokens [first, end), in slots from `slot` on.
  void Store(kernels::KvArena& arena, uint32_t first, uint32_t end, uint32_t slot) {
    const Extent slots{.first_slot = slot, .tokens = end - first};
    kernels::StoreKv(kShape, k_.data() + first * kShape.kv_width(),
                     v_.data() + first * kShape.kv_width(), kShape.kv_width(), {&slots, 1},
                     arena.k(0), arena.v(0), arena.head_stride(0));
  }

  StreamingRows::Rows RowsOf(uint32_t first, uint32_t count, std::vector<BFloat16>& out) {
    return {.first_position = first,
            .tokens = count,
            .q = q_.data() + first * kShape.q_width(),
            .q_stride = kShape.q_width(),
            .out = out.data() + first * kShape.q_width(),
            .out_stride = kShape.q_width()};
  }

  // All rows, in chunks of so many over all tokens before them.
  std::vector<BFloat16> InChunks(uint32_t chunk) {
    kernels::KvArena arena = kernels::KvArena::Create(layers_, kTokens).value();
    Store(arena, 0, kTokens, 0);
    std::vector<BFloat16> out(q_.size());
    StreamingRows rows = Make();
    for (uint32_t first = 0; first < kTokens; first += chunk) {
      rows.Clear();
      rows.AddStreamed(RowsOf(first, std::min(chunk, kTokens - first), out), {});
      rows.Attend(kShape, arena.View(0));
    }
    return out;
  }

  // The row's output by the definition.
  std::vector<double> Reference(uint32_t position, uint32_t head) const {
    const uint32_t kv = head / kShape.group();
    const uint32_t dim = kShape.head_dim;
    double sum = 0;
    std::vector<double> out(dim);
    for (int64_t token = 0; token <= position; ++token) {
      if (token >= streaming_.sink && token <= int64_t{position} - streaming_.window) {
        continue;
      }
      double score = 0;
      for (uint32_t i = 0; i < dim; ++i) {
        score += double{ToFloat(q_[position * kShape.q_width() + head * dim + i])} *
                 ToFloat(k_[token * kShape.kv_width() + kv * dim + i]);
      }
      const double weight = std::exp(score * kShape.scale);
      sum += weight;
      for (uint32_t i = 0; i < dim; ++i) {
        out[i] += weight * ToFloat(v_[token * kShape.kv_width() + kv * dim + i]);
      }
    }
    for (double& value : out) {
      value /= sum;
    }
    return out;
  }

  const StreamingHeads streaming_ = GetParam();
  const std::vector<AttentionDescriptor> layers_ = {kShape};
  ThreadPool pool_{{.threads = 2}};
  std::vector<BFloat16> q_;
  std::vector<BFloat16> k_;
  std::vector<BFloat16> v_;
};

// What bf16 outputs and f32 sums are off by: half an ulp of bf16, and a little.
TEST_P(StreamingRowsTest, OutputsAreThoseOfAttentionWithTheMask) {
  const std::vector<BFloat16> out = InChunks(kTokens);
  for (uint32_t position = 0; position < kTokens; position += 7) {
    for (uint32_t head = 0; head < kShape.query_heads; ++head) {
      const std::vector<double> wanted = Reference(position, head);
      for (uint32_t i = 0; i < kShape.head_dim; ++i) {
        const double found = ToFloat(out[position * kShape.q_width() + head * kShape.head_dim + i]);
        ASSERT_NEAR(found, wanted[i], std::abs(wanted[i]) / 250 + 1e-5)
            << "position " << position << " head " << head << " element " << i;
      }
    }
  }
}

TEST_P(StreamingRowsTest, BitsDoNotDependOnChunks) {
  const std::vector<BFloat16> whole = InChunks(kTokens);
  for (const uint32_t chunk : {1u, 7u, 64u, 300u}) {
    const std::vector<BFloat16> cut = InChunks(chunk);
    EXPECT_EQ(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(BFloat16)), 0)
        << "chunks of " << chunk;
  }
}

// Rows of a run over what comes for it: without the tokens of the gap.
TEST_P(StreamingRowsTest, BitsDoNotDependOnTheTokensThatAreLeftOut) {
  const std::vector<BFloat16> whole = InChunks(kTokens);
  StreamingRows rows = Make();
  std::vector<BFloat16> out(q_.size());
  for (const uint32_t before : {0u, 1u, 63u, 64u, 299u, 320u, 500u, 601u}) {
    const plan::TokenGap gap = plan::GapBefore(streaming_, before);
    const uint32_t count = std::min(19u, kTokens - before);
    kernels::KvArena arena = kernels::KvArena::Create(layers_, kTokens + 32).value();
    constexpr uint32_t kSlot = 32;
    if (gap.first > 0) {
      Store(arena, 0, gap.first, kSlot);
    }
    Store(arena, gap.end, before + count, kSlot + gap.first);
    rows.Clear();
    rows.AddStreamed(RowsOf(before, count, out), {.first_slot = kSlot, .gap = gap});
    rows.Attend(kShape, arena.View(0));
    const size_t first = size_t{before} * kShape.q_width();
    EXPECT_EQ(std::memcmp(out.data() + first, whole.data() + first,
                          size_t{count} * kShape.q_width() * sizeof(BFloat16)),
              0)
        << "run behind " << before;
  }
}

// Where nothing is left out, and in a head that does not stream.
TEST_P(StreamingRowsTest, RowsThatSeeEverythingHaveTheBitsOfOtherHeads) {
  const std::vector<BFloat16> streamed = InChunks(kTokens);
  kernels::KvArena arena = kernels::KvArena::Create(layers_, kTokens).value();
  Store(arena, 0, kTokens, 0);
  std::vector<BFloat16> whole(q_.size());
  StreamingRows rows = Make();
  rows.AddWhole(RowsOf(0, kTokens, whole), 0);
  rows.Attend(kShape, arena.View(0));
  const uint32_t alike = std::min(kTokens, streaming_.sink + streaming_.window);
  EXPECT_EQ(std::memcmp(streamed.data(), whole.data(),
                        size_t{alike} * kShape.q_width() * sizeof(BFloat16)),
            0);
  if (alike < kTokens) {  // And the next row is another.
    EXPECT_NE(
        std::memcmp(streamed.data() + alike * kShape.q_width(),
                    whole.data() + alike * kShape.q_width(), kShape.q_width() * sizeof(BFloat16)),
        0);
  }
}

TEST_P(StreamingRowsTest, NoRowsAreNothing) {
  kernels::KvArena arena = kernels::KvArena::Create(layers_, 16).value();
  StreamingRows rows = Make();
  rows.Attend(kShape, arena.View(0));
}

INSTANTIATE_TEST_SUITE_P(All, StreamingRowsTest,
                         ::testing::Values(StreamingHeads{.sink = 0, .window = 1},
                                           StreamingHeads{.sink = 16, .window = 64},
                                           StreamingHeads{.sink = 5, .window = 37},
                                           StreamingHeads{.sink = 33, .window = 290},
                                           StreamingHeads{.sink = 0, .window = 2 * kTokens}));

}  // namespace
}  // namespace lamina::compute_node
