// SPDX-License-Identifier: Apache-2.0
#include "cost/calibration.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cost/rates.h"
#include "cost/unit_seconds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cost/catalogue_text.h"

namespace lamina::cost {
namespace {

using testing::HasSubstr;

constexpr char kText[] = R"({"format": 1, "device": "chip", "date": "2026-11-24T00:00:00Z",
  "t_slice": [{"model": "LLaMA-3-8B", "width": 4096, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "hidden": 14336,
    "points": [{"rows": 1, "seconds": 0.0003}, {"rows": 101, "seconds": 0.0013}]}],
  "t_attn": [{"kernel": "canonical", "kv_heads": 8, "group": 4, "head_dim": 128,
    "points": [{"rows": 1, "context": 1000, "tokens": 1000, "seconds": 0.00011}, {"rows": 9, "context": 1000, "tokens": 9000, "seconds": 0.00019}]},
   {"kernel": "tensor", "kv_heads": 8, "group": 4, "head_dim": 128, "points": [{"tokens": 1000, "seconds": 1}]}]})";

TEST(CalibrationTest, GoesBeforeTheCatalogue) {
  const absl::StatusOr<Calibration> calibration = ParseCalibration(kText, "calibration.json");
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  EXPECT_EQ(calibration->slices[0].rows.points, 2u);
  const Catalogue catalogue = *ParseCatalogue(kSmallCatalogue, "small.yaml");
  const ModelShape shape = *CatalogueOfTree("default").FindModel("Llama-3-8B");
  const DeviceRates rates = WithCalibration(RatesOf(catalogue.devices[0]), *calibration, shape);
  const Estimate slice =
      DenseSeconds(rates.dense, 2 * shape.LayerWeights(), 51 * shape.LayerFlopsPerRow());
  EXPECT_NEAR(slice.value, 0.0008, 1e-9);  // Half way between the points.
  EXPECT_EQ(slice.provenance, Provenance::kMeasured);
  EXPECT_NEAR(rates.attention.fixed.value, 0.0001, 1e-9);
  EXPECT_NEAR(rates.attention.seconds_per_byte.value * 4096, 1e-8, 1e-15);
}

// A step of 4 rows and a chunk of 96 tokens takes as long as its slices and its head, and a tenth
// of the slices more.
TEST(CalibrationTest, StepsOfRowsAndPromptsTakeTheShareThatWasMeasured) {
  constexpr char kMore[] = R"({"format": 1,
  "t_head": [{"weights": 525336576, "points": [{"rows": 1, "seconds": 0.002}]}],
  "t_prompt_attn": [{"q_heads": 32, "head_dim": 128, "points": [{"tokens": 96, "seconds": 0.0002}]}],
  "t_border": [{"points": [{"rows": 2, "seconds": 0.0007}, {"rows": 4, "seconds": 0.0004}]}],
  "t_mixed": [{"points": [{"rows": 4, "context": 256, "tokens": 96, "lanes": 2, "seconds": SECONDS}]}],)";
  const ModelShape shape = *CatalogueOfTree("default").FindModel("Llama-3-8B");
  const auto rates = [&](double seconds) {
    const std::string text = absl::StrReplaceAll(
        kText,
        {{"{\"format\": 1,", absl::StrReplaceAll(kMore, {{"SECONDS", absl::StrCat(seconds)}})}});
    const absl::StatusOr<Calibration> calibration = ParseCalibration(text, "c.json");
    EXPECT_TRUE(calibration.ok()) << calibration.status();
    return WithCalibration({}, *calibration, shape);
  };
  Cluster cluster;
  const double slice = 0.0003 + 99 * 1e-5 + 0.0002;
  const double others = 0.002 * 5 + 0.0004;
  cluster.compute = rates(1.1 * 32 * slice + others);
  EXPECT_NEAR(cluster.compute.times->border, 0.0004, 1e-12);
  EXPECT_NEAR(cluster.compute.times->mixed, 1.1, 1e-6);
  const StepLoad mixed = {.rows = 4, .prompt_tokens = 96, .prompt_length = 96};
  EXPECT_NEAR(SliceSeconds(shape, cluster, mixed).value, 1.1 * slice, 1e-7);
  const StepLoad prompt = {.rows = 0, .prompt_tokens = 100, .prompt_length = 96};
  EXPECT_NEAR(SliceSeconds(shape, cluster, prompt).value, slice, 1e-4 * slice + 1e-5);
  // No step is said to be shorter than its parts.
  EXPECT_EQ(rates(0.5 * 32 * slice).times->mixed, 1);
}

TEST(CalibrationTest, BadFilesAreNamed) {
  const auto error = [](absl::string_view from, absl::string_view to) {
    const std::string text = absl::StrReplaceAll(kText, {{from, to}});
    return std::string(ParseCalibration(text, "c.json").status().message());
  };
  EXPECT_THAT(error("\"format\": 1", "\"format\": 2"), HasSubstr("\"format\" is not 1"));
  EXPECT_THAT(error("\"rows\": 101", "\"rows\": 0"),
              HasSubstr("c.json: t_slice.0: \"rows\" should be a number above 0"));
  EXPECT_THAT(error("\"kernel\": \"tensor\"", "\"kernel\": 3"),
              HasSubstr("t_attn.1: \"kernel\" should be a text"));
  EXPECT_THAT(error("\"t_attn\":", R"("t_mixed": [{"points": [{"rows": 1}]}], "t_attn":)"),
              HasSubstr("t_mixed.0: \"context\" should be a number above 0"));
  EXPECT_THAT(error("\"t_attn\":", R"("t_border": [{"points": []}], "t_attn":)"),
              HasSubstr("t_border.0: \"points\" should be a list"));
  EXPECT_THAT(std::string(ParseCalibration("{", "c.json").status().message()),
              HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace lamina::cost
