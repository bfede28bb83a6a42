// SPDX-License-Identifier: Apache-2.0
//
// Failures of graphs that only the emulation can be asked for, and what a capture takes down.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/status_macros.h"
#include "kernels/cuda/graph.h"
#include "tests/support/cuda_emulation/streams.h"
#include "tests/unit/kernels/cuda/device_fixture.h"

namespace lamina::kernels::cuda {
namespace {

using testing::HasSubstr;

class GraphTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    from_ = Upload(std::vector<uint32_t>{1, 2, 3});
    to_ = Make<uint32_t>(3);
  }
  absl::StatusOr<Graph> CaptureCopy() {
    return Graph::Capture(stream(),
                          [this] { return CopyAsync(to_, from_, 3 * sizeof(uint32_t), stream()); });
  }

  uint32_t* from_ = nullptr;
  uint32_t* to_ = nullptr;
};

TEST_F(GraphTest, AnInstantiationThatFailsSaysItsErrorAndTheNextOneWorks) {
  cuda_emulation::FailInstantiations(true);

  const auto failed = CaptureCopy();

  cuda_emulation::FailInstantiations(false);
  ASSERT_TRUE(absl::IsResourceExhausted(failed.status())) << failed.status();
  EXPECT_THAT(std::string(failed.status().message()),
              HasSubstr("cudaGraphInstantiate: cudaErrorMemoryAllocation"));
  const auto graph = CaptureCopy();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(graph->Launch(stream()).ok());
  EXPECT_EQ(Download(to_, 3), Download(from_, 3));
}

TEST_F(GraphTest, WhatTheWorkSaysComesBeforeWhatTheCaptureSays) {
  const auto failed = Graph::Capture(stream(), [this] {
    stream().Synchronize().IgnoreError();
    return absl::InvalidArgumentError("the work's own");
  });

  EXPECT_EQ(failed.status(), absl::InvalidArgumentError("the work's own"));
  EXPECT_TRUE(stream().Synchronize().ok());
}

TEST_F(GraphTest, EventsOfACaptureCannotBeWaitedForInIt) {
  const auto event = Event::Create();
  ASSERT_TRUE(event.ok());
  absl::Status waited;

  const auto graph = Graph::Capture(stream(), [&] {
    LAMINA_RETURN_IF_ERROR(event->Record(stream()));
    waited = event->Synchronize();
    return absl::OkStatus();
  });

  EXPECT_THAT(std::string(waited.message()), HasSubstr("cudaErrorCapturedEvent"));
  EXPECT_THAT(std::string(graph.status().message()),
              HasSubstr("cudaErrorStreamCaptureInvalidated"));
}

TEST_F(GraphTest, AnotherStreamRunsMeanwhile) {
  const auto other = Stream::Create();
  ASSERT_TRUE(other.ok());

  const auto graph =
      Graph::Capture(stream(), [&] { return CopyAsync(to_, from_, 3 * sizeof(uint32_t), *other); });

  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(Download(to_, 3), Download(from_, 3));
}

}  // namespace
}  // namespace lamina::kernels::cuda
