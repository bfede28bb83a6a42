// SPDX-License-Identifier: Apache-2.0
//
// Attention with tensor cores: near the exact values, and the same bits for a row whatever is
// with it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/partial.h"
#include "tests/unit/kernels/cuda/attention_device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

class TensorAttentionTest : public AttentionDeviceTest {
 protected:
  TensorAttentionTest() : AttentionDeviceTest(AttentionArithmetic::kTensor) {}
};

class TensorAttentionShapes : public TensorAttentionTest,
                              public testing::WithParamInterface<AttentionCase> {};

// A weight is rounded by 2^-9 of itself, so an output by 2^-9 of its weighted mean distance to the
// values, whose standard deviation is 1; rounding the output adds 2^-9 of itself. Twice that.
double Tolerance(double exact) { return 0x1p-8 * (1 + std::fabs(exact)); }

TEST_P(TensorAttentionShapes, IsNearTheExactValues) {
  const AttentionProblem problem(GetParam());

  const std::vector<BFloat16> found = Attend(problem, 0, GetParam().queries);

  const std::vector<double> exact = problem.Exact();
  ASSERT_EQ(found.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(double{ToFloat(found[i])}, exact[i], Tolerance(exact[i])) << "element " << i;
  }
}

// A prompt's rows at once, in pieces that end inside tiles, and one by one.
TEST_P(TensorAttentionShapes, HasOneResultInEveryTiling) {
  const AttentionProblem problem(GetParam());
  const std::vector<BFloat16> whole = Attend(problem, 0, GetParam().queries);
  for (const uint32_t piece : {1u, 5u, 23u}) {
    if (GetParam().queries / piece > 12) {
      continue;  // So many prove nothing more.
    }
    std::vector<BFloat16> pieces;
    for (uint32_t first = 0; first < GetParam().queries; first += piece) {
      const auto some = Attend(problem, first, std::min(piece, GetParam().queries - first));
      pieces.insert(pieces.end(), some.begin(), some.end());
    }
    EXPECT_EQ(Bits(pieces), Bits(whole)) << "pieces of " << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TensorAttentionShapes,
    testing::Values(
        // Head sizes, with their own code and without; tokens around the borders of groups of 16,
        // pieces of 64 and blocks of 256.
        AttentionCase{Descriptor(64, 3, 3), 1, 1, 64, 1},
        AttentionCase{Descriptor(64, 1, 4), 16, 1, 64, 2},
        AttentionCase{Descriptor(64, 1, 8), 63, 1, 1024, 3},
        AttentionCase{Descriptor(128, 2, 4), 65, 1, 1024, 4},
        AttentionCase{Descriptor(128, 1, 8), 255, 1, 100, 5},
        AttentionCase{Descriptor(128, 1, 1), 256, 1, 100, 6},
        AttentionCase{Descriptor(80, 2, 5), 257, 1, 50, 7},
        AttentionCase{Descriptor(96, 1, 16), 321, 1, 7, 8},
        AttentionCase{Descriptor(256, 1, 8), 700, 1, 33, 9},
        AttentionCase{Descriptor(16, 2, 2), 300, 1, 1024, 10},
        AttentionCase{Descriptor(112, 1, 7), 517, 1, 400, 11},
        AttentionCase{Descriptor(240, 1, 4), 130, 1, 1024, 12},
        // More rows than one tile of 16: two of them, and four; every token an extent of its own.
        AttentionCase{Descriptor(64, 1, 17), 270, 1, 1, 13},
        AttentionCase{Descriptor(128, 1, 64), 270, 1, 1, 14},
        // Windows, of one token, across a border, longer than the sequence.
        AttentionCase{Descriptor(64, 2, 4, 1), 600, 3, 300, 15},
        AttentionCase{Descriptor(64, 1, 4, 100), 550, 1, 300, 16},
        AttentionCase{Descriptor(64, 1, 4, 5000), 550, 1, 300, 17},
        AttentionCase{Descriptor(80, 1, 2, 130), 600, 48, 64, 18},
        // Soft cap.
        AttentionCase{Descriptor(64, 1, 4, 0, 30.0f), 333, 2, 300, 19},
        AttentionCase{Descriptor(96, 1, 2, 70, 2.0f), 333, 20, 300, 20},
        // Queries of length over 1: from token 0, and tiles that end inside, at and behind blocks.
        AttentionCase{Descriptor(64, 2, 3), 40, 40, 300, 21},
        AttentionCase{Descriptor(128, 1, 4), 520, 19, 300, 22},
        AttentionCase{Descriptor(128, 1, 1), 530, 70, 64, 23},
        AttentionCase{Descriptor(64, 1, 32), 258, 4, 64, 24},
        AttentionCase{Descriptor(256, 1, 1), 300, 100, 64, 25},
        AttentionCase{Descriptor(48, 1, 5), 290, 33, 64, 26},
        // More rows than a tile of blocks: runs of blocks, whole and cut at both ends, tiles that
        // end inside a block, a window that begins inside a run, soft caps, scattered tokens.
        AttentionCase{Descriptor(64, 2, 3), 90, 90, 300, 28},
        AttentionCase{Descriptor(64, 1, 1), 1300, 300, 64, 29},
        AttentionCase{Descriptor(128, 1, 4), 1100, 40, 1, 30},
        AttentionCase{Descriptor(128, 1, 8), 3000, 23, 500, 31},
        AttentionCase{Descriptor(64, 1, 4, 700), 2400, 70, 90, 32},
        AttentionCase{Descriptor(128, 1, 2, 130, 20.0f), 900, 100, 64, 33},
        AttentionCase{Descriptor(64, 1, 16), 5000, 9, 3000, 34},
        // A long one: a deep tree.
        AttentionCase{Descriptor(64, 1, 4), 5000, 1, 3000, 27}),
    [](const testing::TestParamInfo<AttentionCase>& tested) {
      const AttentionDescriptor& d = tested.param.descriptor;
      return "Dim" + std::to_string(d.head_dim) + "Heads" + std::to_string(d.kv_heads) + "Group" +
             std::to_string(d.group()) + "Tokens" + std::to_string(tested.param.tokens) +
             "Queries" + std::to_string(tested.param.queries) + "Window" + std::to_string(d.window);
    });

// K and V of a problem, token after token.
struct InOrder {
  explicit InOrder(const AttentionProblem& problem, uint32_t tokens)
      : head_stride(size_t{tokens} * problem.descriptor().head_dim),
        k(problem.descriptor().kv_heads * head_stride),
        v(k.size()) {
    const size_t width = problem.descriptor().head_dim;
    const std::vector<BFloat16> rows = problem.k_in_rows();
    size_t token = 0;
    for (const Extent& extent : problem.Item(0, 1, nullptr).extents) {
      for (uint32_t i = 0; i < extent.tokens; ++i, ++token) {
        for (size_t head = 0; head < problem.descriptor().kv_heads; ++head) {
          const size_t from = head * problem.kv().head_stride + (extent.first_slot + i) * width;
          const size_t to = head * head_stride + token * width;
          std::copy_n(rows.begin() + static_cast<ptrdiff_t>(from), width,
                      k.begin() + static_cast<ptrdiff_t>(to));
          std::copy_n(problem.kv().v + from, width, v.begin() + static_cast<ptrdiff_t>(to));
        }
      }
    }
  }

  size_t head_stride;
  std::vector<BFloat16> k;
  std::vector<BFloat16> v;
};

TEST_F(TensorAttentionTest, ExtentsDoNotShow) {
  constexpr uint32_t kLength = 700;
  for (const uint32_t run_max : {1u, 90u, 4096u}) {
    const AttentionProblem problem({.descriptor = Descriptor(64, 2, 4),
                                    .tokens = kLength,
                                    .queries = 20,
                                    .run_max = run_max,
                                    .seed = 31});
    const InOrder in_order(problem, kLength);
    const AttentionItem item = problem.Item(0, 20, nullptr);
    const std::vector<Extent> one = {{.first_slot = 0, .tokens = kLength}};

    const auto found =
        Attend(problem.descriptor(),
               {.k = DeviceTest::Upload(in_order.k),
                .v = DeviceTest::Upload(in_order.v),
                .head_stride = in_order.head_stride},
               {{.extents = one, .first_position = item.first_position, .query_tokens = 20}},
               {item.q, item.q + 20 * problem.descriptor().q_width()});

    EXPECT_EQ(Bits(found), Bits(Attend(problem, 0, 20))) << run_max;
  }
}

// Runs are shorter where there are more multiprocessors to be kept busy.
TEST_F(TensorAttentionTest, TheLengthOfRunsDoesNotShow) {
  const AttentionProblem problem({.descriptor = Descriptor(64, 1, 4),
                                  .tokens = 2900,
                                  .queries = 17,
                                  .run_max = 500,
                                  .seed = 36});
  const int multiprocessors = device_.multiprocessors;
  device_.multiprocessors = 1;
  const std::vector<uint16_t> expected = Bits(Attend(problem, 0, 17));
  for (const int more : {4, 16, 64, 4096}) {
    device_.multiprocessors = more;
    EXPECT_EQ(Bits(Attend(problem, 0, 17)), expected) << more << " multiprocessors";
  }
  device_.multiprocessors = multiprocessors;
}

// Decode rows with a prompt's chunk, whose tiles make the thread blocks larger; in two orders.
TEST_F(TensorAttentionTest, SequencesOfAStepDoNotDisturbEachOther) {
  const AttentionDescriptor d = Descriptor(80, 1, 4);
  const AttentionProblem problem(
      {.descriptor = d, .tokens = 600, .queries = 50, .run_max = 90, .seed = 32});
  const std::vector<BFloat16> expected = Attend(problem, 0, 50);
  const KvView kv = Upload(problem);
  const AttentionItem item = problem.Item(0, 50, nullptr);
  // A row's position in the step, as (first query, queries).
  const std::vector<std::pair<uint32_t, uint32_t>> orders[] = {{{7, 1}, {0, 50}, {49, 1}, {3, 2}},
                                                               {{49, 1}, {3, 2}, {20, 9}, {7, 1}}};
  for (const auto& order : orders) {
    std::vector<StepItem> items;
    std::vector<BFloat16> q;
    std::vector<BFloat16> wanted;
    for (const auto& [first, count] : order) {
      items.push_back({.extents = item.extents,
                       .first_position = item.first_position + first,
                       .query_tokens = count});
      const size_t begin = first * d.q_width();
      const size_t end = begin + count * d.q_width();
      q.insert(q.end(), item.q + begin, item.q + end);
      wanted.insert(wanted.end(), expected.begin() + static_cast<ptrdiff_t>(begin),
                    expected.begin() + static_cast<ptrdiff_t>(end));
    }
    EXPECT_EQ(Bits(Attend(d, kv, items, q)), Bits(wanted));
  }
}

// What row invariance asks of the device itself: equal rows of a product have equal bits at every
// place of a tile.
TEST_F(TensorAttentionTest, EqualHeadsHaveEqualBits) {
  for (const uint32_t head_dim : {64u, 128u}) {
    const AttentionDescriptor d = Descriptor(head_dim, 1, 64);
    const AttentionProblem problem({.descriptor = d, .tokens = 513, .run_max = 1024, .seed = 33});
    const AttentionItem item = problem.Item(0, 1, nullptr);
    std::vector<BFloat16> q;
    for (uint32_t head = 0; head < d.query_heads; ++head) {
      q.insert(q.end(), item.q, item.q + head_dim);
    }

    const auto found = Attend(
        d, Upload(problem), {{.extents = item.extents, .first_position = item.first_position}}, q);

    const auto end = found.begin() + head_dim;
    for (uint32_t head = 1; head < d.query_heads; ++head) {
      const auto first = found.begin() + static_cast<ptrdiff_t>(size_t{head} * head_dim);
      EXPECT_EQ(Bits({first, first + head_dim}), Bits({found.begin(), end})) << head;
    }
  }
}

TEST_F(TensorAttentionTest, HoldersOfPartsContinueOneTree) {
  const AttentionDescriptor d = Descriptor(64, 1, 5);
  const AttentionProblem problem({.descriptor = d, .tokens = 1700, .run_max = 90, .seed = 34});
  const std::vector<BFloat16> expected = Attend(problem, 0, 1);
  const InOrder in_order(problem, 1700);
  const AttentionItem item = problem.Item(0, 1, nullptr);
  const KvView kv = {.k = DeviceTest::Upload(in_order.k),
                     .v = DeviceTest::Upload(in_order.v),
                     .head_stride = in_order.head_stride};
  const BFloat16* q = DeviceTest::Upload(std::vector<BFloat16>(item.q, item.q + d.q_width()));
  constexpr uint32_t kCut = 3 * kBlockTokens;
  std::vector<PartialStack> stacks(d.query_heads, PartialStack(d.head_dim));
  for (const uint32_t begin : {0u, kCut}) {
    const uint32_t end = begin == 0 ? kCut : 1700;
    const std::vector<Extent> extents = {{.first_slot = begin, .tokens = end - begin}};
    AttendPart(d, kv, q, {.extents = extents, .held_token = begin, .first_position = end - 1},
               stacks);
  }

  ExpectFolded(stacks, expected);
}

// Infinities in tokens that no row of a tile sees: after the query, and outside the window.
TEST_F(TensorAttentionTest, TokensThatNobodySeesDoNotShow) {
  const AttentionDescriptor d = Descriptor(64, 1, 4, 60);
  const AttentionProblem problem(
      {.descriptor = d, .tokens = 300, .queries = 40, .run_max = 300, .seed = 35});
  InOrder in_order(problem, 300);
  const AttentionItem item = problem.Item(0, 40, nullptr);
  const std::vector<Extent> one = {{.first_slot = 0, .tokens = 300}};
  const auto attend = [&] {
    return Attend(d,
                  {.k = DeviceTest::Upload(in_order.k),
                   .v = DeviceTest::Upload(in_order.v),
                   .head_stride = in_order.head_stride},
                  {{.extents = one, .first_position = 270}},
                  {item.q + 10 * d.q_width(), item.q + 11 * d.q_width()});
  };
  const std::vector<BFloat16> expected = attend();

  for (const size_t token : {size_t{271}, size_t{299}, size_t{210}, size_t{3}}) {
    for (size_t i = 0; i < d.head_dim; ++i) {
      in_order.k[token * d.head_dim + i] = ToBFloat16(INFINITY);
      in_order.v[token * d.head_dim + i] = ToBFloat16(-INFINITY);
    }
  }

  EXPECT_EQ(Bits(attend()), Bits(expected));
  in_order.v[270 * d.head_dim] = ToBFloat16(INFINITY);
  EXPECT_FALSE(std::isfinite(ToFloat(attend()[0]))) << "its own token";
}

TEST_F(TensorAttentionTest, RefusesShapesThatItCannotDo) {
  const auto create = [&](const AttentionDescriptor& descriptor) {
    return CudaAttention::Create(
               {.descriptor = descriptor, .arithmetic = AttentionArithmetic::kTensor}, device_,
               *arena_, *pinned_, stream())
        .status()
        .code();
  };

  EXPECT_EQ(create(Descriptor(72, 1, 1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(Descriptor(272, 1, 1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(Descriptor(64, 1, 65)), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::kernels::cuda
