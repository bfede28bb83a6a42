// SPDX-License-Identifier: Apache-2.0
//
// Norms, rope, activations, additions, conversions and embeddings of the CPU against the reference,
// over odd sizes and strange values; and their bits over instruction sets, company and threads.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "kernels/cpu/own_linear_tiles.h"
#include "kernels/dense.h"
#include "tests/unit/kernels/dense_test_util.h"
#include "tests/unit/kernels/finish_qkv_cases.h"
#include "tests/unit/kernels/instruction_sets.h"

namespace lamina::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
constexpr size_t kWidths[] = {1, 2, 7, 15, 16, 17, 31, 48, 100, 576, 1023};

// One rounding to bf16 of two values that differ by less than its step gives neighbours.
double OutputStep(DType dtype) { return dtype == DType::kF32 ? 0 : 0x1p-7; }

void Compare(Activations& got, Activations& expected, double relative, double absolute,
             const std::string& what) {
  for (size_t i = 0; i < got.row_count(); ++i) {
    for (size_t j = 0; j < got.col_count(); ++j) {
      ExpectClose(got.Get(i, j), expected.Get(i, j), relative, absolute,
                  what + " row " + std::to_string(i) + " column " + std::to_string(j));
      if (testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
}

// Calls body(rows, cols, output type) over sizes.
void OverSizes(const std::function<void(size_t, size_t, DType)>& body) {
  for (const DType dtype : kTypes) {
    for (const size_t cols : kWidths) {
      for (const size_t rows : {0, 1, 3, 40}) {
        body(rows, cols, dtype);
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

class RowLayersTest : public testing::Test {
 protected:
  std::unique_ptr<Dense> cpu_ = MakeDense(DType::kBF16, true, 2);
  std::unique_ptr<Dense> reference_ = MakeReferenceDense(DType::kBF16);
};

// Two roundings of f32 (scale, product) after a scale that is good to one: 2^-22 in all.
TEST_F(RowLayersTest, RmsNormMatches) {
  OverSizes([&](size_t rows, size_t cols, DType dtype) {
    Activations x = Activations::Random(rows, cols, DType::kF32, cols, 3);
    if (rows > 2 && cols > 6) {
      x.Set(0, 3, 1e30f);
      x.Set(1, 5, kInf);
      x.Set(2, 6, kNan);
    }
    const std::vector<float> weight = RandomFloats(cols, 2);
    Activations got(rows, cols, dtype, 1);
    Activations expected(rows, cols, dtype, 1);
    cpu_->RmsNorm(x.floats(), weight, 1e-5f, got.view());
    reference_->RmsNorm(x.floats(), weight, 1e-5f, expected.view());
    Compare(got, expected, 0x1p-22 + OutputStep(dtype), 1e-36, "rms norm");
  });
}

// Both calls' bits, whatever of what is read is written over.
TEST_F(RowLayersTest, SumsWithTheirNormsHaveTheBitsOfBothCallsAlsoInPlace) {
  enum class Place : uint8_t { kApart, kA, kB };
  struct Case {
    Place sum;
    Place out;
  };
  for (const Case& c :
       {Case{Place::kApart, Place::kApart}, Case{Place::kA, Place::kApart},
        Case{Place::kB, Place::kApart}, Case{Place::kApart, Place::kA},
        Case{Place::kApart, Place::kB}, Case{Place::kA, Place::kB}, Case{Place::kB, Place::kA}}) {
    OverSizes([&](size_t rows, size_t cols, DType dtype) {
      if (dtype != DType::kF32 && c.out != Place::kApart) {
        return;  // Rows of bf16 are not as long as those that are read.
      }
      Activations a = Activations::Random(rows, cols, DType::kF32, cols, 3);
      Activations b = Activations::Random(rows, cols, DType::kF32, cols + 1, 3);
      const std::vector<float> weight = RandomFloats(cols, 2);
      Activations expected_sum(rows, cols, DType::kF32, 3);
      Activations expected_norm(rows, cols, dtype, 3);
      cpu_->Add(a.floats(), b.floats(), expected_sum.floats());
      cpu_->RmsNorm(expected_sum.floats(), weight, 1e-5f, expected_norm.view());

      Activations sum_apart(rows, cols, DType::kF32, 3);
      Activations out_apart(rows, cols, dtype, 3);
      const auto at = [&](Place place, Activations& apart) -> Activations& {
        return place == Place::kA ? a : place == Place::kB ? b : apart;
      };
      Activations& sum = at(c.sum, sum_apart);
      Activations& norm = at(c.out, out_apart);
      cpu_->AddRmsNorm(a.floats(), b.floats(), sum.floats(), weight, 1e-5f, norm.view());

      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < cols; ++j) {
          ASSERT_TRUE(SameBits(sum.Get(i, j), expected_sum.Get(i, j))) << "sum, row " << i;
          ASSERT_TRUE(SameBits(norm.Get(i, j), expected_norm.Get(i, j))) << "norm, row " << i;
        }
      }
    });
    ASSERT_FALSE(HasFatalFailure());
  }
}

// The centred value carries 2^-24 of itself and of the mean's low part; then as above, and the sum
// with the bias cancels at most down to the last places of the product (weights reach about 4).
TEST_F(RowLayersTest, LayerNormMatches) {
  OverSizes([&](size_t rows, size_t cols, DType dtype) {
    Activations x = Activations::Random(rows, cols, DType::kF32, cols + 1);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < cols; ++j) {
        x.Set(i, j, x.Get(i, j) + static_cast<float>(i % 3) * 1000.0f);  // Far from 0 too.
      }
    }
    if (rows > 2 && cols > 6) {
      x.Set(1, 5, -kInf);
      x.Set(2, 6, kNan);
    }
    const std::vector<float> weight = RandomFloats(cols, 2);
    const std::vector<float> bias = RandomFloats(cols, 3);
    Activations got(rows, cols, dtype);
    Activations expected(rows, cols, dtype);
    cpu_->LayerNorm(x.floats(), weight, bias, 1e-5f, got.view());
    reference_->LayerNorm(x.floats(), weight, bias, 1e-5f, expected.view());
    // A single column has no deviation but that of its rounding, which 1/sqrt(1e-5) enlarges.
    const double absolute = cols == 1 ? 1e-5 : 3e-6;
    Compare(got, expected, 0x1p-21 + OutputStep(dtype), absolute, "layer norm");
  });
}

std::vector<float> StrangeValues() {
  std::vector<float> values = {0.0f,   -0.0f,  1e-30f, -1e-30f, 1e-6f,  -1e-6f,  0.5f,
                               -0.5f,  3.0f,   -3.0f,  8.0f,    -8.0f,  20.0f,   -20.0f,
                               87.0f,  -87.0f, 88.8f,  -88.8f,  104.0f, -104.0f, 1e20f,
                               -1e20f, 3e38f,  -3e38f, kInf,    -kInf,  kNan};
  for (int i = -1300; i <= 1300; ++i) {
    values.push_back(static_cast<float>(i) * 0.0101f);
  }
  return values;
}

// exp and erfc are good to 2^-20, and the tails are small where they are not: below 1e-36 there are
// no subnormals.
constexpr double kActivationRelative = 0x1p-20;
constexpr double kActivationAbsolute = 2e-36;

TEST_F(RowLayersTest, ActivationsMatch) {
  const std::vector<float> values = StrangeValues();
  for (const DType dtype : kTypes) {
    for (const Activation activation :
         {Activation::kRelu, Activation::kSilu, Activation::kGeluErf, Activation::kGeluTanh}) {
      Activations x(1, values.size(), DType::kF32);
      std::copy(values.begin(), values.end(), x.floats().data);
      Activations got(1, values.size(), dtype);
      Activations expected(1, values.size(), dtype);
      cpu_->Activate(activation, x.floats(), got.view());
      reference_->Activate(activation, x.floats(), expected.view());
      // exp enlarges the rounding of its argument, up to 88 here, in f32: 88 2^-24.
      const double relative = kActivationRelative + 88 * 0x1p-23;
      Compare(got, expected, relative + OutputStep(dtype), kActivationAbsolute,
              "activation " + std::to_string(static_cast<int>(activation)));
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

TEST_F(RowLayersTest, GatedActivationsMatch) {
  for (const Activation activation : {Activation::kRelu, Activation::kSilu, Activation::kGeluErf,
                                      Activation::kGeluTanh, Activation::kClampedSwiglu}) {
    OverSizes([&](size_t rows, size_t cols, DType dtype) {
      Activations x = Activations::Random(rows, 2 * cols, DType::kF32, cols, 2);
      for (size_t i = 0; activation == Activation::kClampedSwiglu && i < rows; ++i) {
        for (size_t j = 0; j < 2 * cols; ++j) {
          x.Set(i, j, 5 * x.Get(i, j));  // Beyond its limits too.
        }
      }
      Activations got(rows, cols, dtype, 1);
      Activations expected(rows, cols, dtype, 1);
      cpu_->GatedActivation(activation, x.floats(), got.view());
      reference_->GatedActivation(activation, x.floats(), expected.view());
      Compare(got, expected, 0x1p-19 + OutputStep(dtype), kActivationAbsolute, "gated");
    });
  }
}

// As RmsNormMatches, of pieces of a row.
TEST_F(RowLayersTest, NormsOfHeadsMatch) {
  for (const bool whole : {false, true}) {
    for (const size_t head_dim : {size_t{16}, size_t{80}}) {
      for (const size_t rows : {0, 1, 3, 40}) {
        const size_t cols = (6 + 2 * 2) * head_dim;
        Activations x = Activations::Random(rows, cols, DType::kF32, cols, 3);
        const std::vector<float> q_weight = RandomFloats((whole ? 6 : 1) * head_dim, 2);
        const std::vector<float> k_weight = RandomFloats((whole ? 2 : 1) * head_dim, 3);
        const HeadNorms norms = {.query_heads = 6,
                                 .kv_heads = 2,
                                 .head_dim = head_dim,
                                 .whole = whole,
                                 .epsilon = 1e-5f,
                                 .q_weight = q_weight,
                                 .k_weight = k_weight};
        Activations got(rows, cols, DType::kF32, 1);
        Activations expected(rows, cols, DType::kF32, 1);
        cpu_->NormHeads(x.floats(), norms, got.floats());
        reference_->NormHeads(x.floats(), norms, expected.floats());
        Compare(got, expected, 0x1p-22, 1e-36, "norms of heads");
        ASSERT_FALSE(HasFatalFailure());
        for (size_t i = 0; i < rows; ++i) {
          for (size_t j = 8 * head_dim; j < cols; ++j) {
            ASSERT_EQ(got.Get(i, j), x.Get(i, j)) << "v of row " << i;
          }
        }
      }
    }
  }
}

// tanh is good to 2^-21 or so of itself; without a cap there is one rounding, the reference's.
TEST_F(RowLayersTest, FactorsAndSoftCapsMatch) {
  const std::vector<float> values = StrangeValues();
  for (const float soft_cap : {0.0f, 2.0f, 30.0f}) {
    Activations x(1, values.size(), DType::kF32);
    std::copy(values.begin(), values.end(), x.floats().data);
    Activations got(1, values.size(), DType::kF32);
    Activations expected(1, values.size(), DType::kF32);
    cpu_->Scale(x.floats(), 0.3f, soft_cap, got.floats());
    reference_->Scale(x.floats(), 0.3f, soft_cap, expected.floats());
    Compare(got, expected, soft_cap == 0.0f ? 0 : 0x1p-20, 1e-36, "soft cap");
    cpu_->Scale(x.floats(), 0.3f, soft_cap, x.floats());
    for (size_t j = 0; j < values.size(); ++j) {
      ASSERT_TRUE(x.Get(0, j) == got.Get(0, j) || std::isnan(got.Get(0, j))) << "in place";
    }
  }
}

TEST_F(RowLayersTest, RoundingIsThatOfTheScalarFunction) {
  OverSizes([&](size_t rows, size_t cols, DType dtype) {
    Activations x = Activations::Random(rows, cols, DType::kF32, cols, 2);
    Activations got(rows, cols, dtype, 1);
    cpu_->Round(x.floats(), got.view());
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < cols; ++j) {
        const float value = x.Get(i, j);
        ASSERT_EQ(got.Get(i, j), dtype == DType::kF32 ? value : ToFloat(ToBFloat16(value)));
      }
    }
  });
}

// Products and one sum in f32, over cosines and sines rounded to f32: 2^-22 of |a| + |b|, here
// below 10; then the rounding to bf16.
TEST_F(RowLayersTest, RopeMatches) {
  struct Case {
    size_t heads;
    size_t head_dim;
    uint32_t rotary_dim;
    size_t extra;
  };
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kInterleaved}) {
    for (const Case& c :
         {Case{1, 2, 2, 0}, Case{3, 16, 16, 5}, Case{12, 64, 64, 192}, Case{4, 80, 20, 80},
          Case{2, 128, 96, 1}, Case{3, 10, 0, 0}, Case{1, 256, 254, 0}}) {
      std::vector<float> frequencies;
      for (uint32_t i = 0; i < c.rotary_dim / 2; ++i) {
        frequencies.push_back(
            std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.rotary_dim)));
      }
      const RopeTable table = {layout, c.rotary_dim, 1.25f, frequencies};
      const std::vector<uint32_t> positions = {0, 1, 2, 1000, 131071, 7};
      const size_t cols = c.heads * c.head_dim + c.extra;
      Activations x = Activations::Random(positions.size(), cols, DType::kF32, 3, 4);
      std::vector<BFloat16> got(positions.size() * cols);
      std::vector<BFloat16> expected(positions.size() * cols);
      for (int repeat = 0; repeat < 2; ++repeat) {  // The second from remembered angles.
        cpu_->RopeAndRound(x.floats(), c.heads, c.head_dim, table, positions,
                           Packed(got.data(), positions.size(), cols));
        reference_->RopeAndRound(x.floats(), c.heads, c.head_dim, table, positions,
                                 Packed(expected.data(), positions.size(), cols));
        for (size_t i = 0; i < got.size(); ++i) {
          ExpectClose(ToFloat(got[i]), ToFloat(expected[i]), 0x1p-7, 10 * 0x1p-22,
                      "rope element " + std::to_string(i));
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

TEST_F(RowLayersTest, RowsAreFinishedAndStoredInOneCall) {
  std::vector<std::vector<std::byte>> memory;
  const Mover mover = {
      .up =
          [&memory](const std::vector<std::byte>& bytes) {
            memory.push_back(bytes);
            return memory.back().data();
          },
      .down = [](const std::byte* from,
                 size_t bytes) { return std::vector<std::byte>(from, from + bytes); }};
  for (const FinishCase& c : FinishCases()) {
    CheckFinishQkv(*cpu_, c, mover);
    CheckFinishQkv(*reference_, c, mover);
  }
}

TEST_F(RowLayersTest, RopeAtPositionZeroOnlyRounds) {
  const std::vector<float> frequencies(32, 1.0f);
  const std::vector<uint32_t> positions = {0};
  const std::vector<float> x = RandomFloats(64, 1);
  std::vector<BFloat16> out(64);
  cpu_->RopeAndRound({x.data(), 1, 64, 64}, 1, 64, {RopeLayout::kHalves, 64, 1.0f, frequencies},
                     positions, Packed(out.data(), 1, 64));
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(out[i].bits, ToBFloat16(x[i]).bits);
  }
}

TEST_F(RowLayersTest, AddIsExactAlsoInPlace) {
  OverSizes([&](size_t rows, size_t cols, DType dtype) {
    if (dtype != DType::kF32) {
      return;
    }
    Activations a = Activations::Random(rows, cols, DType::kF32, 1, 2);
    Activations b = Activations::Random(rows, cols, DType::kF32, 2);
    Activations expected(rows, cols, DType::kF32);
    reference_->Add(a.floats(), b.floats(), expected.floats());
    cpu_->Add(a.floats(), b.floats(), a.floats());
    Compare(a, expected, 0, 0, "add");
  });
}

TEST_F(RowLayersTest, ConvertIsExact) {
  OverSizes([&](size_t rows, size_t cols, DType dtype) {
    Activations x = Activations::Random(rows, cols, DType::kBF16, 1, 2);
    const ActivationView view = x.view();
    const MatrixView<const BFloat16> from = {static_cast<const BFloat16*>(view.data), rows, cols,
                                             view.stride};
    Activations got(rows, cols, dtype, 1);
    cpu_->Convert(from, got.view());
    Compare(got, x, 0, 0, "convert");
  });
}

TEST_F(RowLayersTest, EmbedCopiesRowsOfTheTable) {
  for (const DType dtype : kTypes) {
    for (const size_t width : kWidths) {
      Activations table = Activations::Random(9, width, dtype, width);
      const std::vector<uint32_t> ids = {8, 0, 3, 3};
      Activations got(ids.size(), width, DType::kF32, 2);
      cpu_->Embed(table.view().data, dtype, width, ids, got.floats());
      for (size_t i = 0; i < ids.size(); ++i) {
        for (size_t j = 0; j < width; ++j) {
          ASSERT_TRUE(SameBits(got.Get(i, j), table.Get(ids[i], j)));
        }
      }
    }
  }
}

TEST_F(RowLayersTest, RoundsToBF16LikeTheScalarFunction) {
  std::vector<float> values = StrangeValues();
  for (uint32_t bits = 0x3f800000; bits < 0x3f830000; bits += 0x777) {
    values.push_back(std::bit_cast<float>(bits));
  }
  for (const uint32_t bits :
       {0x3f808000u, 0x3f818000u, 0x7f7fffffu, 0x7f800001u, 0xff800001u, 1u}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  std::vector<BFloat16> out(values.size());
  cpu_->RopeAndRound({values.data(), 1, values.size(), values.size()}, 0, 0, {}, {{0}},
                     Packed(out.data(), 1, values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(out[i].bits, ToBFloat16(values[i]).bits) << values[i];
  }
}

// Everything that a row goes through, as one string of bits.
std::vector<float> AllLayers(Dense& dense, size_t first, size_t rows) {
  constexpr size_t kCols = 331;
  Activations all = Activations::Random(64, kCols * 2, DType::kF32, 77);
  const MatrixView<float> x = all.floats().Rows(first, rows);
  const MatrixView<float> left = x.Cols(0, kCols);
  const std::vector<float> weight = RandomFloats(kCols, 5);
  const std::vector<float> frequencies = RandomFloats(16, 6);
  std::vector<uint32_t> positions;
  for (size_t i = 0; i < rows; ++i) {
    positions.push_back(static_cast<uint32_t>((first + i) * 37));
  }
  std::vector<float> results(rows * kCols * 7);
  std::vector<BFloat16> rotated(rows * kCols);
  const auto out = [&](size_t index) {
    return ActivationView{results.data() + index * kCols, rows, kCols, 7 * kCols, DType::kF32};
  };
  dense.RmsNorm(left, weight, 1e-6f, out(0));
  dense.LayerNorm(left, weight, weight, 1e-6f, out(1));
  dense.GatedActivation(Activation::kSilu, x, out(2));
  dense.GatedActivation(Activation::kGeluErf, x, out(3));
  dense.Activate(Activation::kGeluTanh, left, out(4));
  dense.Activate(Activation::kRelu, left, out(5));
  dense.RopeAndRound(left, 5, 64, {RopeLayout::kInterleaved, 32, 1.0f, frequencies}, positions,
                     Packed(rotated.data(), rows, kCols));
  dense.Convert(Packed<const BFloat16>(rotated.data(), rows, kCols), out(6));
  return results;
}

TEST_F(RowLayersTest, RowsHaveTheSameBitsInEveryCompany) {
  const std::vector<float> all = AllLayers(*cpu_, 0, 64);
  const size_t per_row = all.size() / 64;
  for (const size_t rows : {1, 2, 5, 30}) {
    for (size_t first = 0; first + rows <= 64; first += 7) {
      const std::vector<float> some = AllLayers(*cpu_, first, rows);
      ASSERT_EQ(std::memcmp(some.data(), all.data() + first * per_row, some.size() * 4), 0)
          << rows << " rows from " << first;
    }
  }
}

TEST_F(RowLayersTest, ThreadsDoNotChangeBits) {
  const std::unique_ptr<Dense> one = MakeDense(DType::kBF16, true, 1);
  EXPECT_EQ(AllLayers(*one, 0, 64), AllLayers(*cpu_, 0, 64));
}

TEST_F(RowLayersTest, HaveTheSameBitsOnEveryInstructionSetWithFusedMultiplyAdd) {
  const std::vector<float> expected = AllLayers(*cpu_, 0, 64);
  OnEachTarget(kFmaTargets, [&](int64_t) {
    const std::vector<float> got = AllLayers(*cpu_, 0, 64);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0);
  });
}

}  // namespace
}  // namespace lamina::kernels
