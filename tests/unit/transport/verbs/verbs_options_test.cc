// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::transport {
namespace {

using testing::HasSubstr;

TEST(VerbsOptionsTest, NothingMeansTheDefaults) {
  EXPECT_EQ(ParseVerbsOptions("").value(), VerbsOptions{});
  EXPECT_EQ(ParseVerbsOptions("?").value(), VerbsOptions{});
}

TEST(VerbsOptionsTest, EveryKeyIsTaken) {
  const VerbsOptions options = ParseVerbsOptions(
                                   "mlx5_1?near=0000:41:00.0&port=2&gid=3&mtu=1024&timeout=18&"
                                   "retries=5&rnr_retries=4&queue=512&peers=local&"
                                   "network=10.1.0.0/16")
                                   .value();

  EXPECT_EQ(options, (VerbsOptions{.device = "mlx5_1",
                                   .near = "0000:41:00.0",
                                   .network = "10.1.0.0/16",
                                   .local_peers = true,
                                   .port = 2,
                                   .gid = 3,
                                   .mtu = 1024,
                                   .timeout = 18,
                                   .retries = 5,
                                   .rnr_retries = 4,
                                   .queue = 512}));
}

TEST(VerbsOptionsTest, UnknownKeyNamesTheNearest) {
  const absl::Status status = ParseVerbsOptions("?retrys=3").status();

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean \"retries\"?"));
}

TEST(VerbsOptionsTest, ValuesOutOfRangeAreInvalidAndNameTheRange) {
  for (const std::string text :
       {"?port=0", "?port=255", "?gid=-1", "?gid=256", "?mtu=1000", "?mtu=8192", "?timeout=0",
        "?timeout=32", "?retries=7", "?rnr_retries=8", "?queue=127", "?queue=", "?queue",
        "?queue=1e3", "?peers=", "?peers=any", "?port=1&gid=x", "?port=99999999999"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseVerbsOptions(text).status())) << text;
  }
  EXPECT_THAT(std::string(ParseVerbsOptions("?retries=7").status().message()),
              HasSubstr("from 0 to 6"));
}

}  // namespace
}  // namespace lamina::transport
