// SPDX-License-Identifier: Apache-2.0
//
// A step of an executor alone, for tests of where its weights come from.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "common/clock.h"
#include "compute_node/slice_executor.h"

namespace lamina::compute_node {

// Asks as the worker does, and returns the logits. Attention is stood in for by what the buffers
// hold, which begins as zeros.
inline std::vector<float> RunStep(SliceExecutor& executor) {
  constexpr size_t kRows = 5;
  EXPECT_TRUE(executor.Prepare(kRows).ok());
  ValueBuffers buffers = *executor.MakeBuffers(kRows);
  ValueBuffers tail = *executor.head().MakeBuffers();
  const std::vector<uint32_t> ids = {3, 80, 1, 44, 9};
  const std::vector<uint32_t> positions = {0, 7, 2, 30, 4};
  EXPECT_TRUE(executor.SetRows({ids, positions}, buffers).ok());
  const auto await = [&](uint32_t slice) {
    const Nanos deadline = RealClock().Now() + Seconds(60);  // Only a failure waits for it.
    auto wait = executor.weight_source().Ask(slice);
    while (wait.ok() && !wait->here && RealClock().Now() < deadline) {
      wait = executor.weight_source().Ask(slice);
    }
    EXPECT_TRUE(wait.ok() && wait->here) << wait.status();
    EXPECT_TRUE(executor.Prepare(kRows).ok());
  };
  for (uint32_t slice = 0; slice + 1 < executor.slice_count(); ++slice) {
    await(slice);
    executor.RunBeforeSend(slice, buffers);
    executor.RunAfterSend(slice, buffers);
    executor.weight_source().Release(slice);
  }
  await(executor.slice_count() - 1);
  std::vector<uint32_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  executor.head().Begin(buffers, all, tail);
  for (size_t column = 0; column < executor.head().width();) {
    column = executor.head().Run(kRows, column, tail);
  }
  executor.weight_source().Release(executor.slice_count() - 1);
  EXPECT_TRUE(executor.head().LogitsToHost(all, tail).ok());
  const auto logits = executor.head().Logits(kRows, tail);
  return {logits.row(0), logits.row(0) + kRows * logits.cols};
}

}  // namespace lamina::compute_node
