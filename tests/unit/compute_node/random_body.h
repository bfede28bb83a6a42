// SPDX-License-Identifier: Apache-2.0
//
// RandomBody: buffers in which the last slice finds what it reads, for tests of what runs there.

#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "common/philox.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {

// What the last slice reads, drawn at random.
inline ValueBuffers RandomBody(Program& program, size_t rows) {
  SliceExecutor& executor = program.executor();
  EXPECT_TRUE(executor.Prepare(rows).ok());
  ValueBuffers body = *executor.MakeBuffers(rows);
  Prng random(7);
  for (const model::ValueId value : executor.program().tail_inputs()) {
    const size_t count = rows * executor.program().Width(value);
    std::vector<float> floats(count);
    std::vector<BFloat16> halves(count);
    for (size_t i = 0; i < count; ++i) {
      floats[i] = static_cast<float>(random.Below(2000)) / 1000.0f - 1.0f;
      halves[i] = ToBFloat16(floats[i]);
    }
    const bool is_float = executor.program().TypeOf(value) == DType::kF32;
    executor.device().Copy(body.data(value),
                           is_float ? static_cast<const void*>(floats.data()) : halves.data(),
                           rows * executor.program().RowBytes(value));
    EXPECT_TRUE(executor.device().Synchronize().ok());
  }
  return body;
}

}  // namespace lamina::compute_node
