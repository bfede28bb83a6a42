// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_descriptor.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

constexpr ShmDescriptor kExample = {.host = 0x1122334455667788,
                                    .pid = 0x01020304,
                                    .fd = 9,
                                    .epoch = 0x0a0b,
                                    .key = {3, 4},
                                    .data_bytes = 4096,
                                    .signal_words = 2};

TEST(ShmDescriptorTest, FieldsLieWhereTheHeaderSays) {
  const std::string bytes = EncodeShmDescriptor(kExample);

  ASSERT_EQ(bytes.size(), kShmDescriptorBytes);
  EXPECT_EQ(bytes.substr(0, 8), "LMNASHM1");
  EXPECT_EQ(bytes.substr(16, 8), "\x88\x77\x66\x55\x44\x33\x22\x11");
  EXPECT_EQ(bytes.substr(24, 4), "\x04\x03\x02\x01");
  EXPECT_EQ(bytes[28], 9);
  EXPECT_EQ(bytes.substr(32, 2), "\x0b\x0a");
  EXPECT_EQ(bytes[40], 3);
  EXPECT_EQ(bytes[48], 4);
  EXPECT_EQ(bytes[57], 0x10);
  EXPECT_EQ(bytes[64], 2);
  EXPECT_EQ(bytes.substr(68), std::string(12, '\0'));
}

TEST(ShmDescriptorTest, RoundTrips) {
  EXPECT_EQ(DecodeShmDescriptor(EncodeShmDescriptor(kExample)).value(), kExample);
}

TEST(ShmDescriptorTest, AnotherVersionSaysToRunOneVersion) {
  std::string bytes = EncodeShmDescriptor(kExample);
  bytes[7] = '2';

  const absl::Status status = DecodeShmDescriptor(bytes).status();

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("version '2', this build reads '1'"));
}

TEST(ShmDescriptorTest, DamageIsFoundInEveryByte) {
  for (size_t at = 0; at < kShmDescriptorBytes; ++at) {
    std::string bytes = EncodeShmDescriptor(kExample);
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);

    EXPECT_TRUE(absl::IsInvalidArgument(DecodeShmDescriptor(bytes).status())) << at;
  }
}

TEST(ShmDescriptorTest, HostHasAFingerprint) { EXPECT_EQ(HostFingerprint(), HostFingerprint()); }

}  // namespace
}  // namespace lamina::transport
