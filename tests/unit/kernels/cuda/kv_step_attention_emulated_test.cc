// SPDX-License-Identifier: Apache-2.0
//
// What units of a step give their stream, and failures that only the emulation can be asked for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/attention_tiling.h"
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/kernels/cuda/kv_step_attention_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using cuda_emulation::AllGiven;
using cuda_emulation::Given;
using testing::HasSubstr;

// Three kinds of layers have three tables each: with the slots, ten copies for a step.
TEST_F(KvStepAttentionTest, AUnitIsSevenLaunchesAndOnlyItsStepCopies) {
  Open();
  std::vector<Sequence> sequences(2);
  Prompt(sequences[0], 300);
  Prompt(sequences[1], 7);
  const std::vector<StepRow> rows = RowsOf(sequences);
  const Given before = AllGiven();

  ASSERT_TRUE(steps().BeginStep(0, rows).ok());
  EXPECT_EQ(AllGiven() - before, (Given{.copies = 10}));

  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    const Exchange exchange = ExchangeOf(0, 1, layer, rows);
    const Given at = AllGiven();
    const uint64_t dependent = cuda_emulation::DependentLaunches();
    Enqueue(exchange);
    EXPECT_EQ(AllGiven() - at, (Given{.launches = 7}));
    // All but the wait, what is right behind it, and canonical decode.
    EXPECT_EQ(cuda_emulation::DependentLaunches() - dependent,
              HasDecodeKernel(layers_[layer].head_dim) ? 4u : 5u);
    Send(exchange);
    ExpectReply(exchange);
  }
}

TEST_F(KvStepAttentionTest, ADeviceWhoseChannelFailsIsNotUsable) {
  Open();
  cuda_emulation::FailNextSynchronize();

  const absl::Status checked = channel_->Check(2);

  EXPECT_THAT(std::string(checked.message()), HasSubstr("cudaErrorLaunchFailure"));
  EXPECT_FALSE(device_->usable());
}

TEST_F(KvStepAttentionTest, AStepWithAnIndexOutsideTheDeviceIsRefusedBeforeAnythingIsWritten) {
  const Extent slot = {.first_slot = 0, .tokens = 1};
  const StepRow right = {.extents = {&slot, 1}};
  StepRow outside = right;
  outside.slot = kSlots;

  const std::vector<StepRow> many(kRowsMax + 1, right);
  EXPECT_THAT(std::string(steps().BeginStep(0, {&outside, 1}).message()),
              HasSubstr("row 0 stores into slot 8192 of a device with 8192"));
  EXPECT_TRUE(absl::IsInvalidArgument(steps().BeginStep(0, many)));
  EXPECT_TRUE(absl::IsInvalidArgument(steps().BeginStep(kLanes, {&right, 1})));

  EXPECT_TRUE(device_->usable());
  EXPECT_TRUE(steps().BeginStep(kLanes - 1, {&right, 1}).ok());
}

TEST_F(KvStepAttentionTest, AChannelOfMoreLanesThanItHasIsRefused) {
  const absl::Status refused = device_->MakeChannel(ChannelOf(kLanes + 1)).status();

  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_TRUE(device_->usable());
  EXPECT_EQ(reference_->MakeChannel(ChannelOf(1)).value(), nullptr);
}

}  // namespace
}  // namespace lamina::kernels::cuda
