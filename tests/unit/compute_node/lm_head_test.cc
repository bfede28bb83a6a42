// SPDX-License-Identifier: Apache-2.0
#include "compute_node/lm_head.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/compute_node/counting_device.h"
#include "tests/unit/compute_node/random_body.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

// The logits of these rows, where `columns` of the LM head run at once, and in how many chunks.
struct HeadRun {
  std::vector<float> logits;
  size_t chunks = 0;
};

HeadRun RunHead(Program& program, size_t columns, const std::vector<uint32_t>& rows,
                ValueBuffers& body) {
  SliceExecutor& executor = program.executor();
  const ModelWeights& weights = executor.weight_source().weights();
  const OpRunner runner(executor.program(), weights, executor.device().dense());
  const LmHead head(executor.program(), weights, runner, executor.device(), columns);
  ValueBuffers tail = *head.MakeBuffers();
  head.Begin(body, rows, tail);
  HeadRun run;
  for (size_t column = 0; column < head.width(); ++run.chunks) {
    column = head.Run(rows.size(), column, tail);
  }
  std::vector<uint32_t> all(rows.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_TRUE(head.LogitsToHost(all, tail).ok());
  const auto logits = head.Logits(rows.size(), tail);
  run.logits.assign(logits.row(0), logits.row(0) + rows.size() * logits.cols);
  return run;
}

TEST(LmHeadTest, InChunksItHasTheBitsOfTheWhole) {
  for (const char* type : {"llama", "opt", "gpt_neox_parallel"}) {
    for (const DType compute_type : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(absl::StrCat(type, " ", DTypeName(compute_type)));
      Program program(Spec(type), compute_type);
      ValueBuffers body = RandomBody(program, 9);
      for (const std::vector<uint32_t>& rows :
           {std::vector<uint32_t>{0}, {8}, {1, 2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
        const HeadRun whole = RunHead(program, /*columns=*/128, rows, body);
        const HeadRun chunks = RunHead(program, /*columns=*/64, rows, body);

        EXPECT_EQ(whole.chunks, 1u);
        EXPECT_EQ(chunks.chunks, 2u);
        EXPECT_EQ(chunks.logits, whole.logits);
        EXPECT_NE(whole.logits.front(), whole.logits.back());
      }
    }
  }
}

TEST(LmHeadTest, ByDefaultAChunkIsAboutASliceOnTheProcessorAndAllElsewhere) {
  Program program(Spec("llama"), DType::kBF16);
  ValueBuffers body = RandomBody(program, 1);

  // A step of columns is more than this vocabulary.
  EXPECT_EQ(RunHead(program, /*columns=*/0, {0}, body).chunks, 1u);
}

TEST(LmHeadTest, LogitsOfRowsThatFollowEachOtherComeInOneCopy) {
  Program program(Spec("llama"), DType::kBF16);
  ThreadPool pool({});
  CountingDevice device(pool);
  const SliceProgram slices = *SliceProgram::Create(program.model().graph, DType::kBF16);
  const ModelWeights& weights = program.executor().weight_source().weights();
  const OpRunner runner(slices, weights, device.dense());
  const LmHead head(slices, weights, runner, device, 64);
  ValueBuffers tail = *head.MakeBuffers();
  const size_t row_bytes = head.width() * sizeof(float);

  ASSERT_TRUE(head.LogitsToHost({{0, 1, 4, 6, 7, 8}}, tail).ok());

  EXPECT_EQ(device.TakeCopies(), (std::vector<size_t>{2 * row_bytes, row_bytes, 3 * row_bytes}));
  EXPECT_EQ(device.synchronized(), 1);
  ASSERT_TRUE(head.LogitsToHost({}, tail).ok());  // Sampled on the device, which is awaited.
  EXPECT_TRUE(device.TakeCopies().empty());
  EXPECT_EQ(device.synchronized(), 2);
}

}  // namespace
}  // namespace lamina::compute_node
