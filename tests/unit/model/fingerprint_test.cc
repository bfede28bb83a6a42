// SPDX-License-Identifier: Apache-2.0
#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/random_model.h"

namespace lamina::model {
namespace {

using test_support::RandomModelSpec;

class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() = default;
  ~FingerprintTest() override { std::filesystem::remove_all(folder_); }
  FingerprintTest(const FingerprintTest&) = delete;
  FingerprintTest& operator=(const FingerprintTest&) = delete;

  std::string Of(const RandomModelSpec& spec, const char* type = "F32") {
    const std::string directory = absl::StrCat(folder_, "/", next_++);
    std::filesystem::create_directories(directory);
    EXPECT_TRUE(test_support::WriteRandomModel(spec, directory, type).ok());
    return OfPath(directory);
  }

  std::string OfDeployment(const RandomModelSpec& spec, uint32_t sequence_tokens_max) {
    const std::string directory = absl::StrCat(folder_, "/", next_++);
    std::filesystem::create_directories(directory);
    EXPECT_TRUE(test_support::WriteRandomModel(spec, directory).ok());
    return OfPath(directory, {.sequence_tokens_max = sequence_tokens_max});
  }

  std::string OfGguf(const RandomModelSpec& spec, const char* type) {
    std::filesystem::create_directories(folder_);
    const std::string path = absl::StrCat(folder_, "/", next_++, ".gguf");
    EXPECT_TRUE(test_support::WriteRandomGguf(spec, path, type).ok());
    return OfPath(path);
  }

 private:
  static std::string OfPath(const std::string& path, const OpenOptions& options = {}) {
    const absl::StatusOr<Model> model = OpenModel(path, options);
    EXPECT_TRUE(model.ok()) << model.status();
    const absl::StatusOr<std::string> fingerprint = Fingerprint(*model);
    EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
    return *fingerprint;
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/fingerprint_", getpid());
  int next_ = 0;
};

TEST_F(FingerprintTest, IsTheSameForCopies) {
  const std::string first = Of({});

  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(Of({}), first);
}

// Nodes whose deployments differ in it would rotate by other angles.
TEST_F(FingerprintTest, DiffersForLongropesOtherFactorsAlone) {
  RandomModelSpec phi = {.model_type = "phi3"};
  phi.rope_scaling =
      "\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],"
      "\"long_factor\":[2,2,2,2,2,2,2,2],\"original_max_position_embeddings\":64";

  EXPECT_EQ(OfDeployment(phi, 32), OfDeployment(phi, 64));
  EXPECT_NE(OfDeployment(phi, 64), OfDeployment(phi, 65));
  EXPECT_EQ(OfDeployment(phi, 65), OfDeployment(phi, 0));
  EXPECT_EQ(OfDeployment({}, 64), OfDeployment({}, 65));
}

TEST_F(FingerprintTest, DiffersForOtherValuesShapesNamesAndTypes) {
  const std::string first = Of({});

  EXPECT_NE(Of({.seed = 2}), first);
  EXPECT_NE(Of({.ffn_width = 160}), first);
  EXPECT_NE(Of({.layers = 3}), first);
  EXPECT_NE(Of({.tied = true}), first);
  EXPECT_NE(Of({}, "BF16"), first);
  EXPECT_NE(OfGguf({}, "F32"), OfGguf({}, "Q8_0"));
}

}  // namespace
}  // namespace lamina::model
