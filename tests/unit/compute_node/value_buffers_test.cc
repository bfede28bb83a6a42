// SPDX-License-Identifier: Apache-2.0
//
// The memory of a batch on a device that is not the host: where values lie, and which copies bring
// them from one side to the other. The numbers of copies are promises: each costs a launch.

#include "compute_node/value_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <variant>

#include "compute_node/slice_slots.h"
#include "tests/unit/compute_node/counting_device.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

constexpr size_t kRows = 12;

class ValueBuffersTest : public ::testing::Test {
 protected:
  size_t RowBytes() const { return program_.RowBytes(qkv_); }
  // Row i of the value becomes i + 1 in each byte.
  void Fill(std::byte* at) const {
    for (size_t i = 0; i < kRows * RowBytes(); ++i) {
      at[i] = static_cast<std::byte>(i / RowBytes() + 1);
    }
  }
  int ByteAt(const std::byte* at, size_t row, size_t byte = 0) const {
    return static_cast<int>(at[row * RowBytes() + byte]);
  }

  Program model_{Spec("llama"), DType::kBF16};
  ThreadPool pool_{{}};
  CountingDevice device_{pool_};
  const SliceProgram program_ = *SliceProgram::Create(model_.model().graph, DType::kBF16);
  const model::ValueId qkv_ = program_.Qkv(1);
  ValueBuffers buffers_ = *ValueBuffers::Make(program_, BodySlots(program_, false), kRows, device_);
};

TEST_F(ValueBuffersTest, WhatTheHostSeesAloneHasACopyThere) {
  const model::Graph& graph = model_.model().graph;
  const std::vector<absl::Span<std::byte>> copies = buffers_.Allocations();
  EXPECT_LT(copies.size(), buffers_.DeviceAllocations().size());
  for (model::ValueId value = 0; value < graph.values.size(); ++value) {
    if (program_.Crosses(value) && value != graph.logits) {  // Logits are the tail's.
      const std::byte* at = buffers_.host(value);
      EXPECT_NE(at, buffers_.data(value));
      EXPECT_TRUE(std::any_of(copies.begin(), copies.end(),
                              [&](const auto& bytes) { return bytes.data() == at; }));
    }
  }
}

TEST_F(ValueBuffersTest, RowsComeToTheHostAndGoBackInOneCopyEach) {
  Fill(buffers_.data(qkv_));

  buffers_.ToHost(qkv_, 3, 4);

  EXPECT_EQ(device_.TakeCopies(), std::vector<size_t>{4 * RowBytes()});
  EXPECT_EQ(ByteAt(buffers_.host(qkv_), 2), 0);
  EXPECT_EQ(ByteAt(buffers_.host(qkv_), 3), 4);
  EXPECT_EQ(ByteAt(buffers_.host(qkv_), 6), 7);
  EXPECT_EQ(ByteAt(buffers_.host(qkv_), 7), 0);

  std::fill_n(buffers_.host(qkv_), kRows * RowBytes(), std::byte{99});
  buffers_.ToDevice(qkv_, 4, 1);

  EXPECT_EQ(device_.TakeCopies(), std::vector<size_t>{RowBytes()});
  EXPECT_EQ(ByteAt(buffers_.data(qkv_), 3), 4);
  EXPECT_EQ(ByteAt(buffers_.data(qkv_), 4), 99);
  EXPECT_EQ(ByteAt(buffers_.data(qkv_), 5), 6);
}

TEST_F(ValueBuffersTest, ColumnsComeInOneCopyOfAllRows) {
  Fill(buffers_.data(qkv_));

  buffers_.ColumnsToHost(qkv_, RowBytes() - 8, 2, 3);

  EXPECT_EQ(device_.TakeCopies(), std::vector<size_t>{3 * 8});
  for (size_t row = 0; row < kRows; ++row) {
    const bool copied = 2 <= row && row < 5;
    EXPECT_EQ(ByteAt(buffers_.host(qkv_), row, RowBytes() - 9), 0);
    EXPECT_EQ(ByteAt(buffers_.host(qkv_), row, RowBytes() - 8),
              copied ? static_cast<int>(row) + 1 : 0);
  }
}

TEST_F(ValueBuffersTest, RowsThatFollowEachOtherAreGatheredInOneCopy) {
  ValueBuffers to = *ValueBuffers::Make(program_, BodySlots(program_, false), kRows, device_);
  Fill(buffers_.data(qkv_));

  buffers_.Gather(qkv_, {{1, 2, 3, 7, 7, 8}}, to);

  EXPECT_EQ(device_.TakeCopies(),
            (std::vector<size_t>{3 * RowBytes(), RowBytes(), 2 * RowBytes()}));
  const int expected[] = {2, 3, 4, 8, 8, 9, 0};
  for (size_t row = 0; row < std::size(expected); ++row) {
    EXPECT_EQ(ByteAt(to.data(qkv_), row), expected[row]);
  }
}

TEST_F(ValueBuffersTest, RowsThatStandWhereTheyBelongAreNotCopied) {
  Fill(buffers_.data(qkv_));

  buffers_.Gather(qkv_, {{0, 1, 2, 5, 6, 7, 8, 9}}, buffers_);

  // They move up by two rows, so two at once do not overlap.
  EXPECT_EQ(device_.TakeCopies(),
            (std::vector<size_t>{2 * RowBytes(), 2 * RowBytes(), RowBytes()}));
  const int expected[] = {1, 2, 3, 6, 7, 8, 9, 10};
  for (size_t row = 0; row < std::size(expected); ++row) {
    EXPECT_EQ(ByteAt(buffers_.data(qkv_), row), expected[row]);
  }
}

TEST_F(ValueBuffersTest, TilesFollowEachOtherAndValuesBeginWithTheirFirstRow) {
  constexpr size_t kTile = 5;
  const std::vector<SlotRows> rows = RowsOfValues(program_);
  ValueBuffers buffers =
      *ValueBuffers::Make(program_, BodySlots(program_, false, rows), kRows, device_, kTile);
  const auto of_tile = static_cast<model::ValueId>(
      std::find(rows.begin(), rows.end(), SlotRows::kTile) - rows.begin());
  ASSERT_LT(of_tile, rows.size());
  std::vector<uint32_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), 0);
  for (const size_t count : {kRows, kTile, size_t{1}}) {
    const auto some = absl::MakeConstSpan(ids).first(count);
    ASSERT_TRUE(buffers.SetRows({.token_ids = some, .positions = some}).ok());
    const RowInputs all = buffers.rows();
    const std::byte* const first = buffers.data(qkv_);
    const std::byte* const tile = buffers.data(of_tile);
    size_t seen = 0;
    buffers.InTiles([&] {
      EXPECT_LE(buffers.rows().positions.size(), kTile);
      EXPECT_EQ(buffers.rows().token_ids.data(), all.token_ids.data() + seen);
      EXPECT_EQ(buffers.rows().positions.data(), all.positions.data() + seen);
      EXPECT_EQ(buffers.rows().slots.data(), all.slots.data() + seen);
      EXPECT_EQ(buffers.data(qkv_), first + seen * RowBytes());
      EXPECT_EQ(buffers.data(of_tile), tile);
      seen += buffers.rows().positions.size();
    });
    EXPECT_EQ(seen, count);
    EXPECT_EQ(buffers.rows().positions.size(), count);
  }
}

TEST_F(ValueBuffersTest, IdsAndPositionsGoToTheDeviceInOneCopy) {
  const std::vector<uint32_t> ids = {4, 5, 6};
  const std::vector<uint32_t> positions = {7, 8, 9};

  ASSERT_TRUE(buffers_.SetRows({ids, positions}).ok());

  EXPECT_EQ(device_.TakeCopies(), std::vector<size_t>{2 * 3 * sizeof(uint32_t)});
  EXPECT_EQ(buffers_.rows().token_ids, absl::MakeConstSpan(ids));
  EXPECT_EQ(buffers_.rows().positions, absl::MakeConstSpan(positions));
  EXPECT_NE(buffers_.rows().token_ids.data(), ids.data());
}

// The place that they are copied from is written again.
TEST_F(ValueBuffersTest, TheNextRowsWaitForTheCopyOfTheLastUnlessTheyHaveRun) {
  const std::vector<uint32_t> ids = {4};
  ASSERT_TRUE(buffers_.SetRows({ids, ids}).ok());
  EXPECT_EQ(device_.synchronized(), 0);
  ASSERT_TRUE(buffers_.SetRows({ids, ids}).ok());
  EXPECT_EQ(device_.synchronized(), 1);

  buffers_.NoteRun();
  ASSERT_TRUE(buffers_.SetRows({ids, ids}).ok());
  EXPECT_EQ(device_.synchronized(), 1);

  ASSERT_TRUE(buffers_.Settle().ok());
  ASSERT_TRUE(buffers_.SetRows({ids, ids}).ok());
  EXPECT_EQ(device_.synchronized(), 2);
}

TEST_F(ValueBuffersTest, RowsBehindThoseOfAStepAreTokenZeroAtPositionZero) {
  ASSERT_TRUE(buffers_.captured()
                  .Capture({.ranges = program_.Ranges(),
                            .rows_max = 8,
                            .rows_limit = kRows,
                            .has_weights = [](const OpRange&) { return true; },
                            .run = [](const OpRange&, size_t) {}},
                           device_)
                  .ok());
  const std::vector<uint32_t> before(8, 77);
  ASSERT_TRUE(buffers_.SetRows({before, before}).ok());
  const std::vector<uint32_t> ids = {4, 5, 6};

  ASSERT_TRUE(buffers_.SetRows({ids, ids}).ok());

  EXPECT_EQ(buffers_.rows().token_ids.size(), 3u);
  const uint32_t* const on_device = buffers_.rows().token_ids.data();
  EXPECT_EQ(on_device[2], 6u);
  EXPECT_EQ(on_device[3], 0u);
  EXPECT_EQ(on_device[4], 77u);  // Runs compute four rows, and leave the fifth alone.
}

TEST_F(ValueBuffersTest, RowsOfOneValueAreStoredBySlotsAndNoneBeforeTheyAreSet) {
  BFloat16 k = {};
  BFloat16 v = {};
  const ValueStore store = {.value = qkv_, .kv_heads = 2, .planes = {&k, &v, 64}};
  EXPECT_EQ(buffers_.StoreOf(qkv_), nullptr);

  buffers_.StoreInto({&store, 1});
  buffers_.SetRowCount(kRows);

  EXPECT_EQ(buffers_.StoreOf(program_.Qkv(0)), nullptr);
  const kernels::KvRowStore* found = buffers_.StoreOf(qkv_);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->kv_heads, 2u);
  EXPECT_EQ(found->k, &k);
  EXPECT_EQ(found->v, &v);
  EXPECT_EQ(found->head_stride, 64u);
  EXPECT_EQ(found->slots, absl::MakeConstSpan(std::vector<uint32_t>(kRows, kernels::kNoSlot)));

  const std::vector<uint32_t> ids = {4, 5, 6};
  const std::vector<uint32_t> slots = {9, kernels::kNoSlot, 0};
  device_.TakeCopies();
  ASSERT_TRUE(buffers_.SetRows({ids, ids, slots}).ok());

  EXPECT_EQ(device_.TakeCopies(), std::vector<size_t>{3 * 3 * sizeof(uint32_t)});
  EXPECT_EQ(buffers_.StoreOf(qkv_)->slots, absl::MakeConstSpan(slots));

  ASSERT_TRUE(buffers_.SetRows({ids, ids}).ok());

  EXPECT_EQ(buffers_.StoreOf(qkv_)->slots,
            absl::MakeConstSpan(std::vector<uint32_t>(3, kernels::kNoSlot)));
}

TEST_F(ValueBuffersTest, AttentionOutputsOfTheComputeTypeAreReadWhereTheyLie) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const SliceProgram program = *SliceProgram::Create(model_.model().graph, type);
    ValueBuffers buffers = *ValueBuffers::Make(program, BodySlots(program, false), kRows, device_);
    size_t conversions = 0;
    for (const model::OpId id : program.OpsIn(program.BeforeSend(1))) {
      const model::Op& op = program.graph().ops[id];
      if (std::holds_alternative<model::ConvertOp>(op.body)) {
        EXPECT_EQ(op.inputs[0], program.AttentionOutput(0));
        EXPECT_EQ(buffers.data(op.output) == buffers.data(op.inputs[0]), type == DType::kBF16);
        ++conversions;
      }
    }
    EXPECT_EQ(conversions, 1u);
  }
}

TEST_F(ValueBuffersTest, RowsBehindThoseOfAStepAreNotStored) {
  const ValueStore store = {.value = qkv_};
  buffers_.StoreInto({&store, 1});
  ASSERT_TRUE(buffers_.captured()
                  .Capture({.ranges = program_.Ranges(),
                            .rows_max = 8,
                            .rows_limit = kRows,
                            .has_weights = [](const OpRange&) { return true; },
                            .run = [](const OpRange&, size_t) {}},
                           device_)
                  .ok());
  const std::vector<uint32_t> before(8, 7);
  ASSERT_TRUE(buffers_.SetRows({before, before, before}).ok());
  const std::vector<uint32_t> ids = {4, 5, 6};

  ASSERT_TRUE(buffers_.SetRows({ids, ids, ids}).ok());

  const uint32_t* const on_device = buffers_.StoreOf(qkv_)->slots.data();
  EXPECT_EQ(on_device[2], 6u);
  EXPECT_EQ(on_device[3], kernels::kNoSlot);
  EXPECT_EQ(on_device[4], 7u);  // Runs compute four rows, and leave the fifth alone.
}

}  // namespace
}  // namespace lamina::compute_node
