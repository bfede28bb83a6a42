// SPDX-License-Identifier: Apache-2.0
#include "client/cli/plan_files.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/cli/plan_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/source_path.h"

namespace lamina::cli {
namespace {

using testing::HasSubstr;

constexpr char kConfig[] = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
  "max_position_embeddings": 4096})";

class PlanFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
    catalogue_ = *LoadCatalogue(test_support::SourcePath("cost/catalogues/default.yaml"));
  }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  std::filesystem::path folder_;
  cost::Catalogue catalogue_;
};

TEST_F(PlanFilesTest, AModelIsANameOrAConfigWithoutWeights) {
  EXPECT_EQ(LoadShape(catalogue_, "Llama-3-8B")->layers, 32u);
  const std::string file = Write("config.json", kConfig);
  EXPECT_EQ(LoadShape(catalogue_, file)->kv_heads, 2u);
  const absl::StatusOr<cost::ModelShape> shape = LoadShape(catalogue_, folder_.string());
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->name, "AModelIsANameOrAConfigWithoutWeights");
}

TEST_F(PlanFilesTest, WhatIsNoModelIsNamed) {
  const absl::Status status = LoadShape(catalogue_, "Llama-3-8").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean 'Llama-3-8B'?"));
}

TEST_F(PlanFilesTest, CalibrationsNameADevice) {
  const std::string file = Write("c.json", R"({"format": 1, "device": "x", "date": "2026"})");
  EXPECT_EQ(LoadCalibration(catalogue_, "H200=" + file)->device, "H200");
  EXPECT_THAT(std::string(LoadCalibration(catalogue_, "H20=" + file).status().message()),
              HasSubstr("is not DEVICE=FILE with a device of the catalogue"));
  EXPECT_EQ(LoadCalibration(catalogue_, "H200=absent.json").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(PlanFilesTest, PlansSayWhatTheyRestOnAndMarkOldPrices) {
  planner::Problem problem;
  problem.catalogue = catalogue_;
  problem.model = *catalogue_.FindModel("Llama-3-8B");
  problem.load = {.rate = 0, .input = 512, .output = 128};
  problem.machines_max = 2;
  const planner::WhyNot runs = [](const auto&, const auto&) { return std::string(); };
  const absl::StatusOr<planner::Plans> plans =
      planner::Optimise(problem, 3, runs, planner::Search::kBounded);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const std::string text = PlansText(problem, *plans, "2026-11-24");
  EXPECT_THAT(text, HasSubstr("Analytic evaluation of the steady state"));
  EXPECT_THAT(text, HasSubstr("measured: "));
  EXPECT_THAT(text, HasSubstr("rtx4090-1 on demand 2026-03-01 (OLD)"));
  EXPECT_THAT(PlansText(problem, *plans, "2026-04-01"), testing::Not(HasSubstr("(OLD)")));
  EXPECT_THAT(ExplainText(problem, *plans), HasSubstr("A request costs"));
  const Json json = PlansToJson(problem, *plans, "2026-11-24");
  EXPECT_EQ(json["runnable"].size(), 3u);
  EXPECT_EQ(json["runnable"][0]["price_per_hour"]["by"], "assumed");
}

// The margin is for finding larger plans, where those before did not carry the rate.
TEST_F(PlanFilesTest, APlanCarriesTheRateByItsSimulationOrItsBound) {
  planner::Problem problem;
  problem.catalogue = catalogue_;
  problem.model = *catalogue_.FindModel("Llama-3-8B");
  problem.load = {.rate = 0.1, .input = 512, .output = 128};
  problem.machines_max = 1;
  problem.margin = 1e6;
  const planner::WhyNot runs = [](const auto&, const auto&) { return std::string(); };
  absl::StatusOr<planner::Plans> plans =
      planner::Optimise(problem, 1, runs, planner::Search::kBounded);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const auto carries = [&] {
    return PlansToJson(problem, *plans, "2026-11-24")["runnable"][0]["carries_rate"].get<bool>();
  };

  EXPECT_TRUE(carries());
  EXPECT_THAT(PlansText(problem, *plans, "2026-11-24"),
              testing::Not(HasSubstr("does not carry the rate")));
  plans->runnable[0].simulated = planner::SimulatedFigures{.goodput = 0.05, .carries = false};
  EXPECT_FALSE(carries());
}

}  // namespace
}  // namespace lamina::cli
