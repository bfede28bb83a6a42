// SPDX-License-Identifier: Apache-2.0
//
// Rows of sequences with open blocks, token by token, in runs, and as prompts' chunks: the same
// bits.
#include "kernels/int8_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/kv_form.h"
#include "kernels/compute_device.h"
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"

namespace lamina::kernels {
namespace {

constexpr uint32_t kTokens = 300;
constexpr uint32_t kSequences = 3;
constexpr uint32_t kSlots = 1200;

AttentionDescriptor Layer(uint32_t window) {
  return {.query_heads = 6,
          .kv_heads = 2,
          .head_dim = 48,
          .scale = 1.0f / std::sqrt(48.0f),
          .window = window};
}

class Int8RunsTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  Int8RunsTest() {
    std::normal_distribution<float> normal;
    for (std::vector<BFloat16>& rows : rows_) {
      rows.resize(size_t{kTokens} * layer_.qkv_width());
      std::generate(rows.begin(), rows.end(), [&] { return ToBFloat16(normal(random_)); });
    }
    // Runs of the sequences take turns, and none begins with a tile.
    uint32_t slot = 3;
    for (uint32_t token = 0; token < kTokens; token += 30) {
      for (std::vector<Extent>& slots : slots_) {
        slots.push_back({.first_slot = slot, .tokens = 30});
        slot += 31;
      }
    }
  }

  std::unique_ptr<KvDevice> Make(const AttentionKernel& kernel) {
    auto device = CpuKvDevices(kernel, pool_)({.layers = {layer_},
                                               .slots = kSequences * kInt8BlockTokens,
                                               .context_tokens_max = kTokens,
                                               .items_max = kSequences,
                                               .query_tokens_max = kTokens,
                                               .store_tokens_max = kTokens,
                                               .int8_slots = kSlots});
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }

  // A run of rows of the sequence, over these heads alone.
  Int8Run RunOf(uint32_t sequence, uint32_t first, uint32_t tokens, HeadRange heads) {
    const size_t width = layer_.qkv_width();
    const BFloat16* row = rows_[sequence].data() + first * width;
    const size_t kv = size_t{heads.first} * layer_.head_dim;
    const size_t q = kv * layer_.group();
    return {.slots = slots_[sequence],
            .tail_slot = (kSequences - 1 - sequence) * kInt8BlockTokens,
            .first_token = first,
            .tokens = tokens,
            .k = row + layer_.q_width() + kv,
            .v = row + layer_.q_width() + layer_.kv_width() + kv,
            .kv_stride = width,
            .q = row + q,
            .q_stride = width,
            .out = out_[sequence].data() + first * layer_.q_width() + q,
            .out_stride = layer_.q_width()};
  }

  using Outputs = std::vector<std::vector<uint16_t>>;

  void Forget() {
    for (std::vector<BFloat16>& out : out_) {
      out.assign(size_t{kTokens} * layer_.q_width(), BFloat16{0x1234});
    }
  }
  Outputs Found() const {
    Outputs found;
    for (const std::vector<BFloat16>& out : out_) {
      found.emplace_back();
      for (const BFloat16 x : out) {
        found.back().push_back(x.bits);
      }
    }
    return found;
  }

  // Plain loops, token by token.
  Outputs Expected() {
    Forget();
    const std::unique_ptr<KvDevice> device = Make(ReferenceAttention());
    Int8Runs runs;
    for (uint32_t token = 0; token < kTokens; ++token) {
      for (uint32_t sequence = 0; sequence < kSequences; ++sequence) {
        const Int8Run run = RunOf(sequence, token, 1, AllHeads(layer_));
        EXPECT_TRUE(runs.Run(*device, 0, AllHeads(layer_), {&run, 1}).ok());
      }
    }
    return Found();
  }

  const AttentionDescriptor layer_ = Layer(GetParam());
  ThreadPool pool_{{.threads = 2}};
  std::mt19937 random_{5};
  std::vector<BFloat16> rows_[kSequences];  // [tokens, q | k | v]
  std::vector<Extent> slots_[kSequences];
  std::vector<BFloat16> out_[kSequences];
};

TEST_P(Int8RunsTest, OfAnyLengthsHaveTheBitsOfSingleTokens) {
  const Outputs expected = Expected();
  for (const uint32_t most : {1u, 20u, 64u, 200u}) {
    SCOPED_TRACE(most);
    Forget();
    const std::unique_ptr<KvDevice> device = Make(CpuAttention());
    EXPECT_EQ(device->slots(), kSlots);
    Int8Runs together;
    uint32_t done[kSequences] = {};
    while (*std::min_element(done, done + kSequences) < kTokens) {
      uint32_t tokens[kSequences];
      for (uint32_t i = 0; i < kSequences; ++i) {
        tokens[i] = std::min(kTokens - done[i], 1 + static_cast<uint32_t>(random_() % most));
      }
      for (const HeadRange heads : {HeadRange{1, 1}, HeadRange{0, 1}}) {
        std::vector<Int8Run> runs;
        for (uint32_t i = 0; i < kSequences; ++i) {
          if (tokens[i] > 0) {
            runs.push_back(RunOf(i, done[i], tokens[i], heads));
          }
        }
        ASSERT_TRUE(together.Run(*device, 0, heads, runs).ok());
      }
      for (uint32_t i = 0; i < kSequences; ++i) {
        done[i] += tokens[i];
      }
    }
    EXPECT_EQ(Found(), expected);
  }
}

TEST_P(Int8RunsTest, ChunksOfPromptsHaveTheBitsOfSingleTokens) {
  const Outputs expected = Expected();
  const std::unique_ptr<ComputeDevice> device =
      MakeCpuComputeDevice(nullptr, CpuAttention(), pool_);
  for (const uint32_t tokens : {kTokens, 70u, 17u}) {
    SCOPED_TRACE(tokens);
    Forget();
    auto chunks = device->MakeChunkAttention({.layers = {layer_},
                                              .slots = kTokens + 5,
                                              .context_tokens_max = kTokens,
                                              .query_tokens_max = tokens,
                                              .int8 = true});
    ASSERT_TRUE(chunks.ok()) << chunks.status();
    EXPECT_GE((*chunks)->bytes(), (KvSlotBytes({&layer_, 1}, KvForm::kInt8) +
                                   KvSlotBytes({&layer_, 1}, KvForm::kBF16)) *
                                      kTokens);
    for (uint32_t first = 0; first < kTokens; first += tokens) {
      const uint32_t count = std::min(tokens, kTokens - first);
      const ChunkItem item = {.sequence = {.first_slot = 5, .tokens = first + count},
                              .first_position = first,
                              .tokens = count};
      const size_t width = layer_.qkv_width();
      const MatrixView<BFloat16> qkv = {
          .data = rows_[1].data() + first * width, .rows = count, .cols = width, .stride = width};
      const size_t q_width = layer_.q_width();
      const MatrixView<BFloat16> out = {.data = out_[1].data() + first * q_width,
                                        .rows = count,
                                        .cols = q_width,
                                        .stride = q_width};
      ASSERT_TRUE((*chunks)->Attend(0, {&item, 1}, qkv, out).ok());
    }
    EXPECT_EQ(Found()[1], expected[1]);
  }
}

// K and V of the others are stored, and their blocks closed, all the same.
TEST_P(Int8RunsTest, TokensWhoseOutputsNobodyReadsDoNotAttend) {
  const std::vector<uint16_t> expected = Expected()[1];
  Forget();
  const std::vector<uint16_t> untouched = Found()[1];
  const std::unique_ptr<KvDevice> device = Make(CpuAttention());
  Int8Runs runs;
  for (const uint32_t first : {0u, 150u}) {  // 70 to 149, and all of the second run but 20.
    Int8Run run = RunOf(1, first, 150, AllHeads(layer_));
    run.read_from = first == 0 ? 70 : 20;
    ASSERT_TRUE(runs.Run(*device, 0, AllHeads(layer_), {&run, 1}).ok());
  }
  Int8Run none = RunOf(2, 0, kTokens, AllHeads(layer_));
  none.read = 0;
  ASSERT_TRUE(runs.Run(*device, 0, AllHeads(layer_), {&none, 1}).ok());

  const Outputs found = Found();
  EXPECT_EQ(found[2], untouched);
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t token = i / layer_.q_width();
    const bool is_read = (token >= 70 && token < 150) || token >= 170;
    ASSERT_EQ(found[1][i], is_read ? expected[i] : untouched[i]) << "token " << token;
  }
}

TEST_P(Int8RunsTest, TokensOfChunksWhoseOutputsNobodyReadsDoNotAttend) {
  const std::vector<uint16_t> expected = Expected()[1];
  Forget();
  const std::vector<uint16_t> untouched = Found()[1];
  const std::unique_ptr<ComputeDevice> device =
      MakeCpuComputeDevice(nullptr, CpuAttention(), pool_);
  auto chunks = device->MakeChunkAttention({.layers = {layer_},
                                            .slots = kTokens,
                                            .context_tokens_max = kTokens,
                                            .query_tokens_max = 100,
                                            .int8 = true});
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  // Three chunks have 60 to 69, over a border of blocks, none, and 270 to 299 read.
  constexpr uint32_t kReadFrom[] = {60, 0, 70};
  constexpr uint32_t kRead[] = {10, 0, 100};
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    const uint32_t first = chunk * 100;
    const ChunkItem item{.sequence = {.first_slot = 0, .tokens = first + 100},
                         .first_position = first,
                         .tokens = 100,
                         .read_from = kReadFrom[chunk],
                         .read = kRead[chunk]};
    const MatrixView<BFloat16> qkv =
        Packed(rows_[1].data() + first * layer_.qkv_width(), 100, layer_.qkv_width());
    const MatrixView<BFloat16> out =
        Packed(out_[1].data() + first * layer_.q_width(), 100, layer_.q_width());
    ASSERT_TRUE((*chunks)->Attend(0, {&item, 1}, qkv, out).ok());
  }

  const std::vector<uint16_t> found = Found()[1];
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t token = i / layer_.q_width();
    const bool is_read = (token >= 60 && token < 70) || token >= 270;
    ASSERT_EQ(found[i], is_read ? expected[i] : untouched[i]) << "token " << token;
  }
}

// Closed blocks elsewhere: wherever their slots lie, and tile by tile, they are what they were.
TEST_P(Int8RunsTest, ClosedBlocksThatAreLoadedAreAttendedWithTheSameBits) {
  constexpr uint32_t kClosed = kTokens / kInt8BlockTokens * kInt8BlockTokens;
  Forget();
  const std::unique_ptr<KvDevice> device = Make(CpuAttention());
  const Int8Run all = RunOf(1, 0, kTokens, AllHeads(layer_));
  Int8Runs runs;
  ASSERT_TRUE(runs.Run(*device, 0, AllHeads(layer_), {&all, 1}).ok());
  const Outputs expected = Found();

  Int8Arena arena = Int8Arena::Create({{layer_}}, kClosed).value();
  KvArena tail = KvArena::Create({{layer_}}, kInt8BlockTokens).value();
  const Extent open{.first_slot = all.tail_slot, .tokens = kInt8BlockTokens};
  for (uint32_t head = 0; head < layer_.kv_heads; ++head) {
    for (uint32_t first = 0; first < kClosed; first += 16) {
      ASSERT_TRUE(
          device->reads()->LoadClosed(0, head, slots_[1], first, 16, arena.View(0, head)).ok());
    }
    ASSERT_TRUE(device->reads()
                    ->Load(0, head, {&open, 1}, 0, kTokens - kClosed,
                           tail.k(0) + head * tail.head_stride(0),
                           tail.v(0) + head * tail.head_stride(0))
                    .ok());
  }
  Forget();
  const Extent whole{.first_slot = 0, .tokens = kClosed};
  const Int8Run last = RunOf(1, kTokens - 1, 1, AllHeads(layer_));
  const AttentionItem item{.extents = {&whole, 1},
                           .first_position = kTokens - 1,
                           .q = last.q,
                           .q_stride = last.q_stride,
                           .out = last.out,
                           .out_stride = last.out_stride,
                           .int8_tokens = kClosed};
  const Int8View int8 = arena.View(0);
  KvView view = tail.View(0);
  view.int8 = &int8;
  const auto scratch = ReferenceAttention().MakeScratch(layer_, 1, kTokens, 1);
  ReferenceAttention().Attend(layer_, view, {&item, 1}, *scratch, pool_);
  const size_t row = (kTokens - 1) * layer_.q_width();
  EXPECT_TRUE(std::equal(expected[1].begin() + row, expected[1].end(), Found()[1].begin() + row));
}

INSTANTIATE_TEST_SUITE_P(Windows, Int8RunsTest, ::testing::Values(0u, 100u), [](const auto& test) {
  return test.param == 0 ? std::string("None") : std::string("Some");
});

}  // namespace
}  // namespace lamina::kernels
