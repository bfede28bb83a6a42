// SPDX-License-Identifier: Apache-2.0
//
// Canonical attention on the device against the reference, bit for bit: both have one arithmetic.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/partial.h"
#include "tests/unit/kernels/cuda/attention_device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

class CudaAttentionTest : public AttentionDeviceTest,
                          public testing::WithParamInterface<AttentionCase> {
 protected:
  CudaAttentionTest() : AttentionDeviceTest(AttentionArithmetic::kCanonical) {}
};

TEST_P(CudaAttentionTest, HasTheBitsOfTheReference) {
  const AttentionProblem problem(GetParam());
  ThreadPool pool({.threads = 1});

  const std::vector<BFloat16> expected = problem.Attend(ReferenceAttention(), pool);

  // Whether a warp has a block of tokens or four have depends on how many there are for the device.
  for (const int multiprocessors : {0, 1 << 20}) {
    device_.multiprocessors = multiprocessors;
    EXPECT_EQ(Bits(Attend(problem, 0, GetParam().queries)), Bits(expected)) << multiprocessors;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAttentionTest,
    testing::Values(
        // Head sizes, with their own code and without; tokens around the borders of blocks.
        AttentionCase{Descriptor(64, 3, 3), 1, 1, 64, 1},
        AttentionCase{Descriptor(64, 1, 1), 255, 1, 1024, 2},
        AttentionCase{Descriptor(128, 2, 4), 256, 1, 1024, 3},
        AttentionCase{Descriptor(128, 1, 8), 257, 1, 100, 4},
        AttentionCase{Descriptor(256, 1, 2), 700, 1, 33, 5},
        AttentionCase{Descriptor(96, 2, 1), 513, 1, 7, 6},
        AttentionCase{Descriptor(16, 2, 2), 300, 1, 1024, 7},
        AttentionCase{Descriptor(80, 1, 5), 129, 1, 50, 8},
        AttentionCase{Descriptor(112, 1, 7), 1000, 1, 400, 9},
        AttentionCase{Descriptor(192, 1, 3), 400, 1, 1024, 10},
        AttentionCase{Descriptor(240, 1, 1), 260, 1, 1024, 11},
        // Many heads to one KV head; every token an extent of its own.
        AttentionCase{Descriptor(64, 1, 32), 300, 1, 1, 12},
        AttentionCase{Descriptor(128, 1, 16), 270, 1, 1, 13},
        AttentionCase{Descriptor(256, 1, 20), 300, 1, 90, 13},
        AttentionCase{Descriptor(96, 1, 7), 515, 1, 200, 13},
        AttentionCase{Descriptor(128, 2, 2), 290, 1, 1, 13},
        // Windows, of one token, across a border, longer than the sequence.
        AttentionCase{Descriptor(64, 2, 2, 1), 600, 1, 300, 14},
        AttentionCase{Descriptor(64, 2, 2, 100), 550, 1, 300, 15},
        AttentionCase{Descriptor(64, 1, 2, 5000), 550, 1, 300, 16},
        AttentionCase{Descriptor(64, 1, 2, 300), 2600, 1, 300, 17},
        // Soft cap.
        AttentionCase{Descriptor(64, 1, 4, 0, 30.0f), 333, 1, 300, 18},
        AttentionCase{Descriptor(256, 1, 8, 77, 30.0f), 512, 1, 300, 18},
        // Sinks.
        AttentionCase{WithSinks(Descriptor(64, 2, 4)), 334, 1, 300, 18},
        AttentionCase{WithSinks(Descriptor(32, 1, 8, 128)), 901, 3, 300, 18},
        // Queries of length over 1: tiles that end inside, at and behind blocks.
        AttentionCase{Descriptor(64, 2, 3), 40, 40, 300, 19},
        AttentionCase{Descriptor(128, 1, 4), 520, 19, 300, 20},
        AttentionCase{Descriptor(64, 1, 1), 530, 64, 64, 21},
        AttentionCase{Descriptor(64, 1, 32), 258, 4, 64, 22},
        AttentionCase{Descriptor(64, 1, 2, 130), 600, 48, 64, 23},
        // A long one: a deep tree.
        AttentionCase{Descriptor(64, 1, 1), 9000, 1, 3000, 24}),
    [](const testing::TestParamInfo<AttentionCase>& tested) {
      const AttentionDescriptor& d = tested.param.descriptor;
      return "Dim" + std::to_string(d.head_dim) + "Heads" + std::to_string(d.kv_heads) + "Group" +
             std::to_string(d.group()) + "Tokens" + std::to_string(tested.param.tokens) +
             "Queries" + std::to_string(tested.param.queries) + "Window" + std::to_string(d.window);
    });

TEST_F(CudaAttentionTest, SequencesOfAStepDoNotDisturbEachOther) {
  const AttentionDescriptor d = Descriptor(64, 2, 2);
  const AttentionProblem problem(
      {.descriptor = d, .tokens = 700, .queries = 9, .run_max = 90, .seed = 31});
  ThreadPool pool({.threads = 1});
  const std::vector<BFloat16> expected = problem.Attend(ReferenceAttention(), pool);
  const AttentionItem item = problem.Item(0, 9, nullptr);
  const auto attention = MakeAttention(d);

  // One row each, with room between the rows of q and of the output.
  std::vector<StepItem> items;
  for (uint32_t i = 0; i < 9; ++i) {
    items.push_back({.extents = item.extents, .first_position = item.first_position + i});
  }
  ASSERT_TRUE(attention->LoadStep(items).ok());
  const size_t stride = d.q_width() + 8;
  std::vector<BFloat16> spread(9 * stride, BFloat16{0x7fc0});
  for (size_t i = 0; i < 9; ++i) {
    std::copy_n(item.q + i * d.q_width(), d.q_width(), spread.begin() + i * stride);
  }
  auto* out = Make<BFloat16>(9 * stride);
  ASSERT_TRUE(
      attention->Attend(d, Upload(problem), DeviceTest::Upload(spread), stride, out, stride).ok());

  const std::vector<BFloat16> got = Download(out, 9 * stride);
  for (size_t i = 0; i < 9; ++i) {
    const auto first = got.begin() + static_cast<ptrdiff_t>(i * stride);
    const auto wanted = expected.begin() + static_cast<ptrdiff_t>(i * d.q_width());
    EXPECT_EQ(Bits({first, first + d.q_width()}), Bits({wanted, wanted + d.q_width()})) << i;
    EXPECT_EQ(first[d.q_width()].bits, 0xffff) << "wrote between rows";
  }
}

TEST_F(CudaAttentionTest, HoldersOfPartsContinueOneTree) {
  const AttentionDescriptor d = Descriptor(64, 1, 3);
  const AttentionProblem problem({.descriptor = d, .tokens = 1700, .run_max = 90, .seed = 32});
  ThreadPool pool({.threads = 1});
  const std::vector<BFloat16> expected = problem.Attend(ReferenceAttention(), pool);
  const AttentionItem item = problem.Item(0, 1, nullptr);
  const KvView kv = Upload(problem);
  const BFloat16* q = DeviceTest::Upload(std::vector<BFloat16>(item.q, item.q + d.q_width()));
  constexpr uint32_t kCut = 3 * kBlockTokens;

  // Two holders: tokens before the cut, and from it on.
  std::vector<Extent> parts[2];
  uint32_t passed = 0;
  for (const Extent& extent : item.extents) {
    const uint32_t before = std::min(extent.tokens, kCut > passed ? kCut - passed : 0);
    if (before != 0) {
      parts[0].push_back({extent.first_slot, before});
    }
    if (before != extent.tokens) {
      parts[1].push_back({extent.first_slot + before, extent.tokens - before});
    }
    passed += extent.tokens;
  }
  std::vector<PartialStack> stacks(d.query_heads, PartialStack(d.head_dim));
  for (uint32_t part = 0; part < 2; ++part) {
    const StepItem step = {.extents = parts[part],
                           .held_token = part * kCut,
                           // The first holder's last token is not the query's.
                           .first_position = part == 0 ? kCut - 1 : item.first_position};
    AttendPart(d, kv, q, step, stacks);
  }

  ExpectFolded(stacks, expected);
}

TEST_F(CudaAttentionTest, BrokenTokensSpoilOnlyRowsThatSeeThem) {
  const AttentionDescriptor d = Descriptor(64, 1, 2);
  const AttentionProblem problem(
      {.descriptor = d, .tokens = 300, .queries = 40, .run_max = 300, .seed = 33});
  const size_t count = problem.kv().head_stride;
  std::vector<BFloat16> k(problem.kv().k, problem.kv().k + count);
  std::vector<BFloat16> k_in_rows = problem.k_in_rows();
  std::vector<BFloat16> v(problem.kv().v, problem.kv().v + count);
  const AttentionItem item = problem.Item(0, 40, nullptr);
  uint32_t token = 290;  // Query token 30.
  uint32_t slot = 0;
  for (const Extent& extent : item.extents) {
    if (token < extent.tokens) {
      slot = extent.first_slot + token;
      break;
    }
    token -= extent.tokens;
  }
  for (uint32_t i = 0; i < d.head_dim; ++i) {
    k[OffsetInTiles(slot, i, d.head_dim)] = ToBFloat16(INFINITY);
    k_in_rows[slot * d.head_dim + i] = ToBFloat16(INFINITY);
    v[slot * d.head_dim + i] = ToBFloat16(-INFINITY);
  }
  const KvView host = {.k = k.data(), .v = v.data(), .head_stride = count};
  const KvView kv = {
      .k = DeviceTest::Upload(k_in_rows), .v = DeviceTest::Upload(v), .head_stride = count};
  std::vector<BFloat16> expected(40 * d.q_width());
  AttentionItem reference = item;
  reference.out = expected.data();
  ThreadPool pool({.threads = 1});
  const auto scratch = ReferenceAttention().MakeScratch(d, 40, 300, 1);
  ReferenceAttention().Attend(d, host, {&reference, 1}, *scratch, pool);

  const auto attention = MakeAttention(d);
  ASSERT_TRUE(attention
                  ->LoadStep({{.extents = item.extents,
                               .first_position = item.first_position,
                               .query_tokens = 40}})
                  .ok());
  const BFloat16* q = DeviceTest::Upload(std::vector<BFloat16>(item.q, item.q + 40 * d.q_width()));
  auto* out = Make<BFloat16>(40 * d.q_width());
  ASSERT_TRUE(attention->Attend(d, kv, q, d.q_width(), out, d.q_width()).ok());

  EXPECT_EQ(Bits(Download(out, 40 * d.q_width())), Bits(expected));
}

TEST_F(CudaAttentionTest, StoresRowsIntoTheirSlots) {
  const AttentionDescriptor d = Descriptor(80, 3, 1);
  const size_t stride = d.qkv_width();
  constexpr uint32_t kSlots = 37;
  const std::vector<uint32_t> slots = {5, 6, 7, 0, 36, 20};
  std::vector<BFloat16> rows(slots.size() * stride);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = BFloat16{static_cast<uint16_t>(i)};
  }
  const size_t head_stride = size_t{kSlots} * d.head_dim;
  std::vector<BFloat16> k(d.kv_heads * head_stride, BFloat16{0xffff});
  std::vector<BFloat16> v = k;
  for (size_t i = 0; i < slots.size(); ++i) {
    // On devices K lies in rows, too.
    const BFloat16* row = rows.data() + i * stride + d.q_width();
    for (size_t head = 0; head < d.kv_heads; ++head, row += d.head_dim) {
      const size_t at = head * head_stride + slots[i] * d.head_dim;
      std::copy_n(row, d.head_dim, k.data() + at);
      std::copy_n(row + d.kv_width(), d.head_dim, v.data() + at);
    }
  }

  const BFloat16* from = DeviceTest::Upload(rows) + d.q_width();
  const uint32_t* places = DeviceTest::Upload(slots);
  auto* arena_k = Make<BFloat16>(k.size());
  auto* arena_v = Make<BFloat16>(v.size());
  const absl::Status status = StoreKv(d, from, from + d.kv_width(), stride, {places, slots.size()},
                                      arena_k, arena_v, head_stride, stream());

  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Bits(Download(arena_k, k.size())), Bits(k));
  EXPECT_EQ(Bits(Download(arena_v, v.size())), Bits(v));
}

TEST_F(CudaAttentionTest, RefusesShapesThatItCannotDo) {
  const auto create = [&](const AttentionDescriptor& descriptor) {
    return CudaAttention::Create({.descriptor = descriptor}, device_, *arena_, *pinned_, stream())
        .status()
        .code();
  };

  EXPECT_EQ(create(Descriptor(72, 1, 1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(Descriptor(272, 1, 1)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(Descriptor(64, 1, 33)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(create(Descriptor(64, 0, 1)), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaAttentionTest, AStepBeyondALimitIsRefusedAndTheLoadedOneStays) {
  const AttentionDescriptor d = Descriptor(64, 1, 1);
  const auto attention = MakeAttention(d, 4, 3);
  const std::vector<Extent> extents = {{0, 1024}};
  ASSERT_TRUE(attention->LoadStep({{.extents = extents, .first_position = 700}}).ok());

  const absl::Status rows =
      attention->LoadStep({{.extents = extents, .first_position = 0, .query_tokens = 5}});
  const absl::Status partials = attention->LoadStep({{.extents = extents, .first_position = 1000}});
  const absl::Status uncovered =
      attention->LoadStep({{.extents = extents, .first_position = 1024}});

  EXPECT_EQ(rows.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(partials.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(uncovered.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(attention->rows(), 1u);
}

}  // namespace
}  // namespace lamina::kernels::cuda
