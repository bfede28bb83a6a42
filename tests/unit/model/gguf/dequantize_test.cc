// SPDX-License-Identifier: Apache-2.0
//
// Dequantisation against goldens of the `gguf` Python package
// (tests/fidelity/make_dequantize_goldens.py).

#include "model/gguf/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "model/float16.h"
#include "nlohmann/json.hpp"
#include "tests/support/source_path.h"

namespace lamina::model {
namespace {

class DequantizeTest : public testing::TestWithParam<const char*> {};

TEST_P(DequantizeTest, EqualsTheReferenceToTheBit) {
  std::ifstream file(test_support::SourcePath("tests/fidelity/goldens/dequantize.json"));
  const nlohmann::json golden = nlohmann::json::parse(file).at(GetParam());
  const std::string blocks = absl::HexStringToBytes(golden.at("blocks").get<std::string>());
  const std::string expected = absl::HexStringToBytes(golden.at("values").get<std::string>());
  const GgufTensorType* type = FindGgufTensorType(absl::string_view(GetParam()));
  ASSERT_NE(type, nullptr);
  const size_t count = blocks.size() / type->block_bytes;
  ASSERT_EQ(expected.size(), count * type->block_elements * sizeof(float));

  std::vector<float> values(count * type->block_elements);
  for (size_t i = 0; i < count; ++i) {
    type->dequantize(reinterpret_cast<const uint8_t*>(blocks.data()) + i * type->block_bytes,
                     values.data() + i * type->block_elements);
  }

  size_t compared = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    float want;
    std::memcpy(&want, expected.data() + i * sizeof(float), sizeof(float));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(values[i])) << "element " << i;
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(want)) << "element " << i;
    ++compared;
  }
  EXPECT_GT(compared, values.size() * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(Types, DequantizeTest,
                         testing::Values("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                         "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4",
                                         "IQ4_NL", "IQ4_XS"),
                         [](const auto& test) { return std::string(test.param); });

TEST(GgufTensorTypeTest, UnknownTypeIsNamedTogetherWithTheKnownOnes) {
  const absl::Status named = FindGgufTensorType(22).status();
  const absl::Status numbered = FindGgufTensorType(977).status();

  EXPECT_EQ(named.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(named.message().find("IQ2_S"), absl::string_view::npos);
  EXPECT_NE(named.message().find("Q4_K"), absl::string_view::npos);
  EXPECT_NE(numbered.message().find("977"), absl::string_view::npos);
}

TEST(HalfToFloatTest, SpecialValues) {
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(HalfToFloat(0xfc00), -INFINITY);
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7e00)));
}

}  // namespace
}  // namespace lamina::model
