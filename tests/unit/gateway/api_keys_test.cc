// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_keys.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace lamina::gateway {
namespace {

std::string WriteFile(const std::string& name, const std::string& text) {
  std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(ApiKeysTest, WithoutKeysEverybodyMay) {
  EXPECT_FALSE(ApiKeys().required());
  EXPECT_TRUE(ApiKeys().Allows(""));
}

TEST(ApiKeysTest, OnlyWholeKeysAreAllowed) {
  const ApiKeys keys({"alpha", "beta"});

  EXPECT_TRUE(keys.required());
  EXPECT_TRUE(keys.Allows("Bearer alpha"));
  EXPECT_TRUE(keys.Allows("bearer beta "));
  for (const char* wrong : {"", "Bearer", "Bearer ", "alpha", "Basic alpha", "Bearer alph",
                            "Bearer alphaa", "Bearer alpha beta"}) {
    EXPECT_FALSE(keys.Allows(wrong)) << wrong;
  }
}

// Requests of one key are alike however its header is written, and no other's are.
TEST(ApiKeysTest, EachKeyHasASaltOfItsOwn) {
  const ApiKeys keys({"alpha", "beta"});
  const std::string alpha = keys.SaltOf("Bearer alpha");

  EXPECT_EQ(alpha.size(), 32u);
  EXPECT_EQ(alpha.find("alpha"), std::string::npos);
  EXPECT_EQ(keys.SaltOf("bearer  alpha "), alpha);
  EXPECT_NE(keys.SaltOf("Bearer beta"), alpha);
  EXPECT_EQ(ApiKeys().SaltOf("Bearer alpha"), "");
}

TEST(ApiKeysTest, FilesHaveOneKeyPerLine) {
  const auto keys = ApiKeys::Load(WriteFile("keys", "# who\n\n  alpha  \nbeta\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->Allows("Bearer alpha"));
  EXPECT_TRUE(keys->Allows("Bearer beta"));
  EXPECT_FALSE(keys->Allows("Bearer # who"));
}

TEST(ApiKeysTest, AByteOrderMarkAtTheBeginningIsNoPartOfAKey) {
  const auto keys = ApiKeys::Load(WriteFile("marked",
                                            "\xEF\xBB\xBF"
                                            "alpha\r\nbeta\r\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(keys->Allows("Bearer alpha"));
  EXPECT_TRUE(keys->Allows("Bearer beta"));
  const auto comment = ApiKeys::Load(WriteFile("marked", "\xEF\xBB\xBF# who\nalpha\n"));
  ASSERT_TRUE(comment.ok()) << "the first line has spaces: " << comment.status();
  EXPECT_FALSE(ApiKeys::Load(WriteFile("marked", "\xEF\xBB\xBF\n")).ok()) << "it has no key";
}

TEST(ApiKeysTest, FilesThatAreWrongAreNamed) {
  EXPECT_TRUE(absl::IsNotFound(ApiKeys::Load(testing::TempDir() + "no-such-file").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ApiKeys::Load(WriteFile("none", "# x\n")).status()));
  const absl::Status spaces = ApiKeys::Load(WriteFile("spaces", "a\nb c\n")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(spaces));
  EXPECT_NE(spaces.message().find(":2:"), std::string::npos) << spaces;
}

}  // namespace
}  // namespace lamina::gateway
