// SPDX-License-Identifier: Apache-2.0
//
// Failures of a device's waits that only the emulation can be asked for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/host_memory.h"
#include "tests/support/cuda_emulation/launches.h"
#include "tests/unit/kernels/cuda/kv_waits_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using testing::HasSubstr;

TEST_F(KvWaitsTest, WindowsThatTheDriverRefusesLeaveTheDeviceAsItWas) {
  const size_t before = cuda_emulation::RegisteredPieces();
  cuda_emulation::FailRegistrations(true);

  const absl::Status refused = Open();

  cuda_emulation::FailRegistrations(false);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cudaErrorMemoryAllocation"));
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before);
  EXPECT_TRUE(device_->usable());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before + 2);
  waits().Close();
  EXPECT_EQ(cuda_emulation::RegisteredPieces(), before);
}

TEST_F(KvWaitsTest, AFailedDeviceIsFoundWithoutWaitingForIt) {
  ASSERT_TRUE(Open().ok());
  cuda_emulation::FailNextSynchronize();

  const absl::Status checked = waits().Check(2);

  EXPECT_THAT(std::string(checked.message()), HasSubstr("cudaErrorLaunchFailure"));
  EXPECT_FALSE(device_->usable());
}

TEST_F(KvWaitsTest, AStepWithAnIndexOutsideTheDeviceIsRefusedBeforeAnythingIsWritten) {
  ASSERT_TRUE(Open().ok());
  const Extent slot = {.first_slot = 0, .tokens = 1};
  const WaitingRow right = {.extents = {&slot, 1}};
  WaitingRow outside = right;
  outside.slot = kSlots;

  const std::vector<WaitingRow> many(kRowsMax + 1, right);
  EXPECT_THAT(std::string(waits().BeginStep(0, {&outside, 1}).message()),
              HasSubstr("row 0 stores into slot 8192 of a device with 8192"));
  EXPECT_TRUE(absl::IsInvalidArgument(waits().BeginStep(0, many)));
  EXPECT_TRUE(absl::IsInvalidArgument(waits().BeginStep(kLanes, {&right, 1})));

  EXPECT_TRUE(device_->usable());
  EXPECT_TRUE(waits().BeginStep(kLanes - 1, {&right, 1}).ok());
}

// Two kinds of layers have tables of their own, so that a step begins with its slots and two
// tables.
TEST_F(KvWaitsTest, AUnitIsSevenLaunchesAndOnlyItsStepCopies) {
  ASSERT_TRUE(Open().ok());
  std::vector<Sequence> sequences(2);
  Prompt(sequences[0], 300);
  Prompt(sequences[1], 7);
  const std::vector<WaitingRow> rows = RowsOf(sequences);
  const cuda_emulation::Given before = cuda_emulation::AllGiven();

  ASSERT_TRUE(waits().BeginStep(0, rows).ok());
  EXPECT_EQ(cuda_emulation::AllGiven() - before, (cuda_emulation::Given{.copies = 3}));

  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    const Exchange exchange = ExchangeOf(0, 1, layer, rows);
    const cuda_emulation::Given at = cuda_emulation::AllGiven();
    ASSERT_TRUE(waits().Launch(0, UnitOf(0, exchange.stamp)).ok());
    EXPECT_EQ(cuda_emulation::AllGiven() - at, (cuda_emulation::Given{.launches = 7}));
    Send(exchange);
    ExpectReply(exchange);
  }
}

}  // namespace
}  // namespace lamina::kernels::cuda
