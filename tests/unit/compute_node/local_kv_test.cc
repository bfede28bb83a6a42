// SPDX-License-Identifier: Apache-2.0
#include "compute_node/local_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "compute_node/local_path_maker.h"
#include "kernels/attention.h"
#include "kernels/compute_device.h"
#include "kernels/dense.h"
#include "kernels/kv_arena.h"

namespace lamina::compute_node {
namespace {

using ::testing::HasSubstr;

// K and V of whole sequences lie one behind the other in an arena of their own; attention over that
// by plain loops is what is expected.
class LocalKvTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kSlots = 700;
  static constexpr uint32_t kTokensMax = 400;  // A sequence has at most so many.

  LocalKvTest() {
    config_ = {
        .epoch = 1,
        .lanes = 2,
        .rows_max = 8,
        .chunk_tokens_max = 300,
        .sequence_tokens_max = kTokensMax,
        .layers = {{.query_heads = 6, .kv_heads = 2, .head_dim = 32, .scale = 0.2f},
                   {.query_heads = 3, .kv_heads = 1, .head_dim = 32, .scale = 0.3f, .window = 40}},
        .compute_nodes = {"c0"},
        .memory_nodes = {"c0"},
        .slots = {kSlots}};
    auto device = kernels::CpuKvDevices(kernels::CpuAttention(),
                                        pool_)(LocalKv::DeviceOptions(config_, stage_, /*node=*/0));
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    kv_ = std::make_unique<LocalKv>(config_, stage_, *device_);
    EXPECT_TRUE(kv_->Begin().ok());
    for (int i = 0; i < 3; ++i) {
      auto arena = kernels::KvArena::Create(config_.layers, kTokensMax);
      EXPECT_TRUE(arena.ok());
      expected_.push_back(*std::move(arena));
    }
  }

  // Runs the rows of a plan through both layers; `pieces` are (sequence, first token, tokens), as
  // the plan has them. Sequences are numbered from 1.
  void Step(const plan::StepPlan& plan, const std::vector<std::array<uint32_t, 3>>& pieces) {
    ASSERT_TRUE(kv_->Apply(plan).ok());
    kv_->BeginStep(plan.lane);
    uint32_t rows = 0;
    for (const auto& [sequence, first, tokens] : pieces) {
      ASSERT_TRUE(kv_->AddRows(plan.lane, sequence, rows, first, tokens).ok());
      rows += tokens;
    }
    for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
      const AttentionDescriptor& shape = config_.layers[layer];
      std::vector<BFloat16> qkv(rows * shape.qkv_width());
      for (BFloat16& x : qkv) {
        x = ToBFloat16(normal_(random_));
      }
      std::vector<BFloat16> out(rows * shape.q_width());
      std::vector<BFloat16> wanted(rows * shape.q_width());
      const auto qkv_rows = kernels::Packed(qkv.data(), rows, shape.qkv_width());
      const auto out_rows = kernels::Packed(out.data(), rows, shape.q_width());
      ASSERT_TRUE(kv_->Store(plan.lane, layer, qkv_rows).ok());
      const auto read = kv_->Attend(plan.lane, layer, qkv_rows, out_rows);
      ASSERT_TRUE(read.ok()) << read.status();
      uint64_t seen = 0;
      uint32_t row = 0;
      const auto scratch =
          kernels::ReferenceAttention().MakeScratch(shape, config_.chunk_tokens_max, kTokensMax, 1);
      for (const auto& [sequence, first, tokens] : pieces) {
        kernels::KvArena& arena = expected_[sequence - 1];
        const Extent own{.first_slot = first, .tokens = tokens};
        const Extent all{.first_slot = 0, .tokens = first + tokens};
        const BFloat16* k = qkv_rows.row(row) + shape.q_width();
        kernels::StoreKv(shape, k, k + shape.kv_width(), shape.qkv_width(), {&own, 1},
                         arena.k(layer), arena.v(layer), arena.head_stride(layer));
        const kernels::AttentionItem item{.extents = {&all, 1},
                                          .first_position = first,
                                          .query_tokens = tokens,
                                          .q = qkv_rows.row(row),
                                          .q_stride = shape.qkv_width(),
                                          .out = wanted.data() + row * shape.q_width(),
                                          .out_stride = shape.q_width()};
        kernels::ReferenceAttention().Attend(shape, arena.View(layer), {&item, 1}, *scratch, pool_);
        for (uint32_t token = 0; token < first + tokens; ++token) {  // By the first query or later.
          seen += shape.window == 0 || token + shape.window > first;
        }
        row += tokens;
      }
      EXPECT_EQ(std::memcmp(out.data(), wanted.data(), out.size() * sizeof(BFloat16)), 0);
      EXPECT_EQ(*read, seen * 2 * shape.kv_width() * sizeof(BFloat16));
    }
  }

  ThreadPool pool_{{.threads = 2}};
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_{0.0f, 1.0f};
  const plan::Stage stage_ = {.layers = 2};
  plan::EpochConfig config_;
  std::unique_ptr<kernels::KvDevice> device_;
  std::unique_ptr<LocalKv> kv_;
  std::vector<kernels::KvArena> expected_;  // By sequence.
};

// A prompt in two chunks over scattered slots, with another's, then rows with a chunk.
TEST_F(LocalKvTest, RowsAndChunksHaveTheBitsOfTheReference) {
  Step({.lane = 0,
        .joins = {{.id = 1}, {.id = 2}},
        .allocations = {{1, {0, 100}}, {1, {300, 170}}, {2, {120, 9}}},
        .chunks = {{.sequence = 1, .tokens = 130}, {.sequence = 2, .tokens = 9, .last = true}}},
       {{1, 0, 130}, {2, 0, 9}});
  Step({.lane = 0,
        .allocations = {{2, {200, 1}}},
        .rows = {{.sequence = 2, .position = 9}},
        .chunks = {{.sequence = 1, .first_token = 130, .tokens = 140, .last = true}}},
       {{2, 9, 1}, {1, 130, 140}});
  Step({.lane = 0,
        .allocations = {{2, {201, 1}}, {1, {470, 1}}},
        .rows = {{.sequence = 2, .position = 10}, {.sequence = 1, .position = 270}}},
       {{2, 10, 1}, {1, 270, 1}});
}

// A fork reads its parent's slots and writes its own.
TEST_F(LocalKvTest, SlotsMayBeShared) {
  Step({.lane = 1,
        .joins = {{.id = 1}},
        .allocations = {{1, {10, 50}}},
        .chunks = {{.sequence = 1, .tokens = 50, .last = true}}},
       {{1, 0, 50}});
  expected_[1] = std::move(expected_[0]);
  auto arena = kernels::KvArena::Create(config_.layers, kTokensMax);
  ASSERT_TRUE(arena.ok());
  expected_[0] = *std::move(arena);
  Step({.lane = 1,
        .leaves = {{1}},
        .joins = {{.id = 2}},
        .allocations = {{2, {10, 50}}, {2, {90, 1}}},
        .rows = {{.sequence = 2, .position = 50}}},
       {{2, 50, 1}});
}

// Rows of prompts that are neither sampled nor scored do not attend in the last layer.
TEST_F(LocalKvTest, TheLastLayerAttendsForRowsThatAreReadAlone) {
  Lane lane;
  lane.plan = {.lane = 0,
               .joins = {{.id = 1}, {.id = 2}, {.id = 3}},
               .allocations = {{1, {0, 1}}, {2, {20, 3}}, {3, {40, 4}}},
               .rows = {{.sequence = 1, .position = 0}}};
  lane.positions = {0, 0, 1, 2, 0, 1, 2, 3};
  lane.decode_rows = 1;
  lane.chunks = {{.plan = {.sequence = 2, .tokens = 3}, .first_row = 1},
                 {.plan = {.sequence = 3, .tokens = 4, .last = true}, .first_row = 4}};
  lane.tail = {{.row = 0, .sequence = 1}, {.row = 6, .sequence = 3}, {.row = 7, .sequence = 3}};
  ASSERT_TRUE(kv_->Apply(lane.plan).ok());
  ASSERT_TRUE(kv_->BeginStep(lane, {.decode = {0, 1}, .chunks = {0, 2}}).ok());
  const BFloat16 untouched = ToBFloat16(-77.0f);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const AttentionDescriptor& shape = config_.layers[layer];
    std::vector<BFloat16> qkv(8 * shape.qkv_width(), ToBFloat16(1.0f));
    std::vector<BFloat16> out(8 * shape.q_width(), untouched);
    const auto qkv_rows = kernels::Packed(qkv.data(), 8, shape.qkv_width());
    ASSERT_TRUE(kv_->Store(0, layer, qkv_rows).ok());
    const auto read =
        kv_->Attend(0, layer, qkv_rows, kernels::Packed(out.data(), 8, shape.q_width()));
    ASSERT_TRUE(read.ok()) << read.status();
    for (uint32_t row = 0; row < 8; ++row) {
      const bool attends = layer == 0 || row == 0 || row >= 6;
      EXPECT_EQ(ToFloat(out[row * shape.q_width()]), attends ? 1.0f : -77.0f)
          << "layer " << layer << " row " << row;
    }
    const uint64_t tokens = layer == 0 ? 1 + 3 + 4 : 1 + 4;
    EXPECT_EQ(*read, tokens * 2 * shape.kv_width() * sizeof(BFloat16));
  }
}

// Forks sample by the row of the sequence that they begin with. Rows of several tokens of a
// sequence that decodes are read each for itself.
TEST_F(LocalKvTest, RowsAreReadForSeveralSequencesOrForNone) {
  Lane lane;
  lane.plan = {.lane = 0,
               .joins = {{.id = 1}, {.id = 2}},
               .allocations = {{1, {0, 4}}, {2, {20, 3}}},
               .rows = {{.sequence = 1, .position = 0},
                        {.sequence = 1, .position = 1},
                        {.sequence = 1, .position = 2},
                        {.sequence = 1, .position = 3}}};
  lane.positions = {0, 1, 2, 3, 0, 1, 2};
  lane.decode_rows = 4;
  lane.chunks = {{.plan = {.sequence = 2, .tokens = 3}, .first_row = 4}};
  ASSERT_TRUE(kv_->Apply(lane.plan).ok());
  const AttentionDescriptor& shape = config_.layers[1];
  std::vector<BFloat16> qkv(7 * shape.qkv_width(), ToBFloat16(1.0f));
  const auto qkv_rows = kernels::Packed(qkv.data(), 7, shape.qkv_width());
  const std::vector<TailRow> several = {{.row = 1, .sequence = 1},
                                        {.row = 1, .sequence = 5},
                                        {.row = 2, .sequence = 1},
                                        {.row = 6, .sequence = 2},
                                        {.row = 6, .sequence = 6}};
  for (const std::vector<TailRow>& tail : {several, std::vector<TailRow>()}) {
    lane.tail = tail;
    ASSERT_TRUE(kv_->BeginStep(lane, {.decode = {0, 4}, .chunks = {0, 1}}).ok());
    std::vector<BFloat16> out(7 * shape.q_width(), ToBFloat16(-77.0f));
    ASSERT_TRUE(kv_->Store(0, 1, qkv_rows).ok());
    const auto read = kv_->Attend(0, 1, qkv_rows, kernels::Packed(out.data(), 7, shape.q_width()));
    ASSERT_TRUE(read.ok()) << read.status();
    for (uint32_t row = 0; row < 7; ++row) {
      const bool attends = !tail.empty() && (row == 1 || row == 2 || row == 6);
      EXPECT_EQ(ToFloat(out[row * shape.q_width()]), attends ? 1.0f : -77.0f) << "row " << row;
    }
    const uint64_t tokens = tail.empty() ? 0 : 3 + 3;
    EXPECT_EQ(*read, tokens * 2 * shape.kv_width() * sizeof(BFloat16));
  }
}

// The device holds K and V of its layers alone; the model's layers keep their numbers.
TEST_F(LocalKvTest, AStageHasItsLayersAlone) {
  const std::vector<AttentionDescriptor> all = config_.layers;
  config_.layers.insert(config_.layers.begin(), {.query_heads = 2, .kv_heads = 1, .head_dim = 64});
  const plan::Stage stage{.replica = 3, .first_layer = 1, .layers = 2};
  EXPECT_EQ(LocalKv::DeviceOptions(config_, stage, /*node=*/0).layers, all);
  LocalKv of_stage(config_, stage, *device_);
  ASSERT_TRUE(of_stage
                  .Apply({.joins = {{.id = 1, .tokens = {1, 2}, .memory_node = 3}},
                          .allocations = {{.sequence = 1,
                                           .extent = {.first_slot = 40, .tokens = 2},
                                           .memory_node = 3}}})
                  .ok());
  of_stage.BeginStep(0);
  ASSERT_TRUE(of_stage.AddRows(0, 1, /*first_row=*/0, /*first_token=*/0, /*tokens=*/2).ok());
  for (uint32_t layer = 0; layer < 2; ++layer) {
    const AttentionDescriptor& shape = all[layer];
    std::vector<BFloat16> qkv(2 * shape.qkv_width());
    for (BFloat16& x : qkv) {
      x = ToBFloat16(normal_(random_));
    }
    std::vector<BFloat16> out(2 * shape.q_width());
    const auto qkv_rows = kernels::Packed(qkv.data(), 2, shape.qkv_width());
    ASSERT_TRUE(of_stage.Store(0, layer + 1, qkv_rows).ok());
    ASSERT_TRUE(
        of_stage.Attend(0, layer + 1, qkv_rows, kernels::Packed(out.data(), 2, shape.q_width()))
            .ok());
    // The first token sees nothing but itself.
    const BFloat16* const v = qkv.data() + shape.q_width() + shape.kv_width();
    EXPECT_EQ(std::memcmp(out.data(), v, shape.head_dim * sizeof(BFloat16)), 0) << layer;
  }
}

TEST_F(LocalKvTest, APlanThatDoesNotFitIsRefused) {
  EXPECT_THAT(kv_->AddRows(0, 9, 0, 0, 1).ToString(), HasSubstr("sequence 9"));
  ASSERT_TRUE(kv_->Apply({.joins = {{.id = 1}}}).ok());
  EXPECT_THAT(kv_->AddRows(0, 1, 0, 0, 1).ToString(), HasSubstr("slots for 0"));
  EXPECT_THAT(kv_->Apply({.joins = {{.id = 2}}, .allocations = {{2, {kSlots - 1, 2}}}}).ToString(),
              HasSubstr("of an arena of 700"));
}

// What a node has room for does not depend on its place among the nodes of an epoch.
TEST(LocalPathMakerTest, EveryReplicaReservesSlotsOfItsOwn) {
  ThreadPool pool({.threads = 1});
  const std::unique_ptr<kernels::ComputeDevice> device = kernels::MakeCpuComputeDevice(
      kernels::MakeReferenceDense(DType::kBF16), kernels::CpuAttention(), pool);
  plan::EpochConfig config = {
      .epoch = 1,
      .lanes = 2,
      .rows_max = 8,
      .chunk_tokens_max = 16,
      .sequence_tokens_max = 64,
      .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32, .scale = 0.2f}},
      .compute_nodes = {"c0", "c1"},
      .memory_nodes = {"c0", "c1"},
      .slots = {128, 256}};
  LocalPathMaker first("c0", *device, /*holds_kv=*/true);
  LocalPathMaker second("c1", *device, /*holds_kv=*/true);

  ASSERT_TRUE(first.Reserve(config, {.replica = 0, .layers = 1}).ok());
  ASSERT_TRUE(second.Reserve(config, {.replica = 1, .layers = 1}).ok());

  EXPECT_THAT(first.Describe(), HasSubstr("slots 128 "));
  EXPECT_THAT(second.Describe(), HasSubstr("slots 256 "));

  // The first one leaves: what the other one holds stays.
  const uint64_t arena = second.kv_arena();
  config.epoch = 2;
  config.lanes = 1;
  config.compute_nodes = {"c1"};
  config.memory_nodes = {"c1"};
  config.slots = {256};
  ASSERT_TRUE(second.Reserve(config, {.replica = 0, .layers = 1}).ok());
  EXPECT_EQ(second.kv_arena(), arena);
}

TEST(LocalPathMakerTest, ReplicasInInt8ReserveSlotsOfTheirOwn) {
  const plan::EpochConfig config = {
      .epoch = 1,
      .rows_max = 8,
      .chunk_tokens_max = 16,
      .sequence_tokens_max = 64,
      .layers = {{.query_heads = 2, .kv_heads = 1, .head_dim = 32, .scale = 0.2f}},
      .compute_nodes = {"c0", "c1"},
      .int8_tails = 2,
      .memory_nodes = {"c0", "c1"},
      .slots = {128, 256}};

  EXPECT_EQ(LocalKv::DeviceOptions(config, {.layers = 1}, /*node=*/0).int8_slots, 128u);
  EXPECT_EQ(LocalKv::DeviceOptions(config, {.layers = 1}, /*node=*/1).int8_slots, 256u);
}

}  // namespace
}  // namespace lamina::compute_node
