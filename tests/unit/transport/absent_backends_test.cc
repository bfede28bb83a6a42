// SPDX-License-Identifier: Apache-2.0
//
// The registry of a build without UCX and libibverbs: this program is linked with the files that
// take their place.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/registry.h"
#include "transport/verbs/verbs_device.h"

namespace lamina::transport {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(AbsentBackendsTest, AreUnimplementedAndSayHowToGetThem) {
  const absl::Status ucx = MakeTransport("ucx://").status();
  EXPECT_TRUE(absl::IsUnimplemented(ucx)) << ucx;
  EXPECT_THAT(std::string(ucx.message()), HasSubstr("install libucx-dev"));
  const absl::Status verbs = MakeTransport("verbs://mlx5_0").status();
  EXPECT_TRUE(absl::IsUnimplemented(verbs)) << verbs;
  EXPECT_THAT(std::string(verbs.message()), HasSubstr("install libibverbs-dev"));
  EXPECT_THAT(ListVerbsPorts(), IsEmpty());
}

TEST(AbsentBackendsTest, AreNotListedAndTheOthersWork) {
  EXPECT_THAT(BuiltTransports(), Contains("shm"));
  EXPECT_THAT(BuiltTransports(), Not(Contains("ucx")));
  EXPECT_THAT(BuiltTransports(), Not(Contains("verbs")));
  EXPECT_TRUE(MakeTransport("shm://").ok());
}

}  // namespace
}  // namespace lamina::transport
