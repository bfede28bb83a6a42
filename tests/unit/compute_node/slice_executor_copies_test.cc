// SPDX-License-Identifier: Apache-2.0
//
// What the executor copies between device and host, and from row to row: all that is read, and no
// more.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

// Queries of a prompt's rows attend on the device.
TEST(SliceCopiesTest, OfPromptRowsKAndVAloneComeToTheHost) {
  Program program(Spec("llama"), DType::kBF16);
  SliceExecutor& executor = program.executor();
  ASSERT_TRUE(executor.Prepare(8).ok());
  constexpr size_t kRows = 6;
  for (const size_t whole : {0, 2, 6}) {
    ValueBuffers buffers = *executor.MakeBuffers(8);
    std::vector<uint32_t> ids(kRows, 3);
    std::vector<uint32_t> positions(kRows);
    std::iota(positions.begin(), positions.end(), 0);
    ASSERT_TRUE(executor.SetRows({ids, positions}, buffers).ok());
    executor.RunBeforeSend(0, buffers);
    const auto on_device = executor.DeviceQkvRows(0, kRows, buffers);
    std::vector<BFloat16> made(kRows * on_device.cols);
    executor.device().Copy(made.data(), on_device.row(0), made.size() * sizeof(BFloat16));
    ASSERT_TRUE(executor.device().Synchronize().ok());
    const auto on_host = executor.QkvRows(0, kRows, buffers);
    if (!executor.device().is_host()) {
      std::fill_n(on_host.row(0), made.size(), BFloat16{.bits = 0xffff});
    }

    ASSERT_TRUE(executor.QkvToHost(0, kRows, whole, buffers).ok());

    const size_t q_width = executor.attention(0).descriptor.q_width();
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = 0; i < on_host.cols; ++i) {
        const bool copied = executor.device().is_host() || row < whole || i >= q_width;
        ASSERT_EQ(on_host.row(row)[i].bits, copied ? made[row * on_host.cols + i].bits : 0xffff)
            << "row " << row << " column " << i << " of " << whole << " whole rows";
      }
    }
  }
}

// The rows of a step that are sampled, with gaps and forks, have the logits that they have alone.
TEST(SliceCopiesTest, TheTailTakesTheRowsThatAreChosen) {
  Program program(Spec("llama"), DType::kBF16);
  SliceExecutor& executor = program.executor();
  ASSERT_TRUE(executor.Prepare(8).ok());
  ValueBuffers buffers = *executor.MakeBuffers(8);
  ValueBuffers tail = *executor.head().MakeBuffers();
  const std::vector<uint32_t> ids = {5, 9, 1, 77, 32, 8, 20, 54};
  std::vector<uint32_t> positions(8);
  std::iota(positions.begin(), positions.end(), 0);
  ASSERT_TRUE(executor.SetRows({ids, positions}, buffers).ok());
  for (uint32_t slice = 0; slice + 1 < executor.slice_count(); ++slice) {
    executor.RunBeforeSend(slice, buffers);
    executor.RunAfterSend(slice, buffers);
  }
  const auto logits_of = [&](const std::vector<uint32_t>& rows) {
    executor.head().Begin(buffers, rows, tail);
    for (size_t column = 0; column < executor.head().width();) {
      column = executor.head().Run(rows.size(), column, tail);
    }
    std::vector<uint32_t> all(rows.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_TRUE(executor.head().LogitsToHost(all, tail).ok());
    const auto logits = executor.head().Logits(rows.size(), tail);
    std::vector<std::vector<float>> found;
    for (size_t i = 0; i < rows.size(); ++i) {
      found.emplace_back(logits.row(i), logits.row(i) + logits.cols);
    }
    return found;
  };
  std::vector<std::vector<float>> alone;
  for (uint32_t row = 0; row < 8; ++row) {
    alone.push_back(logits_of({row})[0]);
  }
  EXPECT_NE(alone[0], alone[1]);

  for (const std::vector<uint32_t>& chosen :
       {std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}, {7}, {0, 2, 3, 3, 3, 4, 7}, {1, 1}}) {
    const std::vector<std::vector<float>> found = logits_of(chosen);
    for (size_t i = 0; i < chosen.size(); ++i) {
      EXPECT_EQ(found[i], alone[chosen[i]]) << "row " << chosen[i];
    }
  }
}

// Only those that are asked for: others keep what is there.
TEST(SliceCopiesTest, LogitsOfTheseRowsComeToTheHost) {
  Program program(Spec("llama"), DType::kBF16);
  SliceExecutor& executor = program.executor();
  ValueBuffers tail = *executor.head().MakeBuffers();
  const auto on_device = executor.head().DeviceLogits(6, tail);
  std::vector<float> made(6 * on_device.cols);
  std::iota(made.begin(), made.end(), 1.0f);
  executor.device().Copy(const_cast<float*>(on_device.row(0)), made.data(),
                         made.size() * sizeof(float));

  ASSERT_TRUE(executor.head().LogitsToHost({{1, 2, 5}}, tail).ok());

  const auto on_host = executor.head().Logits(6, tail);
  for (size_t row = 0; row < 6; ++row) {
    const bool copied = executor.device().is_host() || row == 1 || row == 2 || row == 5;
    EXPECT_EQ(on_host.row(row)[7], copied ? made[row * on_host.cols + 7] : 0.0f) << "row " << row;
  }
}

// Places that are read are written too.
TEST(SliceCopiesTest, KeptRowsMoveToTheFront) {
  Program program(Spec("llama"), DType::kBF16);
  SliceExecutor& executor = program.executor();
  constexpr size_t kRows = 12;
  const uint32_t before = executor.slice_count() - 2;
  for (const std::vector<uint32_t>& kept :
       {std::vector<uint32_t>{1, 2, 3, 4, 5, 9, 10, 11}, {0, 1, 2}, {0, 1, 3, 4, 5, 6}, {11}, {}}) {
    ValueBuffers buffers = *executor.MakeBuffers(kRows);
    const auto rows = executor.DeviceAttentionRows(before, kRows, buffers);
    std::vector<uint16_t> values(kRows * rows.cols);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<uint16_t>(i / rows.cols);
    }
    executor.device().Copy(rows.row(0), values.data(), values.size() * sizeof(uint16_t));
    ASSERT_TRUE(executor.device().Synchronize().ok());

    executor.KeepRows(kept, buffers);

    executor.device().Copy(values.data(), rows.row(0), values.size() * sizeof(uint16_t));
    ASSERT_TRUE(executor.device().Synchronize().ok());
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(values[i * rows.cols], kept[i]);
      EXPECT_EQ(values[(i + 1) * rows.cols - 1], kept[i]);
    }
  }
}

}  // namespace
}  // namespace lamina::compute_node
