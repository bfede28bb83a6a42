// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/unit/kernels/dense_test_util.h"

namespace lamina::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Routed(RouteKind kind, const std::vector<float>& scores, size_t chosen) {
  std::vector<float> out(2 * chosen);
  RouteRows(kind, Packed(scores.data(), 1, scores.size()), chosen,
            Packed(out.data(), 1, out.size()));
  return out;
}

TEST(RouteRowsTest, TakesTheHighestScoresAscendingById) {
  const std::vector<float> out = Routed(RouteKind::kSoftmaxNormalised, {1, 5, -2, 4, 3}, 3);
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 3), (std::vector<float>{1, 3, 4}));
  const double sum = std::exp(5.0) + std::exp(4.0) + std::exp(3.0);
  EXPECT_FLOAT_EQ(out[3], static_cast<float>(std::exp(5.0) / sum));
  EXPECT_FLOAT_EQ(out[5], static_cast<float>(std::exp(3.0) / sum));
}

TEST(RouteRowsTest, OfEqualScoresTheLowerExpertIsTaken) {
  const std::vector<float> out = Routed(RouteKind::kSoftmax, {2, 7, 2, 2}, 2);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 1);
}

TEST(RouteRowsTest, SharesOfAllExpertsDoNotSumToOne) {
  const std::vector<float> out = Routed(RouteKind::kSoftmax, {0, 0, 0, 0}, 2);
  EXPECT_EQ(out[2], 0.25f);
  EXPECT_EQ(Routed(RouteKind::kChosenSoftmax, {0, 0, 0, 0}, 2)[2], 0.5f);
}

TEST(RouteRowsTest, LargeScoresDoNotOverflow) {
  const std::vector<float> out = Routed(RouteKind::kSoftmaxNormalised, {3000, 2999, -3000}, 2);
  EXPECT_FLOAT_EQ(out[2], static_cast<float>(1 / (1 + std::exp(-1.0))));
}

// The row is lost, and no other: its ids stay within the experts.
TEST(RouteRowsTest, NanIsChosenLast) {
  const std::vector<float> out = Routed(RouteKind::kSoftmaxNormalised, {kNan, 1, kNan, 2}, 2);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 3);
  const std::vector<float> lost = Routed(RouteKind::kSoftmaxNormalised, {kNan, kNan, kNan}, 2);
  EXPECT_EQ(lost[0], 0);
  EXPECT_EQ(lost[1], 1);
}

class ExpertLayersTest : public testing::TestWithParam<DType> {
 protected:
  static constexpr size_t kExperts = 5;
  static constexpr size_t kChosen = 2;
  static constexpr size_t kIn = 48;
  static constexpr size_t kHidden = 80;
  static constexpr size_t kOut = 33;

  std::vector<Expert> Pack(Dense& dense) const {
    std::vector<Expert> experts;
    for (unsigned e = 0; e < kExperts; ++e) {
      const std::vector<float> gate_up = RandomFloats(2 * kHidden * kIn, 10 + e, 0.2f);
      const std::vector<float> down = RandomFloats(kOut * kHidden, 20 + e, 0.2f);
      const std::vector<float> bias = RandomFloats(kOut, 30 + e);
      experts.push_back({.gate_up = *dense.Pack(gate_up.data(), DType::kF32, 2 * kHidden, kIn, {}),
                         .down = *dense.Pack(down.data(), DType::kF32, kOut, kHidden, bias)});
    }
    return experts;
  }

  std::vector<float> Run(Dense& dense, const std::vector<Expert>& experts, Activations& in,
                         const std::vector<float>& route) {
    const size_t rows = in.row_count();
    std::vector<float> out(rows * kOut, kNan);
    layers_.Run({.experts = experts,
                 .chosen = kChosen,
                 .hidden = kHidden,
                 .activation = Activation::kSilu,
                 .in = in.view(),
                 .route = Packed(route.data(), rows, 2 * kChosen),
                 .out = Packed(out.data(), rows, kOut)},
                dense);
    return out;
  }

  static std::vector<float> RandomRoutes(size_t rows) {
    const std::vector<float> scores = RandomFloats(rows * kExperts, 5, 2);
    std::vector<float> route(rows * 2 * kChosen);
    RouteRows(RouteKind::kSoftmaxNormalised, Packed(scores.data(), rows, kExperts), kChosen,
              Packed(route.data(), rows, 2 * kChosen));
    return route;
  }

  ExpertLayers layers_;
};

// Row by row and expert by expert, by the plain layers. The two differ as Linear's do.
TEST_P(ExpertLayersTest, IsTheWeightedSumOfTheChosenExperts) {
  const auto cpu = MakeDense(GetParam(), false, 2);
  const auto plain = MakeReferenceDense(GetParam());
  const auto fast_experts = Pack(*cpu);
  const auto experts = Pack(*plain);
  for (const size_t rows : {1, 16, 70}) {
    Activations in = Activations::Random(rows, kIn, GetParam(), 3);
    const std::vector<float> route = RandomRoutes(rows);
    const std::vector<float> got = Run(*cpu, fast_experts, in, route);
    for (size_t row = 0; row < rows; ++row) {
      std::vector<float> expected(kOut, 0.0f);
      for (size_t i = 0; i < kChosen; ++i) {
        const Expert& expert = experts[static_cast<size_t>(route[row * 2 * kChosen + i])];
        Activations one(1, kIn, GetParam());
        for (size_t j = 0; j < kIn; ++j) {
          one.Set(0, j, in.Get(row, j));
        }
        std::vector<float> gate_up(2 * kHidden);
        Activations activated(1, kHidden, GetParam());
        std::vector<float> down(kOut);
        plain->Linear(*expert.gate_up, one.view(), 0, Packed(gate_up.data(), 1, 2 * kHidden));
        plain->GatedActivation(Activation::kSilu, Packed(gate_up.data(), 1, 2 * kHidden),
                               activated.view());
        plain->Linear(*expert.down, activated.view(), 0, Packed(down.data(), 1, kOut));
        for (size_t j = 0; j < kOut; ++j) {
          expected[j] += route[(row * 2 + 1) * kChosen + i] * down[j];
        }
      }
      for (size_t j = 0; j < kOut; ++j) {
        ASSERT_NEAR(got[row * kOut + j], expected[j], GetParam() == DType::kF32 ? 1e-4 : 2e-2)
            << rows << " rows, row " << row << " column " << j;
      }
    }
  }
}

TEST_P(ExpertLayersTest, ARowsBitsDoNotDependOnTheOthers) {
  const auto cpu = MakeDense(GetParam(), false, 2);
  const auto experts = Pack(*cpu);
  constexpr size_t kRows = 600;  // More than are taken together.
  Activations in = Activations::Random(kRows, kIn, GetParam(), 3);
  const std::vector<float> route = RandomRoutes(kRows);
  const std::vector<float> all = Run(*cpu, experts, in, route);
  for (const size_t row : {size_t{0}, size_t{17}, kRows - 1}) {
    Activations one(1, kIn, GetParam());
    for (size_t j = 0; j < kIn; ++j) {
      one.Set(0, j, in.Get(row, j));
    }
    const std::vector<float> alone =
        Run(*cpu, experts, one,
            {route.begin() + static_cast<std::ptrdiff_t>(row * 2 * kChosen),
             route.begin() + static_cast<std::ptrdiff_t>((row + 1) * 2 * kChosen)});
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + row * kOut, kOut * sizeof(float)), 0) << row;
  }
}

// All rows of one expert: none is dropped.
TEST_P(ExpertLayersTest, AllRowsMayGoToTheSameExperts) {
  const auto cpu = MakeDense(GetParam(), false, 2);
  const auto experts = Pack(*cpu);
  constexpr size_t kRows = 100;
  Activations in(kRows, kIn, GetParam());
  std::vector<float> route;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t j = 0; j < kIn; ++j) {
      in.Set(row, j, 0.01f * static_cast<float>(j));
    }
    route.insert(route.end(), {1, 4, 0.25f, 0.75f});
  }
  const std::vector<float> out = Run(*cpu, experts, in, route);
  for (size_t row = 1; row < kRows; ++row) {
    ASSERT_EQ(std::memcmp(out.data(), out.data() + row * kOut, kOut * sizeof(float)), 0) << row;
  }
  EXPECT_NE(out[0], 0.0f);
}

// Experts that are taken together have rows in common, and copies of all their inputs.
TEST_P(ExpertLayersTest, TakesNoMoreThanIsPreparedForItsRows) {
  EXPECT_EQ(ExpertLayers::RowsTogetherMax(10, kChosen), 20u);
  EXPECT_EQ(ExpertLayers::RowsTogetherMax(300, kChosen), 512u);
  EXPECT_EQ(ExpertLayers::RowsTogetherMax(700, kChosen), 700u);
  const ExpertsShape shape = {
      .in = 100, .hidden = 10, .out = 1, .chosen = kChosen, .dtype = DType::kF32};
  EXPECT_EQ(ExpertLayers::BytesMax(shape, 10), 20u * 4 * (100 + 20 + 10 + 1) + 10 * kChosen * 8);
  for (const size_t rows : {10, 300, 700}) {
    const auto cpu = MakeDense(GetParam(), /*fallback_gemm=*/true, 2);
    const auto experts = Pack(*cpu);
    for (const Expert& expert : experts) {
      const size_t together = ExpertLayers::RowsTogetherMax(rows, kChosen);
      ASSERT_TRUE(cpu->Prepare(*expert.gate_up, together).ok());
      ASSERT_TRUE(cpu->Prepare(*expert.down, together).ok());
    }
    const uint64_t prepared = cpu->scratch_bytes();
    Activations in = Activations::Random(rows, kIn, GetParam(), 3);
    Run(*cpu, experts, in, RandomRoutes(rows));
    EXPECT_EQ(cpu->scratch_bytes(), prepared) << rows << " rows";
  }
}

TEST_P(ExpertLayersTest, NoRowsAreNothing) {
  const auto cpu = MakeDense(GetParam(), false, 2);
  Activations in(0, kIn, GetParam());
  EXPECT_TRUE(Run(*cpu, Pack(*cpu), in, {}).empty());
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertLayersTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) {
                           return test.param == DType::kF32 ? std::string("F32")
                                                            : std::string("BF16");
                         });

}  // namespace
}  // namespace lamina::kernels
