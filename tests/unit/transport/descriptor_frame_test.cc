// SPDX-License-Identifier: Apache-2.0
#include "transport/descriptor_frame.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

constexpr absl::string_view kMagic = "LMNATST1";

absl::Status Refusal(absl::string_view bytes) {
  return DescriptorBody("test", kMagic, bytes).status();
}

TEST(DescriptorFrameTest, BodyComesBackAndLiesBehindMagicAndChecksum) {
  const std::string bytes = FrameDescriptor(kMagic, "body");

  EXPECT_EQ(bytes.substr(0, 8), kMagic);
  EXPECT_EQ(bytes.substr(kDescriptorBodyAt), "body");
  EXPECT_EQ(DescriptorBody("test", kMagic, bytes).value(), "body");
  EXPECT_EQ(DescriptorBody("test", kMagic, FrameDescriptor(kMagic, "")).value(), "");
}

TEST(DescriptorFrameTest, AnotherVersionSaysToRunOneVersion) {
  const absl::Status status = Refusal(FrameDescriptor("LMNATST2", "body"));

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("version '2', this build reads '1'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("run one version of Lamina on all nodes"));
}

TEST(DescriptorFrameTest, DescriptorOfAnotherBackendIsNamedAsSuch) {
  EXPECT_THAT(std::string(Refusal(FrameDescriptor("LMNAXXX1", "body")).message()),
              HasSubstr("not a descriptor of a test:// region"));
}

TEST(DescriptorFrameTest, DamageAndTruncationAreFoundInEveryByte) {
  const std::string bytes = FrameDescriptor(kMagic, "body");
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= 1;
    EXPECT_TRUE(absl::IsInvalidArgument(Refusal(damaged))) << i;
    EXPECT_TRUE(absl::IsInvalidArgument(Refusal(bytes.substr(0, i)))) << i;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(bytes + "x")));
}

TEST(DescriptorFrameTest, FieldsAreTakenWholeOrNotAtAll) {
  std::string body;
  AppendField(body, uint32_t{7});
  AppendField(body, uint16_t{9});
  absl::string_view rest = body;
  uint32_t first = 0;
  uint32_t second = 1;

  EXPECT_TRUE(TakeField(rest, first));
  EXPECT_EQ(first, 7u);
  EXPECT_FALSE(TakeField(rest, second));
  EXPECT_EQ(second, 1u);
  EXPECT_EQ(rest.size(), 2u);
}

}  // namespace
}  // namespace lamina::transport
