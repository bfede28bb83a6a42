// SPDX-License-Identifier: Apache-2.0
#include "config/cuda_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lamina {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CudaHostTest, LaunchesAreDependentUnlessOrdinaryOnesAreAskedFor) {
  EXPECT_TRUE(ParseCudaLaunches(nullptr).value());
  EXPECT_TRUE(ParseCudaLaunches("dependent").value());
  EXPECT_FALSE(ParseCudaLaunches("ordinary").value());
}

TEST(CudaHostTest, AnotherWordForLaunchesIsRefusedWithTheVariable) {
  for (const char* const word : {"", "off", "Ordinary"}) {
    const absl::Status refused = ParseCudaLaunches(word).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << word;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("LAMINA_CUDA_LAUNCHES"), HasSubstr(word)));
  }
}

}  // namespace
}  // namespace lamina
