// SPDX-License-Identifier: Apache-2.0
//
// What a memory node measures for policy auto, on the emulated device: its clock tells nothing, so
// the figures are only those that a coordinator takes.
#include "memory_node/attention_rate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/kv_device.h"
#include "tests/support/random_model.h"

namespace lamina::memory_node {
namespace {

constexpr uint64_t kSomeKv = 64 << 10;

class AttentionRateTest : public testing::Test {
 protected:
  AttentionRateTest() {
    std::filesystem::create_directories(model_);
    EXPECT_TRUE(
        test_support::WriteRandomModel({.model_type = "llama", .seed = 5, .layers = 2}, model_)
            .ok());
  }
  ~AttentionRateTest() override { std::filesystem::remove_all(model_); }

  const std::string model_ = absl::StrCat(testing::TempDir(), "/attention_rate_", getpid());
};

TEST_F(AttentionRateTest, IsOfTheModelsLayers) {
  const absl::StatusOr<double> rate =
      MeasureAttentionRate(model_, kernels::cuda::CudaKvDevices(0), kSomeKv);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_TRUE(std::isfinite(*rate));
  EXPECT_GT(*rate, 0);
}

TEST_F(AttentionRateTest, IsNoneWhereTheModelIsNot) {
  const auto make =
      [](const kernels::KvDeviceOptions&) -> absl::StatusOr<std::unique_ptr<kernels::KvDevice>> {
    ADD_FAILURE() << "there are no layers to measure";
    return absl::InternalError("");
  };
  const absl::StatusOr<double> rate = MeasureAttentionRate(model_ + "_not", make, kSomeKv);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_EQ(*rate, 0);
}

TEST_F(AttentionRateTest, ADeviceThatIsNotThereIsAnError) {
  const absl::Status gone = absl::UnavailableError("no such device");
  const auto make =
      [&](const kernels::KvDeviceOptions&) -> absl::StatusOr<std::unique_ptr<kernels::KvDevice>> {
    return gone;
  };
  EXPECT_EQ(MeasureAttentionRate(model_, make, kSomeKv).status(), gone);
}

}  // namespace
}  // namespace lamina::memory_node
