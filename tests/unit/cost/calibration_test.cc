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
  EXPECT_NEAR(rates.attention.fixed.value, 0.0001, 1e-9);
  EXPECT_NEAR(rates.attention.seconds_per_byte.value * 4096, 1e-8, 1e-15);
}

TEST(CalibrationTest, MeasuredIsWhatHasTheModelsShapeAndTheRestIsScaled) {
  const absl::StatusOr<Calibration> calibration = ParseCalibration(kText, "calibration.json");
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  const Catalogue catalogue = CatalogueOfTree("default");
  const ModelShape own = *catalogue.FindModel("Llama-3-8B");
  const ModelShape other = *catalogue.FindModel("LLaMA-13B");
  const StepLoad rows = {.rows = 8, .context = 100};
  Cluster cluster;

  cluster.compute = WithCalibration({}, *calibration, own);
  EXPECT_EQ(SliceSeconds(own, cluster, rows).provenance, Provenance::kMeasured);
  EXPECT_EQ(cluster.compute.attention.seconds_per_byte.provenance, Provenance::kMeasured);
  EXPECT_EQ(HeadSeconds(own, cluster, 8).provenance, Provenance::kScaled);
  cluster.shards = 2;  // Half a layer was not measured.
  EXPECT_EQ(SliceSeconds(own, cluster, rows).provenance, Provenance::kScaled);

  cluster.shards = 1;
  cluster.compute = WithCalibration({}, *calibration, other);
  EXPECT_EQ(SliceSeconds(other, cluster, rows).provenance, Provenance::kScaled);
  EXPECT_EQ(cluster.compute.attention.fixed.provenance, Provenance::kScaled);
  EXPECT_EQ(cluster.compute.attention.seconds_per_row.provenance, Provenance::kScaled);
}

TEST(CalibrationTest, MemoryLessTheReserveIsAssumed) {
  const Catalogue catalogue = *ParseCatalogue(kSmallCatalogue, "small.yaml");
  const Estimate capacity = RatesOf(catalogue.devices[0]).capacity;
  EXPECT_EQ(catalogue.devices[0].capacity.provenance, Provenance::kMeasured);
  EXPECT_NEAR(capacity.value, 90e9, 1);
  EXPECT_EQ(capacity.provenance, Provenance::kAssumed);
}

// A cluster has one kernel, which its file names.
TEST(CalibrationTest, AnotherKernelCountsWhereTheCanonicalOneWasNotMeasured) {
  const absl::StatusOr<Calibration> calibration =
      ParseCalibration(absl::StrReplaceAll(kText, {{"canonical", "pairs"}}), "c.json");
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  const ModelShape shape = *CatalogueOfTree("default").FindModel("Llama-3-8B");
  const DeviceRates rates = WithCalibration({}, *calibration, shape);
  EXPECT_NEAR(rates.attention.fixed.value, 0.0001, 1e-9);
  EXPECT_NEAR(rates.attention.seconds_per_byte.value * 4096, 1e-8, 1e-15);
}

TEST(CalibrationTest, BordersAreReadOverRows) {
  constexpr char kBorders[] =
      R"("t_border": [{"points": [{"rows": 2, "seconds": 0.0007}, {"rows": 4, "seconds": 0.0004}]}],)";
  const std::string text =
      absl::StrReplaceAll(kText, {{"\"t_attn\":", absl::StrCat(kBorders, " \"t_attn\":")}});
  const absl::StatusOr<Calibration> calibration = ParseCalibration(text, "c.json");
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  const ModelShape shape = *CatalogueOfTree("default").FindModel("Llama-3-8B");
  Cluster cluster;
  cluster.compute = WithCalibration({}, *calibration, shape);
  EXPECT_NEAR(BorderSeconds(cluster, 1), 0.0007, 1e-12);
  EXPECT_NEAR(BorderSeconds(cluster, 3), 0.00055, 1e-12);
  EXPECT_NEAR(BorderSeconds(cluster, 100), 0.0004, 1e-12);
  EXPECT_EQ(BorderSeconds({}, 1), 0);
}

// With several lanes one row alone says what a layer waits for: it is no more for each row.
TEST(CalibrationTest, AnExchangeThatWasMeasuredWithOneRowIsThatOfAll) {
  const auto exchange = [](absl::string_view points) {
    const std::string text = absl::StrReplaceAll(
        kText, {{"\"t_attn\":",
                 absl::StrCat("\"t_exchange\": [{\"points\": [", points, "]}], \"t_attn\":")}});
    const absl::StatusOr<Calibration> calibration = ParseCalibration(text, "c.json");
    EXPECT_TRUE(calibration.ok()) << calibration.status();
    Cluster cluster;
    cluster.compute =
        WithCalibration({}, *calibration, *CatalogueOfTree("default").FindModel("Llama-3-8B"));
    return ExchangeSeconds(cluster, 16).value;
  };
  EXPECT_NEAR(exchange(R"({"rows": 1, "seconds": 4e-5})"), 4e-5, 1e-12);
  EXPECT_NEAR(exchange(R"({"rows": 1, "seconds": 4e-5}, {"rows": 1, "seconds": 6e-5})"), 5e-5,
              1e-12);
  EXPECT_NEAR(exchange(R"({"rows": 1, "seconds": 4e-5}, {"rows": 16, "seconds": 7e-5})"), 7e-5,
              1e-12);
}

// A file of a device has curves of several groups, most of them of one size.
TEST(CalibrationTest, AttentionOfTheModelsGroupCounts) {
  constexpr char kOthers[] = R"("t_attn": [
   {"kernel": "canonical", "kv_heads": 8, "group": 1, "head_dim": 128, "points": [{"rows": 64, "tokens": 262144, "seconds": 0.0002}]},
   {"kernel": "canonical", "kv_heads": 8, "group": 4, "head_dim": 128, "points": [{"rows": 64, "tokens": 262144, "seconds": 0.0004}]},
   {"kernel": "canonical", "kv_heads": 8, "group": 16, "head_dim": 128, "points": [{"rows": 64, "tokens": 262144, "seconds": 0.0008}]},)";
  const absl::StatusOr<Calibration> calibration =
      ParseCalibration(absl::StrReplaceAll(kText, {{"\"t_attn\": [", kOthers}}), "c.json");
  ASSERT_TRUE(calibration.ok()) << calibration.status();
  ModelShape shape = *CatalogueOfTree("default").FindModel("Llama-3-8B");

  const DeviceRates four = WithCalibration({}, *calibration, shape);
  shape.query_heads = 16 * shape.kv_heads;
  const DeviceRates sixteen = WithCalibration({}, *calibration, shape);

  EXPECT_NEAR(four.attention.fixed.value, 0.0001, 1e-9);  // The curve with two points.
  EXPECT_NEAR(sixteen.attention.seconds_per_byte.value * 262144 * 4096, 0.0008, 1e-9);
}

TEST(CalibrationTest, LayersOfExpertsAndWithoutAGateAreTheModelsOwn) {
  const auto rates_of = [](absl::string_view keys, const ModelShape& shape) {
    const std::string text = absl::StrReplaceAll(
        kText, {{"\"hidden\": 14336", absl::StrCat("\"hidden\": 14336, ", keys)}});
    const absl::StatusOr<Calibration> calibration = ParseCalibration(text, "c.json");
    EXPECT_TRUE(calibration.ok()) << calibration.status();
    return WithCalibration({}, calibration.value_or(Calibration{}), shape);
  };
  constexpr char kExperts[] = R"("experts": 8, "experts_per_token": 2)";
  ModelShape experts = *CatalogueOfTree("default").FindModel("Llama-3-8B");
  experts.experts = 8;
  experts.experts_per_token = 2;
  ModelShape gateless = *CatalogueOfTree("default").FindModel("Llama-3-8B");
  gateless.mlp_matrices = 2;

  const DeviceRates rates = rates_of(kExperts, experts);
  EXPECT_NE(rates.times, nullptr);
  const Estimate one_row = DenseSeconds(rates.dense, kElementBytes * experts.LayerWeightsRead(1),
                                        experts.LayerFlopsPerRow());
  EXPECT_NEAR(one_row.value, 0.0003, 1e-9);
  EXPECT_NE(rates_of(R"("mlp_matrices": 2)", gateless).times, nullptr);
  experts.experts_per_token = 4;
  EXPECT_EQ(rates_of(kExperts, experts).times, nullptr);
}

TEST(CalibrationTest, BadFilesAreNamed) {
  const auto error = [](absl::string_view from, absl::string_view to) {
    const std::string text = absl::StrReplaceAll(kText, {{from, to}});
    return std::string(ParseCalibration(text, "c.json").status().message());
  };
  EXPECT_THAT(error("\"format\": 1", "\"format\": 2"), HasSubstr("\"format\" is not 1"));
  EXPECT_THAT(error("\"rows\": 101", "\"rows\": 0"),
              HasSubstr("c.json: t_slice.0: \"rows\" should be a number above 0"));
  EXPECT_THAT(error("\"hidden\": 14336", "\"hidden\": 14336, \"experts_per_token\": 2"),
              HasSubstr("t_slice.0: \"experts_per_token\" is 2, more than \"experts\", 1"));
  EXPECT_THAT(error("\"width\": 4096", "\"width\": 0.5"),
              HasSubstr("t_slice.0: \"width\" should be a whole number in [1, "));
  EXPECT_THAT(error("\"kernel\": \"tensor\"", "\"kernel\": 3"),
              HasSubstr("t_attn.1: \"kernel\" should be a text"));
  EXPECT_THAT(error("\"t_attn\":", R"("t_border": [{"points": []}], "t_attn":)"),
              HasSubstr("t_border.0: \"points\" should be a list"));
  for (const absl::string_view value : {"0", "-0.0003", "\"NaN\"", "null"}) {
    EXPECT_THAT(error("0.0003}", absl::StrCat(value, "}")),
                HasSubstr("t_slice.0: \"seconds\" should be a number above 0"))
        << value;
  }
  // JSON has no words for these, and no number beyond those of a double.
  for (const absl::string_view value : {"NaN", "Infinity", "1e999"}) {
    EXPECT_THAT(error("0.0003}", absl::StrCat(value, "}")), HasSubstr("c.json: not a JSON object"))
        << value;
  }
  EXPECT_THAT(std::string(ParseCalibration("{", "c.json").status().message()),
              HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace lamina::cost
