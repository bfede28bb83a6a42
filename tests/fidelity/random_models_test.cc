// SPDX-License-Identifier: Apache-2.0
//
// Graphs of every architecture, run by the plain executor, against logits of transformers on the
// same random weights (make_model_goldens.py). Both compute in float32 or better, so they agree to
// a few units in the fifth decimal, to which the goldens are rounded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/model.h"
#include "nlohmann/json.hpp"
#include "tests/support/model_goldens.h"
#include "tests/support/random_model.h"
#include "tests/support/reference_model.h"

namespace lamina {
namespace {

using test_support::ParseRandomModelSpec;
using test_support::RandomModelCases;
using test_support::RandomModelSpec;
using test_support::ReferenceModel;

// Logits reach 10; float32 sums over up to 200 terms and three layers stay well within this.
constexpr float kTolerance = 1e-4f;

void ExpectLogits(const ReferenceModel& reference, const nlohmann::json& golden) {
  const auto columns = golden.at("columns").get<std::vector<size_t>>();
  for (const nlohmann::json& prompt : golden.at("prompts")) {
    const auto tokens = prompt.at("tokens").get<std::vector<TokenId>>();
    const std::vector<std::vector<float>> logits = reference.Logits(tokens);
    for (const nlohmann::json& row : prompt.at("rows")) {
      const auto position = row.at("position").get<size_t>();
      SCOPED_TRACE(absl::StrCat(tokens.size(), " tokens, position ", position));
      for (size_t i = 0; i < columns.size(); ++i) {
        ASSERT_NEAR(logits[position][columns[i]], row.at("values")[i].get<float>(), kTolerance);
      }
      for (const nlohmann::json& top : row.at("top")) {
        ASSERT_NEAR(logits[position][top[0].get<size_t>()], top[1].get<float>(), kTolerance);
      }
    }
  }
}

class RandomModels : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = absl::StrCat(::testing::TempDir(), "/random_models_",
                              absl::StrReplaceAll(test->name(), {{"/", "_"}}), GetParam());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Check(const std::string& path) const {
    const auto tokens_max =
        RandomModelCases()[GetParam()].value("sequence_tokens_max", uint32_t{0});
    const absl::StatusOr<model::Model> model =
        model::OpenModel(path, {.sequence_tokens_max = tokens_max});
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::StatusOr<ReferenceModel> reference = ReferenceModel::Load(*model);
    ASSERT_TRUE(reference.ok()) << reference.status();
    ExpectLogits(*reference, RandomModelCases()[GetParam()]);
  }

  std::string directory_;
};

TEST_P(RandomModels, HuggingFaceDirectoryGivesTheLogitsOfTransformers) {
  const RandomModelSpec spec = ParseRandomModelSpec(RandomModelCases()[GetParam()].at("spec"));
  const nlohmann::json& golden = RandomModelCases()[GetParam()];
  // The weights are exact in all of these.
  for (const char* type : {"F32", "BF16", "MXFP4"}) {
    if (absl::string_view(type) == "MXFP4" && spec.model_type != "gpt_oss") {
      continue;
    }
    // Some models do not follow the checkpoint's type in all parts.
    if (golden.contains("checkpoint") && golden.at("checkpoint") != type) {
      continue;
    }
    ASSERT_TRUE(WriteRandomModel(spec, directory_, type).ok());
    Check(directory_);
  }
}

using RandomGgufModels = RandomModels;

TEST_P(RandomGgufModels, GgufFileGivesTheLogitsOfTransformersToo) {
  const RandomModelSpec spec = ParseRandomModelSpec(RandomModelCases()[GetParam()].at("spec"));
  const std::string path = directory_ + "/model.gguf";
  ASSERT_TRUE(WriteRandomGguf(spec, path).ok());
  Check(path);
}

// What GGUF files can say, and the writer does: no rope scaling; Qwen2 without its windows;
// GPT-NeoX with biases and its usual activation.
bool HasGgufForm(const RandomModelSpec& spec) {
  if (!spec.gguf || !spec.rope_scaling.empty() || spec.model_type == "opt") {
    return false;
  }
  if (spec.model_type == "qwen2") {
    return spec.window == 0;
  }
  return spec.model_type != "gpt_neox" || (spec.attention_bias && spec.activation == "gelu");
}

std::vector<size_t> GgufCases() {
  std::vector<size_t> cases;
  for (size_t i = 0; i < RandomModelCases().size(); ++i) {
    if (HasGgufForm(ParseRandomModelSpec(RandomModelCases()[i].at("spec")))) {
      cases.push_back(i);
    }
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<size_t>& test) {
  return RandomModelCases()[test.param].at("name").get<std::string>();
}

INSTANTIATE_TEST_SUITE_P(Cases, RandomModels,
                         ::testing::Range(size_t{0}, RandomModelCases().size()), CaseName);
INSTANTIATE_TEST_SUITE_P(Cases, RandomGgufModels, ::testing::ValuesIn(GgufCases()), CaseName);

}  // namespace
}  // namespace lamina
