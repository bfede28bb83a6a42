// SPDX-License-Identifier: Apache-2.0
//
// Which memory a region asks the host for, and when it does not ask.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "common/units.h"
#include "transport/verbs/verbs_region_internal.h"

namespace lamina::transport {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

absl::Status Refused(size_t bytes) {
  return RegionMemory::Create(/*domain=*/nullptr, {.name = "m0 lane 1", .bytes = bytes},
                              /*device=*/nullptr)
      .status();
}

// All that the host has is more than it has free, and than any control group leaves.
TEST(VerbsRegionTest, MoreThanIsFreeIsRefusedBeforeItIsTaken) {
  const size_t host_bytes =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));

  const absl::Status refused = Refused(host_bytes);

  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const std::string message(refused.message());
  EXPECT_THAT(message, HasSubstr("m0 lane 1: " + FormatBytes(host_bytes) + " asked for, "));
  EXPECT_THAT(message, AnyOf(HasSubstr("MemAvailable of the host leaves "),
                             HasSubstr(" of control group ")));
}

TEST(VerbsRegionTest, MoreThanAnyRegionHasIsRefused) {
  for (const size_t bytes : {(size_t{1} << 46) + 1, SIZE_MAX - 4096, SIZE_MAX}) {
    const absl::Status refused = Refused(bytes);

    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 64.0 TiB"));
  }
}

}  // namespace
}  // namespace lamina::transport
