// SPDX-License-Identifier: Apache-2.0
#include "transport/put_all.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(OpenRegionsTest, WindowsTooSmallForTheBatchAreAFailedPreconditionThatSaysWhatToLower) {
  const auto transport = MakeTransport("fake://windows").value();
  const auto region =
      transport->CreateRegion({.name = "m0", .bytes = 4096, .signal_words = 2, .epoch = 3}).value();
  const std::vector<std::string> descriptors = {region->Descriptor()};

  EXPECT_TRUE(
      OpenRegions(*transport, descriptors, 3, {.bytes = 4096, .signal_words = 2}).status().ok());
  for (const RegionSize least : {RegionSize{8192, 2}, RegionSize{4096, 3}}) {
    const absl::Status status = OpenRegions(*transport, descriptors, 3, least).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("4.0 KiB"), HasSubstr("limits.running_max")));
  }
}

TEST(OpenRegionsTest, ErrorsOfTheTransportPass) {
  const auto transport = MakeTransport("fake://windows").value();
  const auto region =
      transport->CreateRegion({.name = "m0", .bytes = 64, .signal_words = 1, .epoch = 3}).value();

  EXPECT_TRUE(
      absl::IsAborted(OpenRegions(*transport, {region->Descriptor()}, 4, RegionSize{}).status()));
}

TEST(OpenRegionsTest, SaysWhichOneCannotBeOpened) {
  const auto transport = MakeTransport("fake://windows").value();
  const auto region =
      transport->CreateRegion({.name = "m0", .bytes = 64, .signal_words = 1, .epoch = 3}).value();
  const std::string good = region->Descriptor();
  for (size_t bad = 0; bad < 3; ++bad) {
    std::vector<std::string> descriptors(3, good);
    descriptors[bad] = "nonsense";
    size_t failed = 9;
    EXPECT_FALSE(OpenRegions(*transport, descriptors, 3, RegionSize{}, &failed).ok());
    EXPECT_EQ(failed, bad);
  }
}

}  // namespace
}  // namespace lamina::transport
