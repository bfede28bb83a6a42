// SPDX-License-Identifier: Apache-2.0
#include "compute_node/slice_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "compute_node/slice_slots.h"
#include "model/shard.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

// With one of two shards' reductions, or whole.
model::Graph GraphOf(const char* type, bool shard) {
  const Program program(Spec(type), DType::kBF16);
  if (!shard) {
    return program.model().graph;
  }
  const auto widths = model::ShardWidthsOf(program.model().graph);
  EXPECT_TRUE(widths.ok()) << widths.status();
  const auto graph = model::ShardGraph(program.model().graph, {.index = 0,
                                                               .count = 2,
                                                               .first_head = 0,
                                                               .heads = widths->heads / 2,
                                                               .first_column = 0,
                                                               .columns = widths->columns / 2});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *graph;
}

SliceProgram ProgramOf(const model::Graph& graph) {
  auto program = SliceProgram::Create(graph, DType::kBF16);
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

bool IsReduce(const model::Graph& graph, model::OpId op) {
  return std::holds_alternative<model::ReduceOp>(graph.ops[op].body);
}

class SliceProgramTest : public ::testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  const model::Graph graph_ = GraphOf(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const SliceProgram program_ = ProgramOf(graph_);
};

TEST_P(SliceProgramTest, RangesAndTailRunEveryOpOnceButAttentionsAndReductions) {
  std::vector<int> runs(graph_.ops.size(), 0);
  const auto run = [&](const OpRange& range) {
    EXPECT_LT(range.from, range.end);
    for (const model::OpId op : program_.OpsIn(range)) {
      EXPECT_FALSE(IsReduce(graph_, op)) << graph_.ops[op].name;
      ++runs[op];
    }
  };
  for (const OpRange& range : program_.Ranges()) {
    run(range);
  }
  run(program_.Tail());

  for (model::OpId op = 0; op < graph_.ops.size(); ++op) {
    const bool runs_elsewhere =
        IsReduce(graph_, op) || std::holds_alternative<model::AttentionOp>(graph_.ops[op].body);
    EXPECT_EQ(runs[op], runs_elsewhere ? 0 : 1) << graph_.ops[op].name;
  }
}

// As the worker goes through a slice.
TEST_P(SliceProgramTest, ReductionsAreMetOneAfterTheOther) {
  size_t met = 0;
  for (uint32_t slice = 0; slice < program_.slice_count(); ++slice) {
    const size_t end = program_.OpsEnd(slice);
    for (size_t at = program_.NextReduce(slice, 0); at < end;
         at = program_.NextReduce(slice, at + 1)) {
      EXPECT_TRUE(program_.IsPart(program_.OpAt(slice, at).inputs[0]));
      ++met;
    }
    EXPECT_EQ(program_.NextReduce(slice, end), end);
  }
  size_t there = 0;
  for (model::OpId op = 0; op < graph_.ops.size(); ++op) {
    there += IsReduce(graph_, op);
  }
  EXPECT_EQ(met, there);
  EXPECT_EQ(program_.reduces(), there > 0);
  EXPECT_EQ(program_.PartRowBytesMax() > 0, there > 0);
}

TEST_P(SliceProgramTest, TheTailReadsWhatTheBodyKeeps) {
  std::vector<bool> made(graph_.values.size(), false);
  for (const model::ValueId value : program_.tail_inputs()) {
    made[value] = true;
  }
  for (const model::OpId op : program_.OpsIn(program_.Tail())) {
    for (const model::ValueId input : graph_.ops[op].inputs) {
      EXPECT_TRUE(made[input]) << graph_.values[input].name;
    }
    made[graph_.ops[op].output] = true;
  }
  EXPECT_TRUE(made[graph_.logits]);
  EXPECT_EQ(graph_.ops[program_.head()].output, graph_.logits);
  const ValueSlots body = BodySlots(program_, /*parts_elsewhere=*/false);
  std::vector<uint32_t> kept;
  for (const model::ValueId value : program_.tail_inputs()) {
    kept.push_back(body.slot[value]);
  }
  std::sort(kept.begin(), kept.end());
  EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end());
}

TEST_P(SliceProgramTest, PartsThatLieElsewhereHaveNoSlots) {
  const ValueSlots here = BodySlots(program_, /*parts_elsewhere=*/false);
  const ValueSlots elsewhere = BodySlots(program_, /*parts_elsewhere=*/true);
  for (model::ValueId value = 0; value < graph_.values.size(); ++value) {
    if (program_.IsPart(value)) {
      EXPECT_NE(here.slot[value], model::kNone);
      EXPECT_EQ(elsewhere.slot[value], model::kNone);
    }
  }
}

// What is read in another call than the one that makes it, or by others, is there for all rows.
TEST_P(SliceProgramTest, ATileIsEnoughOfWhatOneRangeMakesAndReads) {
  const std::vector<SlotRows> rows = RowsOfValues(program_);
  ASSERT_EQ(rows.size(), graph_.values.size());
  std::vector<size_t> run_by(graph_.ops.size(), SIZE_MAX);
  const std::vector<OpRange> ranges = program_.Ranges();
  for (size_t range = 0; range < ranges.size(); ++range) {
    for (const model::OpId op : program_.OpsIn(ranges[range])) {
      run_by[op] = range;
    }
  }
  for (model::OpId op = 0; op < graph_.ops.size(); ++op) {
    for (const model::ValueId input : graph_.ops[op].inputs) {
      if (rows[input] == SlotRows::kTile) {
        EXPECT_NE(run_by[op], SIZE_MAX) << graph_.ops[op].name;
        EXPECT_EQ(run_by[op], run_by[graph_.values[input].producer]) << graph_.ops[op].name;
      }
    }
    const bool activates = std::holds_alternative<model::ActivationOp>(graph_.ops[op].body);
    if (activates && run_by[op] != SIZE_MAX) {  // Nothing is wider than what it reads.
      EXPECT_EQ(rows[graph_.ops[op].inputs[0]], SlotRows::kTile) << graph_.ops[op].name;
      EXPECT_EQ(rows[graph_.ops[op].output], SlotRows::kTile) << graph_.ops[op].name;
    }
  }
  for (model::ValueId value = 0; value < rows.size(); ++value) {
    if (program_.Crosses(value) || program_.IsPart(value)) {
      EXPECT_EQ(rows[value], SlotRows::kStep) << graph_.values[value].name;
    }
  }
  for (uint32_t slice = 0; slice + 1 < program_.slice_count(); ++slice) {
    if (const model::ValueId input = KvInputOf(program_, slice); input != model::kNone) {
      EXPECT_EQ(rows[input], SlotRows::kStep) << graph_.values[input].name;
    }
  }
}

TEST_P(SliceProgramTest, NoSlotIsOfATileAndOfAStep) {
  const std::vector<SlotRows> rows = RowsOfValues(program_);
  const ValueSlots slots = BodySlots(program_, /*parts_elsewhere=*/true, rows);
  size_t tiles = 0;
  for (model::ValueId value = 0; value < rows.size(); ++value) {
    const uint32_t slot = slots.slot[value];
    if (slot != model::kNone && slots.rows[slot] == SlotRows::kTile) {
      EXPECT_EQ(rows[value], SlotRows::kTile) << graph_.values[value].name;
      ++tiles;
    }
  }
  EXPECT_GT(tiles, 0u);
}

TEST_P(SliceProgramTest, WithoutTheHeadNoOpBehindTheLastReductionIsNeeded) {
  const uint32_t end = program_.slice_count();
  const size_t tail = program_.OpsIn(program_.Tail()).size();

  EXPECT_EQ(program_.OpsOf(0, end).size(), program_.OpsOf(0, end, /*head=*/false).size() + tail);
  EXPECT_EQ(program_.OpsOf(0, end - 1).size(), program_.OpsOf(0, end - 1, /*head=*/false).size());
}

INSTANTIATE_TEST_SUITE_P(Models, SliceProgramTest,
                         ::testing::Combine(::testing::Values("llama", "opt", "gpt_neox_parallel",
                                                              "gpt_neox_sequential"),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param),
                                               std::get<1>(test.param) ? "_shard" : "");
                         });

TEST(SliceProgramErrorTest, AModelWithoutAttentionIsRefused) {
  model::GraphBuilder builder;
  const model::WeightId table = builder.AddWeight({.name = "embed", .rows = 96, .cols = 64});
  const model::WeightId gain = builder.AddWeight({.name = "gain", .rows = 1, .cols = 64});
  const model::ValueId embedded = builder.Embed("embed", table, 64);
  const model::ValueId normed = builder.Norm("norm", embedded, {.weight = gain});
  const auto graph = std::move(builder).Finish(builder.Linear("head", normed, {{.weight = table}}));
  ASSERT_TRUE(graph.ok()) << graph.status();

  const auto program = SliceProgram::Create(*graph, DType::kBF16);

  EXPECT_EQ(program.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(program.status().message(), "the model has no attention");
}

TEST(SliceProgramErrorTest, AReductionOverlappedWithTheAttentionIsNotServed) {
  model::Graph graph = GraphOf("gpt_neox_parallel", /*shard=*/false);
  const SliceProgram whole = ProgramOf(graph);
  model::OpId overlapped = model::kNone;
  for (const model::OpId op : whole.OpsIn(whole.AfterSend(1))) {
    overlapped = std::holds_alternative<model::AddOp>(graph.ops[op].body) ? op : overlapped;
  }
  ASSERT_NE(overlapped, model::kNone);
  graph.ops[overlapped].body = model::ReduceOp{};
  graph.ops[overlapped].inputs.resize(1);  // The residual stream, which is as wide as the sum.

  const auto program = SliceProgram::Create(graph, DType::kBF16);

  EXPECT_EQ(program.status().code(), absl::StatusCode::kUnimplemented) << program.status();
}

}  // namespace
}  // namespace lamina::compute_node
