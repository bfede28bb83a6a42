// SPDX-License-Identifier: Apache-2.0
#include "common/peer_mappings.h"

#include "gtest/gtest.h"

namespace lamina {
namespace {

// A driver that counts what it maps.
struct Driver {
  std::byte place[2] = {};
  int mapped = 0;
  int unmapped = 0;
  PeerMappings mappings;

  std::byte* Open(const std::string& key, std::byte* at) {
    return mappings
        .Open(key,
              [&]() -> absl::StatusOr<std::byte*> {
                ++mapped;
                return at;
              })
        .value();
  }
  void Close(const std::string& key, const std::byte* expected) {
    mappings.Close(key, [&](std::byte* data) {
      EXPECT_EQ(data, expected);
      ++unmapped;
    });
  }
};

TEST(PeerMappingsTest, AllocationIsMappedOnceAndUnmappedBehindTheLast) {
  Driver driver;

  EXPECT_EQ(driver.Open("a", &driver.place[0]), &driver.place[0]);
  EXPECT_EQ(driver.Open("a", &driver.place[1]), &driver.place[0]);
  EXPECT_EQ(driver.mapped, 1);
  driver.Close("a", &driver.place[0]);
  EXPECT_EQ(driver.unmapped, 0);
  driver.Close("a", &driver.place[0]);
  EXPECT_EQ(driver.unmapped, 1);

  // The next one is mapped anew.
  EXPECT_EQ(driver.Open("a", &driver.place[1]), &driver.place[1]);
  driver.Close("a", &driver.place[1]);
  EXPECT_EQ(driver.mappings.size(), 0u);
}

TEST(PeerMappingsTest, OtherAllocationsHaveOtherMappings) {
  Driver driver;

  EXPECT_EQ(driver.Open("a", &driver.place[0]), &driver.place[0]);
  EXPECT_EQ(driver.Open("b", &driver.place[1]), &driver.place[1]);
  EXPECT_EQ(driver.mappings.size(), 2u);
  driver.Close("a", &driver.place[0]);
  driver.Close("b", &driver.place[1]);
}

TEST(PeerMappingsTest, WhatIsRefusedIsNotOpen) {
  PeerMappings mappings;

  const auto refused = mappings.Open(
      "a", []() -> absl::StatusOr<std::byte*> { return absl::UnavailableError("no"); });

  EXPECT_TRUE(absl::IsUnavailable(refused.status()));
  EXPECT_EQ(mappings.size(), 0u);
}

}  // namespace
}  // namespace lamina
