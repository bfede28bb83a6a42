// SPDX-License-Identifier: Apache-2.0
#include "compute_node/own_slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <variant>
#include <vector>

#include "tests/unit/compute_node/part_of_model.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

using ::testing::ElementsAre;

constexpr size_t kRows = 3;

// How many calls of the device's ops are made in each of `runs` slices, and in the end of a step;
// the head's chunks, in which the runner has no part, do not count.
class OpCounter {
 public:
  OpCounter(SliceExecutor& executor, const SliceRange& range)
      : executor_(executor), slices_(executor, range) {
    executor.SetBetweenOps([this] { ++ops_; });
    EXPECT_TRUE(slices_.Prepare(kRows).ok());
    EXPECT_TRUE(slices_.SetRows(kRows).ok());
  }
  ~OpCounter() { executor_.SetBetweenOps(nullptr); }

  std::vector<size_t> Slices(size_t runs) {
    std::vector<size_t> counts;
    for (size_t run = 0; run < runs; ++run) {
      ops_ = 0;
      EXPECT_TRUE(slices_.RunNext().ok());
      counts.push_back(ops_);
    }
    return counts;
  }
  size_t Tail() {
    ops_ = 0;
    EXPECT_TRUE(slices_.RunTail().ok());
    return ops_;
  }

 private:
  SliceExecutor& executor_;
  size_t ops_ = 0;
  OwnSlices slices_;
};

// Calls that a step of a model without shards makes in a slice, and in its end.
class PlainStep {
 public:
  explicit PlainStep(SliceExecutor& executor) : executor_(executor) {
    buffers_ = *executor.MakeBuffers(kRows);
    tail_ = *executor.head().MakeBuffers();
  }

  size_t Slice(uint32_t slice) {
    return CallsIn([&] {
      executor_.RunBeforeSend(slice, buffers_);
      executor_.RunAfterSend(slice, buffers_);
    });
  }
  size_t Tail() {
    return CallsIn([&] { executor_.head().Begin(buffers_, {0, 1, 2}, tail_); });
  }

 private:
  size_t CallsIn(const std::function<void()>& run) {
    const std::vector<uint32_t> zeros(kRows, 0);
    EXPECT_TRUE(executor_.SetRows({.token_ids = zeros, .positions = zeros}, buffers_).ok());
    size_t calls = 0;
    executor_.SetBetweenOps([&calls] { ++calls; });
    run();
    executor_.SetBetweenOps(nullptr);
    return calls;
  }

  SliceExecutor& executor_;
  ValueBuffers buffers_;
  ValueBuffers tail_;
};

// Calls of a shard's slice: its ops besides the sums, and besides the activations of gates, which
// are in one call with what makes these.
size_t OpsOf(const SliceExecutor& executor, uint32_t slice) {
  size_t ops = executor.program().split().slices[slice].ops.size();
  const size_t end = executor.OpsEnd(slice);
  for (size_t reduce = executor.NextReduce(slice, 0); reduce < end;
       reduce = executor.NextReduce(slice, reduce + 1)) {
    --ops;
  }
  for (const model::OpId op : executor.program().split().slices[slice].ops) {
    const auto* const activation =
        std::get_if<model::ActivationOp>(&executor.program().graph().ops[op].body);
    if (activation != nullptr && activation->gated) {
      --ops;
    }
  }
  return ops;
}

// Four layers, the first of which is slice 0's: nothing but q, k and v.
test_support::RandomModelSpec FourLayers() {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 4;
  spec.ffn_width = 256;  // A shard's activations are wider than what their gates are made from.
  return spec;
}

TEST(OwnSlicesTest, AWholeModelRunsAllButTheFirstInTurn) {
  PartOfModel part(FourLayers(), {.layers = 4});
  PlainStep plain(part.executor());
  const std::vector<size_t> expected = {plain.Slice(1), plain.Slice(2), plain.Slice(3),
                                        plain.Slice(1)};
  const size_t tail = plain.Tail();
  OpCounter counter(part.executor(), {});
  EXPECT_EQ(counter.Slices(4), expected);
  EXPECT_EQ(counter.Tail(), tail);
}

TEST(OwnSlicesTest, AStageRunsTheSlicesOfItsLayers) {
  PartOfModel first(FourLayers(), {.layers = 2});
  const size_t one = PlainStep(first.executor()).Slice(1);
  OpCounter counter(first.executor(), {.end = 2, .tail = false, .head = false});
  EXPECT_THAT(counter.Slices(2), ElementsAre(one, one));

  PartOfModel alone(FourLayers(), {.layers = 1});
  const size_t zero = PlainStep(alone.executor()).Slice(0);
  EXPECT_LT(zero, one);
  OpCounter least(alone.executor(), {.end = 1, .tail = false, .head = false});
  EXPECT_THAT(least.Slices(1), ElementsAre(zero)) << "it has no other";

  PartOfModel last(FourLayers(), {.first_layer = 2, .layers = 2});
  PlainStep plain(last.executor());
  const std::vector<size_t> expected = {plain.Slice(2), plain.Slice(3), plain.Slice(2)};
  const size_t tail = plain.Tail();
  OpCounter both(last.executor(), {.first = 2, .end = 4});
  EXPECT_EQ(both.Slices(3), expected);
  EXPECT_EQ(both.Tail(), tail);
}

// Both run the last MLP, and the one with the LM head what comes behind it.
TEST(OwnSlicesTest, AShardRunsItsPartOfEachSliceAndOneOfThemTheHead) {
  for (const uint32_t index : {0u, 1u}) {
    PartOfModel part(FourLayers(), {.layers = 4, .shard = {.index = index}}, /*shards=*/2);
    SliceExecutor& executor = part.executor();
    ASSERT_TRUE(executor.reduces());
    OpCounter counter(executor, {.head = index == 0, .shards = 2});
    EXPECT_THAT(counter.Slices(2), ElementsAre(OpsOf(executor, 1), OpsOf(executor, 2)));
    const OpRange tail = executor.program().Tail();
    const size_t body = OpsOf(executor, 4) - (tail.end - tail.from);
    EXPECT_EQ(counter.Tail(), index == 0 ? OpsOf(executor, 4) - 1 : body);
    EXPECT_GT(body, 0u);
  }
}

}  // namespace
}  // namespace lamina::compute_node
