// SPDX-License-Identifier: Apache-2.0
//
// Captured runs against runs op by op: the same bits, whatever lies behind the rows. On a device
// that captures nothing both are the same runs.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "common/philox.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

constexpr size_t kRowsMax = 12;     // For which runs are captured,
constexpr size_t kBufferRows = 20;  // and that there is room for.

// What a slice was seen to do.
struct Seen {
  std::vector<std::vector<uint16_t>> qkv;  // [slices]
  std::vector<float> logits;
  size_t replayed = 0;
  bool operator==(const Seen& other) const { return qkv == other.qkv && logits == other.logits; }
};

// Rows of one step in buffers of their own. Attention is stood in for by the query itself.
class StepRun {
 public:
  StepRun(SliceExecutor& executor, size_t rows, uint64_t seed, ValueBuffers& buffers)
      : executor_(executor), buffers_(buffers), tail_(*executor.head().MakeBuffers()) {
    Prng random(seed);
    for (size_t i = 0; i < rows; ++i) {
      ids_.push_back(static_cast<uint32_t>(random.Below(96)));
      positions_.push_back(static_cast<uint32_t>(random.Below(60)));
    }
    EXPECT_TRUE(executor_.SetRows({ids_, positions_}, buffers_).ok());
  }

  void RunSlice(uint32_t slice) {
    const size_t rows = ids_.size();
    seen_.replayed += executor_.RunBeforeSend(slice, buffers_);
    EXPECT_TRUE(executor_.QkvToHost(slice, rows, rows, buffers_).ok());
    const auto qkv = executor_.QkvRows(slice, rows, buffers_);
    const auto out = executor_.AttentionRows(slice, rows, buffers_);
    seen_.qkv.emplace_back();
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < qkv.cols; ++i) {
        seen_.qkv.back().push_back(qkv.row(row)[i].bits);
      }
      std::copy_n(qkv.row(row), out.cols, out.row(row));
    }
    executor_.AttentionToDevice(slice, 0, rows, buffers_);
    executor_.RunAfterSend(slice, buffers_);
  }

  Seen Finish() {
    const size_t rows = ids_.size();
    std::vector<uint32_t> all(rows);
    std::iota(all.begin(), all.end(), 0);
    executor_.head().Begin(buffers_, all, tail_);
    for (size_t column = 0; column < executor_.head().width();) {
      column = executor_.head().Run(rows, column, tail_);
    }
    EXPECT_TRUE(executor_.head().LogitsToHost(all, tail_).ok());
    const auto logits = executor_.head().Logits(rows, tail_);
    seen_.logits.assign(logits.row(0), logits.row(0) + rows * logits.cols);
    return seen_;
  }

 private:
  SliceExecutor& executor_;
  ValueBuffers& buffers_;
  ValueBuffers tail_;
  std::vector<uint32_t> ids_;
  std::vector<uint32_t> positions_;
  Seen seen_;
};

// All that the device has of the buffers becomes NaN.
void Poison(kernels::ComputeDevice& device, const ValueBuffers& buffers) {
  for (const absl::Span<std::byte> bytes : buffers.DeviceAllocations()) {
    const std::vector<std::byte> poison(bytes.size(), std::byte{0xff});
    device.Copy(bytes.data(), poison.data(), poison.size());
    EXPECT_TRUE(device.Synchronize().ok());
  }
}

Seen WholeStep(SliceExecutor& executor, size_t rows, uint64_t seed, ValueBuffers& buffers) {
  Poison(executor.device(), buffers);
  StepRun run(executor, rows, seed, buffers);
  for (uint32_t slice = 0; slice + 1 < executor.slice_count(); ++slice) {
    run.RunSlice(slice);
  }
  return run.Finish();
}

class SliceCaptureTest : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  ValueBuffers Captured() {
    ValueBuffers buffers = *executor().MakeBuffers(kBufferRows);
    const absl::Status captured = executor().Capture(kRowsMax, buffers);
    EXPECT_TRUE(captured.ok()) << captured;
    return buffers;
  }
  SliceExecutor& executor() { return program_.executor(); }
  size_t slices() { return executor().slice_count() - 1; }

  Program program_{Spec(std::get<0>(GetParam())), std::get<1>(GetParam())};
};

TEST_P(SliceCaptureTest, HasTheBitsOfOpsOneByOne) {
  EXPECT_TRUE(executor().Prepare(kBufferRows).ok());
  const bool captures = !executor().device().is_host();
  ValueBuffers plain = *executor().MakeBuffers(kBufferRows);
  ValueBuffers captured = Captured();
  EXPECT_EQ(captured.captured().rows().size(), captures ? 5u : 0u);  // 1, 2, 4, 8, 16.
  EXPECT_TRUE(plain.captured().rows().empty());

  // Shrinking and growing: rows behind those of a step hold what others left.
  for (const size_t rows : {12, 1, 3, 16, 17, 2}) {
    SCOPED_TRACE(absl::StrCat(rows, " rows"));
    const Seen expected = WholeStep(executor(), rows, rows, plain);
    const Seen found = WholeStep(executor(), rows, rows, captured);
    EXPECT_TRUE(found == expected);
    EXPECT_EQ(expected.replayed, 0u);
    EXPECT_EQ(found.replayed, captures && rows <= 16 ? slices() : 0u);
  }
}

TEST_P(SliceCaptureTest, LanesTakeTurnsWithRowsOfTheirOwn) {
  EXPECT_TRUE(executor().Prepare(kBufferRows).ok());
  ValueBuffers first = Captured();
  ValueBuffers second = Captured();
  const Seen expected_first = WholeStep(executor(), 3, 1, first);
  const Seen expected_second = WholeStep(executor(), 7, 2, second);

  StepRun one(executor(), 3, 1, first);
  StepRun other(executor(), 7, 2, second);
  for (uint32_t slice = 0; slice < slices(); ++slice) {
    one.RunSlice(slice);
    other.RunSlice(slice);
  }

  EXPECT_TRUE(one.Finish() == expected_first);
  EXPECT_TRUE(other.Finish() == expected_second);
}

// As a new epoch does.
TEST_P(SliceCaptureTest, NewBuffersAreCapturedAnew) {
  EXPECT_TRUE(executor().Prepare(kBufferRows).ok());
  ValueBuffers plain = *executor().MakeBuffers(kBufferRows);
  const Seen expected = WholeStep(executor(), 5, 9, plain);
  for (int epoch = 0; epoch < 3; ++epoch) {
    ValueBuffers buffers = Captured();
    EXPECT_TRUE(WholeStep(executor(), 5, 9, buffers) == expected) << "epoch " << epoch;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SliceCaptureTest,
                         ::testing::Combine(::testing::Values("llama", "opt", "gpt_neox_parallel"),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& test) {
                           return absl::StrCat(std::get<0>(test.param), "_",
                                               DTypeName(std::get<1>(test.param)));
                         });

// A stage has some slices' weights.
TEST(SliceCaptureStageTest, SlicesWithoutWeightsAreLeftOut) {
  Program all(Spec("llama"), DType::kBF16);
  Program stage(Spec("llama"), DType::kBF16, /*slices_end=*/2);
  ValueBuffers of_all = *all.executor().MakeBuffers(kBufferRows);
  ValueBuffers of_stage = *stage.executor().MakeBuffers(kBufferRows);
  ASSERT_TRUE(all.executor().Capture(2, of_all).ok());
  ASSERT_TRUE(stage.executor().Capture(2, of_stage).ok());

  const size_t each = stage.executor().device().is_host() ? 0 : 2;  // For 1 row and 2.
  EXPECT_EQ(of_all.captured().count(), 3 * each);
  EXPECT_EQ(of_stage.captured().count(), 2 * each);
}

TEST(SliceCaptureStageTest, NoRowsAreNotCaptured) {
  Program program(Spec("llama"), DType::kBF16);
  ValueBuffers buffers = *program.executor().MakeBuffers(kBufferRows);

  ASSERT_TRUE(program.executor().Capture(0, buffers).ok());

  EXPECT_EQ(buffers.captured().count(), 0u);
}

}  // namespace
}  // namespace lamina::compute_node
