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

TEST_F(PlanFilesTest, AModelThatNoFileCanBeIsAnError) {
  const absl::Status status = LoadShape(catalogue_, std::string(300, 'm')).status();
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::StartsWith("--model: 'mmm"), HasSubstr("name too long")));
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
  EXPECT_THAT(ExplainText(problem, *plans),
              testing::AllOf(HasSubstr("A request costs"), HasSubstr("assumed: ")));
  const Json json = PlansToJson(problem, *plans, "2026-11-24");
  EXPECT_EQ(json["runnable"].size(), 3u);
  EXPECT_EQ(json["runnable"][0]["price_per_hour"]["by"], "assumed");
}

TEST_F(PlanFilesTest, MachinesThatCostNothingAreExplainedWithoutQuotients) {
  planner::Problem problem;
  problem.catalogue = catalogue_;
  for (cost::Machine& machine : problem.catalogue.machines) {
    machine.price = {.kind = cost::PriceKind::kOnDemand};
  }
  problem.model = *catalogue_.FindModel("Llama-3-8B");
  problem.machines_max = 1;
  const planner::WhyNot runs = [](const auto&, const auto&) { return std::string(); };
  for (const double rate : {0.0, 0.1}) {
    problem.load = {.rate = rate, .input = 512, .output = 128};
    const absl::StatusOr<planner::Plans> plans =
        planner::Optimise(problem, 2, runs, planner::Search::kBounded);
    ASSERT_TRUE(plans.ok()) << plans.status();
    EXPECT_THAT(ExplainText(problem, *plans),
                testing::AllOf(HasSubstr(rate > 0 ? "by the hour, the winner nothing"
                                                  : "and the winner costs nothing"),
                               testing::Not(HasSubstr("nan%"))));
  }
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

TEST_F(PlanFilesTest, SimulatedFiguresSayWhatTheyRestOn) {
  planner::Problem problem;
  problem.catalogue = catalogue_;
  problem.model = *catalogue_.FindModel("Llama-3-8B");
  problem.load = {.rate = 0, .input = 512, .output = 128};
  problem.machines_max = 1;
  const planner::WhyNot runs = [](const auto&, const auto&) { return std::string(); };
  absl::StatusOr<planner::Plans> plans =
      planner::Optimise(problem, 1, runs, planner::Search::kBounded);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const auto basis = [&] {
    return PlansToJson(problem, *plans, "2026-11-24")["runnable"][0]["simulated"]["basis"];
  };
  plans->runnable[0].simulated = planner::SimulatedFigures{};
  EXPECT_EQ(basis()["coordinator"], "assumed");
  EXPECT_EQ(basis()["memory"], "assumed");
  EXPECT_FALSE(basis().contains("lengths"));
  EXPECT_THAT(PlansText(problem, *plans, "2026-11-24"),
              HasSubstr("assumed too: the coordinator's time\n"));
  plans->runnable[0].simulated->drawn_lengths = true;
  EXPECT_EQ(basis()["lengths"], "assumed");
  EXPECT_THAT(PlansText(problem, *plans, "2026-11-24"),
              HasSubstr("assumed too: the coordinator's time, the spread of lengths\n"));
}

TEST(PlanViewTest, SensitivitiesAndPlotsSayTheWorstOfTheirFigures) {
  const planner::SensitivityStudy study = {
      .machines = "1 x a",
      .arrangement = "1 replica, local",
      .quantities = {{.what = "price of a",
                      .value = 3,
                      .unit = "USD/h",
                      .by = "datasheet",
                      .lower = {0.75, "1 x a", cost::Provenance::kDatasheet},
                      .upper = {1.25, "1 x a", cost::Provenance::kScaled},
                      .basis = cost::Provenance::kScaled}}};
  const Json json = SensitivityToJson(study)[0];
  EXPECT_EQ(json["by"], "datasheet");
  EXPECT_EQ(json["lower"]["basis"], "datasheet");
  EXPECT_EQ(json["basis"], "scaled");
  EXPECT_THAT(SensitivityText(study), HasSubstr("scaled    none within 25%\n"));

  planner::Pareto pareto;
  pareto.runnable = {{0.01, 2, "1 x a", cost::Provenance::kMeasured},
                     {0.02, 1, "1 x b", cost::Provenance::kScaled}};
  const std::string svg = ParetoSvg({}, pareto);
  EXPECT_THAT(svg, HasSubstr("(formulas; figures scaled at worst)"));
  EXPECT_THAT(svg, HasSubstr("1 x a, figures measured at worst"));
}

TEST_F(PlanFilesTest, ACatalogueLiesOverAFile) {
  const std::string whole = test_support::SourcePath("cost/catalogues/default.yaml");
  Write("mine.yaml",
        absl::StrCat("base: ", whole,
                     "\nmachines: [{name: h200-1, price: {kind: spot, hour: {value: 2.5 USD/h, by: "
                     "assumed, source: cloud_2026_05}}}]\n"));
  const std::string file = Write("again.yaml", "base: mine.yaml\neconomics: {spares: 1}\n");
  const absl::StatusOr<cost::Catalogue> catalogue = LoadCatalogue(file);
  ASSERT_TRUE(catalogue.ok()) << catalogue.status();
  EXPECT_EQ(catalogue->FindMachine("h200-1")->price.hour.value, 2.5);
  EXPECT_EQ(catalogue->FindMachine("h200-1")->device, "H200");
  EXPECT_EQ(catalogue->economics.spares, 1u);
  EXPECT_EQ(catalogue->models.size(), catalogue_.models.size());
}

TEST_F(PlanFilesTest, BasesThatLeadNowhereAreNamed) {
  const std::string file = Write("absent.yaml", "base: nowhere.yaml\n");
  const absl::Status absent = LoadCatalogue(file).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(absent.message()),
              HasSubstr("absent.yaml:1: base: cannot open the catalogue"));
  Write("first.yaml", "base: second.yaml\n");
  const std::string circle = Write("second.yaml", "base: first.yaml\n");
  const absl::Status status = LoadCatalogue(circle).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("first.yaml:1: base: "),
                             HasSubstr("a base leads to no file twice")));
}

}  // namespace
}  // namespace lamina::cli
