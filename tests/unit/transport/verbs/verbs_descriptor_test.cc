// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_descriptor.h"

#include <cstring>

#include "gtest/gtest.h"
#include "transport/descriptor_frame.h"

namespace lamina::transport {
namespace {

VerbsDescriptor Example() {
  return {.host = 1,
          .owner = {2, 3},
          .region = 4,
          .epoch = 5,
          .data_bytes = 6,
          .address = 7,
          .rkey = 8,
          .signal_words = 9,
          .tcp_port = 10,
          .data_rkey = 14,
          .data_address = 15,
          .addresses = {{11}, {12, 13}}};
}

// `value` at `offset`, with a checksum that fits again.
template <typename T>
std::string Edited(size_t offset, T value) {
  std::string bytes = EncodeVerbsDescriptor(Example());
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  const uint64_t checksum = DescriptorChecksum(absl::string_view(bytes).substr(16));
  std::memcpy(bytes.data() + 8, &checksum, sizeof checksum);
  return bytes;
}

TEST(VerbsDescriptorTest, ComesBackAsItWas) {
  EXPECT_EQ(DecodeVerbsDescriptor(EncodeVerbsDescriptor(Example())).value(), Example());
}

TEST(VerbsDescriptorTest, FieldsLieWhereTheHeaderSays) {
  const std::string bytes = EncodeVerbsDescriptor(Example());

  ASSERT_EQ(bytes.size(), kVerbsDescriptorBytes);
  EXPECT_EQ(bytes.substr(0, 8), "LMNAVRB3");
  for (const auto& [offset, value] : std::vector<std::pair<size_t, int>>{{16, 1},
                                                                         {24, 2},
                                                                         {32, 3},
                                                                         {40, 4},
                                                                         {48, 5},
                                                                         {56, 6},
                                                                         {64, 7},
                                                                         {72, 8},
                                                                         {76, 9},
                                                                         {80, 10},
                                                                         {82, 2},
                                                                         {84, 14},
                                                                         {88, 11},
                                                                         {104, 12},
                                                                         {105, 13},
                                                                         {216, 15}}) {
    EXPECT_EQ(bytes[offset], value) << offset;
  }
}

TEST(VerbsDescriptorTest, ImpossibleSizesAreInvalidThoughTheChecksumFits) {
  EXPECT_TRUE(DecodeVerbsDescriptor(Edited<uint64_t>(56, 6)).ok());
  for (const std::string& bytes : {Edited<uint64_t>(56, uint64_t{1} << 47),
                                   Edited<uint32_t>(76, (1u << 20) + 1), Edited<uint16_t>(82, 9)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeVerbsDescriptor(bytes).status()));
  }
}

TEST(VerbsDescriptorTest, AnotherVersionIsInvalidAndSaysSo) {
  std::string bytes = EncodeVerbsDescriptor(Example());
  bytes[7] = '1';
  EXPECT_NE(DecodeVerbsDescriptor(bytes).status().message().find("one version"),
            absl::string_view::npos);
}

}  // namespace
}  // namespace lamina::transport
