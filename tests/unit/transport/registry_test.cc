// SPDX-License-Identifier: Apache-2.0
#include "transport/registry.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lamina::transport {
namespace {

using testing::Contains;
using testing::HasSubstr;

std::string Error(absl::string_view uri) {
  return std::string(MakeTransport(uri).status().message());
}

TEST(RegistryTest, MakesWhatIsBuilt) {
  EXPECT_EQ(MakeTransport("shm://").value()->scheme(), "shm");
  EXPECT_EQ(MakeTransport("fake://a").value()->scheme(), "fake");
  EXPECT_THAT(BuiltTransports(), Contains("shm"));
  EXPECT_THAT(BuiltTransports(), Contains("fake"));
}

TEST(RegistryTest, UnknownSchemeListsTheKnownAndNamesTheNearest) {
  EXPECT_TRUE(absl::IsInvalidArgument(MakeTransport("shn://").status()));
  EXPECT_THAT(Error("shn://"), HasSubstr("did you mean \"shm://\"?"));
  EXPECT_THAT(Error("carrier-pigeon://"), HasSubstr("fake, shm, ucx, verbs"));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeTransport("").status()));
}

TEST(RegistryTest, NameWithoutSeparatorSaysWhatToWrite) {
  EXPECT_TRUE(absl::IsInvalidArgument(MakeTransport("shm").status()));
  EXPECT_THAT(Error("shm"), HasSubstr("write \"shm://\""));
}

TEST(RegistryTest, WrongRestOfTheUriIsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(MakeTransport("shm://somewhere").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MakeTransport("fake://").status()));
}

}  // namespace
}  // namespace lamina::transport
