// SPDX-License-Identifier: Apache-2.0
//
// What every ComputeDevice does with captured work: the bits of the calls, in order with others, on
// what memory holds then; and what cannot be captured is an error that leaves the device as it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/philox.h"
#include "tests/unit/kernels/compute_device_suite.h"

namespace lamina::kernels {
namespace {

// Dense layers, a copy on the device and one to the host.
class ComputeDeviceCaptures : public testing::Test {
 protected:
  static constexpr size_t kRows = 5;
  static constexpr size_t kWidth = 96;
  static constexpr size_t kBytes = kRows * kWidth * sizeof(float);

  void SetUp() override {
    device_ = SuiteComputeDevice(DType::kBF16, pool_);
    ASSERT_NE(device_, nullptr);
    ASSERT_TRUE(device_->Begin().ok());
    for (Buffer* const buffer : {&in_, &sum_, &normal_, &out_}) {
      const auto made = device_->Allocate(kBytes);
      ASSERT_TRUE(made.ok()) << made.status();
      *buffer = *made;
    }
    const auto host = device_->AllocateHost(kBytes);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *host;
    const auto weight = MoveToDevice(std::vector<float>(kWidth, 0.5f), *device_);
    ASSERT_TRUE(weight.ok()) << weight.status();
    weight_ = *weight;
  }

  MatrixView<float> Rows(const Buffer& buffer) {
    return Packed(reinterpret_cast<float*>(buffer.data), kRows, kWidth);
  }

  void Work() {
    ++calls_;
    Dense& dense = device_->dense();
    dense.Add(Rows(in_), Rows(in_), Rows(sum_));
    dense.RmsNorm(Rows(sum_), {reinterpret_cast<const float*>(weight_.data), kWidth}, 1e-5f,
                  {normal_.data, kRows, kWidth, kWidth, DType::kF32});
    device_->Copy(out_.data, normal_.data, kBytes);
    dense.Add(Rows(out_), Rows(in_), Rows(out_));
    device_->Copy(host_.data, out_.data, kBytes);
  }

  // Runs input number `seed`, by `run`.
  template <typename Run>
  std::vector<float> Result(uint64_t seed, const Run& run) {
    Prng random(seed);
    std::vector<float> values;
    for (size_t i = 0; i < kRows * kWidth; ++i) {
      values.push_back(static_cast<float>(random.Below(2001)) * 1e-3f - 1.0f);
    }
    device_->Copy(in_.data, values.data(), kBytes);
    run();
    const absl::Status waited = device_->Synchronize();
    EXPECT_TRUE(waited.ok()) << waited;
    const auto* const out = reinterpret_cast<const float*>(host_.data);
    return {out, out + kRows * kWidth};
  }

  ThreadPool pool_{{}};
  std::unique_ptr<ComputeDevice> device_;
  Buffer in_, sum_, normal_, out_, host_, weight_;
  int calls_ = 0;
};

TEST_F(ComputeDeviceCaptures, HaveTheBitsOfTheCallsOnWhatMemoryHoldsThen) {
  std::vector<std::vector<float>> expected;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    expected.push_back(Result(seed, [this] { Work(); }));
  }
  EXPECT_NE(expected[0], expected[1]);
  std::memset(host_.data, 0, kBytes);

  const auto captured = device_->Capture([this] { Work(); });

  ASSERT_TRUE(captured.ok()) << captured.status();
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(*reinterpret_cast<const float*>(host_.data), 0.0f) << "capture ran the work";
  EXPECT_EQ(*captured == nullptr, device_->is_host());
  EXPECT_EQ(calls_, device_->is_host() ? 3 : 4);
  if (*captured == nullptr) {
    return;  // Calls cost no more.
  }
  for (const uint64_t seed : {2, 0, 1, 2}) {
    EXPECT_EQ(Result(seed, [&] { (*captured)->Replay(); }), expected[seed]) << "input " << seed;
  }
  EXPECT_EQ(calls_, 4);
}

TEST_F(ComputeDeviceCaptures, RunInOrderWithCallsAndEachOther) {
  const std::vector<float> once = Result(1, [this] { Work(); });
  const auto captured = device_->Capture([this] { Work(); });
  ASSERT_TRUE(captured.ok()) << captured.status();
  if (*captured == nullptr) {
    return;
  }
  const std::vector<float> twice = Result(1, [this] {
    Work();
    device_->Copy(in_.data, out_.data, kBytes);
    Work();
  });
  EXPECT_NE(once, twice);

  const std::vector<float> found = Result(1, [&] {
    (*captured)->Replay();
    device_->Copy(in_.data, out_.data, kBytes);
    (*captured)->Replay();
  });

  EXPECT_EQ(found, twice);
}

TEST_F(ComputeDeviceCaptures, WhatWaitsOrTakesMemoryCannotBeCaptured) {
  const std::vector<float> expected = Result(4, [this] { Work(); });
  absl::Status inside;
  const auto waits = device_->Capture([&] {
    Work();
    inside = device_->Synchronize();
    Work();
  });
  if (device_->is_host()) {
    EXPECT_TRUE(waits.ok());
    return;
  }
  EXPECT_FALSE(inside.ok());
  const auto allocates = device_->Capture([&] {
    inside = device_->Allocate(1000).status();
    Work();
  });
  EXPECT_FALSE(inside.ok());

  for (const auto& refused : {std::cref(waits), std::cref(allocates)}) {
    ASSERT_FALSE(refused.get().ok());
    EXPECT_THAT(std::string(refused.get().status().message()),
                testing::HasSubstr("cudaErrorStreamCapture"));
    EXPECT_THAT(std::string(refused.get().status().message()), testing::HasSubstr("cuda:0"));
  }
  EXPECT_EQ(Result(4, [this] { Work(); }), expected) << "calls go on as before";
  EXPECT_TRUE(device_->Capture([this] { Work(); }).ok());
}

}  // namespace
}  // namespace lamina::kernels
