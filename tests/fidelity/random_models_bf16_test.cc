// SPDX-License-Identifier: Apache-2.0
//
// What transformers makes of small random models in bf16 (make_model_goldens.py), where a rounding
// or a choice decides the bits: Gemma's embedding scale, longrope's factors, gpt-oss' sinks. Its
// roundings are not ours: it keeps the residual stream in bf16. So single numbers are compared bit
// by bit, and logits by how far both are from float32.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "model/model.h"
#include "nlohmann/json.hpp"
#include "tests/support/model_goldens.h"
#include "tests/support/random_model.h"
#include "tests/support/reference_model.h"

namespace lamina {
namespace {

using test_support::RandomModelBf16Cases;
using test_support::RandomModelCases;
using test_support::ReferenceModel;

const nlohmann::json& Float32Case(const nlohmann::json& bf16) {
  for (const nlohmann::json& golden : RandomModelCases()) {
    if (golden.at("name") == bf16.at("name")) {
      return golden;
    }
  }
  ADD_FAILURE() << "no case " << bf16.at("name");
  return RandomModelCases()[0];
}

template <class OpKind>
const OpKind* FirstOp(const model::Graph& graph) {
  for (const model::Op& op : graph.ops) {
    if (const auto* found = std::get_if<OpKind>(&op.body)) {
      return found;
    }
  }
  return nullptr;
}

class RandomModelsBf16 : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/random_models_bf16_", GetParam());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    const auto spec = test_support::ParseRandomModelSpec(float32_.at("spec"));
    ASSERT_TRUE(test_support::WriteRandomModel(spec, directory_, "BF16").ok());
    auto model = model::OpenModel(
        directory_, {.sequence_tokens_max = float32_.value("sequence_tokens_max", uint32_t{0})});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  const nlohmann::json& golden_ = RandomModelBf16Cases()[GetParam()];
  const nlohmann::json& float32_ = Float32Case(golden_);
  std::string directory_;
  model::Model model_;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// For each row it takes the sum of squares of the differences from float32, ours and transformers';
// the medians, since a router that is nearly undecided sends a row to other experts in bf16.
TEST_P(RandomModelsBf16, LogitsAreNoFurtherFromFloat32ThanThoseOfTransformers) {
  const auto reference = ReferenceModel::Load(model_, {.round_bf16 = true, .round_compute = true});
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto columns = float32_.at("columns").get<std::vector<size_t>>();
  std::vector<double> ours;
  std::vector<double> theirs;
  for (size_t i = 0; i < golden_.at("prompts").size(); ++i) {
    const nlohmann::json& prompt = float32_.at("prompts")[i];
    const auto logits = reference->Logits(prompt.at("tokens").get<std::vector<TokenId>>());
    for (size_t j = 0; j < prompt.at("rows").size(); ++j) {
      const nlohmann::json& row = prompt.at("rows")[j];
      const std::vector<float>& our_row = logits[row.at("position").get<size_t>()];
      ours.push_back(0);
      theirs.push_back(0);
      for (size_t k = 0; k < columns.size(); ++k) {
        const double exact = row.at("values")[k].get<double>();
        ours.back() += std::pow(our_row[columns[k]] - exact, 2);
        theirs.back() += std::pow(golden_.at("prompts")[i][j][k].get<double>() - exact, 2);
      }
    }
  }
  RecordProperty("ours_to_theirs", std::to_string(std::sqrt(Median(ours) / Median(theirs))));
  EXPECT_LE(Median(ours), Median(theirs));
}

// A product of two numbers of bf16 is exact in float32, so its rounding is one and the same.
TEST_P(RandomModelsBf16, ScaledEmbeddingsHaveTheBitsOfTransformers) {
  const auto* embed = FirstOp<model::EmbedOp>(model_.graph);
  const auto* scale = FirstOp<model::ScaleOp>(model_.graph);
  ASSERT_NE(embed, nullptr);
  std::vector<float> table(size_t{model_.config.vocabulary} * model_.config.width);
  ASSERT_TRUE(model::ReadWeight(model_, embed->table, absl::MakeSpan(table)).ok());
  const bool scaled = absl::StartsWith(model_.config.architecture, "gemma");
  const float factor = scaled ? scale->factor : 1.0f;
  const auto tokens = float32_.at("prompts").back().at("tokens").get<std::vector<size_t>>();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const nlohmann::json& row = golden_.at("embedded")[i];
    for (size_t j = 0; j < row.size(); ++j) {
      const float ours = factor * table[tokens[i] * model_.config.width + j];
      ASSERT_EQ(ToFloat(ToBFloat16(ours)), row[j].get<float>()) << "token " << i << ", " << j;
    }
  }
}

// Cosines and sines of all positions in bf16. They are made in float32 and may differ there in the
// last bits, which now and then end on the other side of a step of bf16.
TEST_P(RandomModelsBf16, RotationsAreThoseOfTransformers) {
  if (!golden_.contains("cosines")) {
    GTEST_SKIP() << "not a case of rope";
  }
  const auto* rope = FirstOp<model::RopeOp>(model_.graph);
  ASSERT_NE(rope, nullptr);
  const nlohmann::json& cosines = golden_.at("cosines");
  ASSERT_EQ(cosines[0].size(), rope->frequencies.size());
  size_t other_bits = 0;
  for (size_t position = 0; position < cosines.size(); ++position) {
    for (size_t i = 0; i < rope->frequencies.size(); ++i) {
      const float angle = static_cast<float>(position) * rope->frequencies[i];
      const float cosine = rope->magnitude * std::cos(angle);
      const float sine = rope->magnitude * std::sin(angle);
      const float their_cosine = cosines[position][i].get<float>();
      const float their_sine = golden_.at("sines")[position][i].get<float>();
      ASSERT_NEAR(cosine, their_cosine, 0x1p-8f) << "position " << position << ", " << i;
      ASSERT_NEAR(sine, their_sine, 0x1p-8f) << "position " << position << ", " << i;
      other_bits += ToFloat(ToBFloat16(cosine)) != their_cosine ? 1 : 0;
      other_bits += ToFloat(ToBFloat16(sine)) != their_sine ? 1 : 0;
    }
  }
  EXPECT_LE(other_bits, 2u);
}

INSTANTIATE_TEST_SUITE_P(Cases, RandomModelsBf16,
                         ::testing::Range(size_t{0}, RandomModelBf16Cases().size()),
                         [](const ::testing::TestParamInfo<size_t>& test) {
                           return RandomModelBf16Cases()[test.param].at("name").get<std::string>();
                         });

}  // namespace
}  // namespace lamina
