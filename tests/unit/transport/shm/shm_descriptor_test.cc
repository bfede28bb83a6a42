// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_descriptor.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/descriptor_frame.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

ShmDescriptor Example() {
  return {.host = 0x1122334455667788,
          .pid = 0x01020304,
          .fd = 9,
          .epoch = 0x0a0b,
          .key = {3, 4},
          .data_bytes = 4096,
          .signal_words = 2};
}

ShmDescriptor OnDevice() {
  ShmDescriptor descriptor = Example();
  descriptor.handle = {.bytes = "ipc-7", .offset = 0x0c0d};
  return descriptor;
}

TEST(ShmDescriptorTest, FieldsLieWhereTheHeaderSays) {
  const std::string bytes = EncodeShmDescriptor(Example());

  ASSERT_EQ(bytes.size(), kShmDescriptorBytes);
  EXPECT_EQ(bytes.substr(0, 8), "LMNASHM2");
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

TEST(ShmDescriptorTest, HandleOfADeviceLiesBehind) {
  const std::string bytes = EncodeShmDescriptor(OnDevice());

  ASSERT_EQ(bytes.size(), kShmDescriptorBytes + 5);
  EXPECT_EQ(bytes[68], 5);
  EXPECT_EQ(bytes.substr(72, 2), "\x0d\x0c");
  EXPECT_EQ(bytes.substr(80), "ipc-7");
}

TEST(ShmDescriptorTest, RoundTrips) {
  EXPECT_EQ(DecodeShmDescriptor(EncodeShmDescriptor(Example())).value(), Example());
  EXPECT_EQ(DecodeShmDescriptor(EncodeShmDescriptor(OnDevice())).value(), OnDevice());
  EXPECT_FALSE(Example().on_device());
  EXPECT_TRUE(OnDevice().on_device());
}

// With a checksum that is right: what a peer with a bug could send.
TEST(ShmDescriptorTest, HandleOfAnotherLengthIsInvalid) {
  const std::string body = EncodeShmDescriptor(OnDevice()).substr(kDescriptorBodyAt);
  std::string longer = body;
  longer[68 - kDescriptorBodyAt] = 6;
  std::string endless = body + std::string(300, 'x');
  endless[68 - kDescriptorBodyAt] = static_cast<char>(305 & 0xff);
  endless[69 - kDescriptorBodyAt] = 1;
  for (const std::string& wrong :
       {longer, endless, body + "x", body.substr(0, body.size() - 1), body.substr(0, 60)}) {
    const absl::Status status = DecodeShmDescriptor(FrameDescriptor("LMNASHM2", wrong)).status();

    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("shm: descriptor"));
  }
}

TEST(ShmDescriptorTest, AnotherVersionSaysToRunOneVersion) {
  std::string bytes = EncodeShmDescriptor(Example());
  bytes[7] = '1';

  const absl::Status status = DecodeShmDescriptor(bytes).status();

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("version '1', this build reads '2'"));
}

TEST(ShmDescriptorTest, DamageIsFoundInEveryByte) {
  for (size_t at = 0; at < kShmDescriptorBytes; ++at) {
    std::string bytes = EncodeShmDescriptor(Example());
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);

    EXPECT_TRUE(absl::IsInvalidArgument(DecodeShmDescriptor(bytes).status())) << at;
  }
}

TEST(ShmDescriptorTest, HostHasAFingerprint) { EXPECT_EQ(HostFingerprint(), HostFingerprint()); }

}  // namespace
}  // namespace lamina::transport
