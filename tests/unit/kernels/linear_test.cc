// SPDX-License-Identifier: Apache-2.0
//
// Dense::Linear against the plain reference, and guarantee 6: a row's bits depend on that row and
// the weights alone. CTest runs this file again with oneDNN held to older instruction sets.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/linear_engine.h"
#include "kernels/cpu/own_linear_tiles.h"
#include "kernels/cpu/pair_products.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/dense.h"
#include "tests/unit/kernels/dense_test_util.h"
#include "tests/unit/kernels/instruction_sets.h"

namespace lamina::kernels {
namespace {

struct Layer {
  size_t in;
  size_t out;
  bool bias;
};

struct Weights {
  Weights(const Layer& layer, uint64_t seed)
      : values(RandomFloats(layer.in * layer.out, seed, 0.5)),
        bias(layer.bias ? RandomFloats(layer.out, seed + 1) : std::vector<float>()) {}
  std::vector<float> values;
  std::vector<float> bias;
};

std::unique_ptr<PackedLinear> Pack(Dense& dense, const Layer& layer, const Weights& weights) {
  return *dense.Pack(weights.values.data(), DType::kF32, layer.out, layer.in, weights.bias);
}

// What MakeCpuDense() takes here; the fallback GEMM; oneDNN's, also where ours is faster; tiles of
// AMX, emulated.
enum class Loop : uint8_t { kBest, kFallback, kOnednn, kEmulatedTiles };

const char* LoopName(Loop loop) {
  switch (loop) {
    case Loop::kBest:
      return "_best_";
    case Loop::kFallback:
      return "_fallback_";
    case Loop::kOnednn:
      return "_onednn_";
    case Loop::kEmulatedTiles:
      return "_emulated_tiles_";
  }
  return "";
}

// (compute type, loop, threads)
using Variant = std::tuple<DType, Loop, size_t>;

class LinearTest : public testing::TestWithParam<Variant> {
 protected:
  DType type() const { return std::get<0>(GetParam()); }
  std::unique_ptr<Dense> Make() const { return Make(std::get<2>(GetParam())); }
  std::unique_ptr<Dense> Make(size_t threads) const {
    if (std::get<1>(GetParam()) == Loop::kOnednn) {
      return cpu::MakeCpuDenseOfOnednn({.compute_type = type(), .threads = threads});
    }
    return MakeDense(type(), LoopOf(), threads);
  }

 private:
  DenseLoop LoopOf() const {
    switch (std::get<1>(GetParam())) {
      case Loop::kFallback:
        return DenseLoop::kFallbackGemm;
      case Loop::kEmulatedTiles:
        return DenseLoop::kEmulatedTiles;
      case Loop::kBest:
      case Loop::kOnednn:
        break;
    }
    return DenseLoop::kFastest;
  }
};

std::string VariantName(const testing::TestParamInfo<Variant>& variant) {
  const auto& [type, loop, threads] = variant.param;
  return std::string(DTypeName(type)) + LoopName(loop) + std::to_string(threads);
}

INSTANTIATE_TEST_SUITE_P(Variants, LinearTest,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF32),
                                          testing::Values(Loop::kBest, Loop::kFallback,
                                                          Loop::kOnednn),
                                          testing::Values(1, 2)),
                         VariantName);
INSTANTIATE_TEST_SUITE_P(EmulatedTiles, LinearTest,
                         testing::Combine(testing::Values(DType::kBF16),
                                          testing::Values(Loop::kEmulatedTiles),
                                          testing::Values(1)),
                         VariantName);

// The error of a sum of n products in f32, whatever its order, is below n 2^-24 sum |x w| (Higham,
// "Accuracy and Stability", section 3.1); products of bf16 are exact in f32.
void ExpectProduct(const Layer& layer, const Activations& in, const Weights& weights, DType type,
                   Activations& got, Activations& expected) {
  for (size_t i = 0; i < in.row_count(); ++i) {
    for (size_t j = 0; j < layer.out; ++j) {
      double magnitude = layer.bias ? std::abs(weights.bias[j]) : 0;
      for (size_t k = 0; k < layer.in; ++k) {
        magnitude += std::abs(double{in.Get(i, k)} * double{weights.values[j * layer.in + k]});
      }
      const double bound = 1.02 * static_cast<double>(layer.in + 2) * 0x1p-24 * magnitude;
      ExpectClose(got.Get(i, j), expected.Get(i, j), 0x1p-23, bound,
                  std::string(DTypeName(type)) + " row " + std::to_string(i) + " column " +
                      std::to_string(j) + " of " + std::to_string(layer.in) + " x " +
                      std::to_string(layer.out));
      if (testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_P(LinearTest, MatchesTheReference) {
  const std::unique_ptr<Dense> dense = Make();
  const std::unique_ptr<Dense> reference = MakeReferenceDense(type());
  for (const Layer& layer : {Layer{1, 1, true}, Layer{2, 63, false}, Layer{3, 64, true},
                             Layer{64, 65, false}, Layer{101, 77, true}, Layer{288, 600, true},
                             Layer{576, 320, false}, Layer{1536, 64, false}}) {
    const Weights weights(layer, layer.in);
    const auto packed = Pack(*dense, layer, weights);
    const auto plain = Pack(*reference, layer, weights);
    EXPECT_EQ(packed->in_features(), layer.in);
    EXPECT_EQ(packed->out_features(), layer.out);
    EXPECT_GE(packed->bytes(), layer.in * layer.out * DTypeBytes(type()));
    ASSERT_TRUE(dense->Prepare(*packed, 20).ok());
    for (const size_t rows : {0, 1, 2, 5, 16, 19, 65, 130}) {
      Activations in = Activations::Random(rows, layer.in, type(), rows, 3);
      Activations got(rows, layer.out, DType::kF32, 5);
      Activations expected(rows, layer.out, DType::kF32, 5);
      dense->Linear(*packed, in.view(), 0, got.floats());
      reference->Linear(*plain, in.view(), 0, expected.floats());
      ExpectProduct(layer, in, weights, type(), got, expected);
      ASSERT_FALSE(HasFatalFailure()) << dense->description() << ", " << rows << " rows";
      for (size_t i = 0; i < rows; ++i) {
        ASSERT_TRUE(std::isnan(got.floats().row(i)[layer.out])) << "wrote past a row's end";
      }
    }
  }
}

TEST_P(LinearTest, RowsHaveTheSameBitsInEveryCompany) {
  const std::unique_ptr<Dense> dense = Make();
  for (const Layer& layer : {Layer{576, 960, true}, Layer{1536, 576, false}, Layer{101, 333, true},
                             Layer{577, 128, false}}) {
    const Weights weights(layer, 17);
    const auto packed = Pack(*dense, layer, weights);
    constexpr size_t kRows = 270;
    Activations in = Activations::Random(kRows, layer.in, type(), 4);
    Activations alone(kRows, layer.out, DType::kF32);
    for (size_t i = 0; i < kRows; ++i) {
      dense->Linear(*packed, in.rows(i, 1), 0, alone.floats().Rows(i, 1));
    }
    for (const size_t rows : {2,  3,  4,  7,   8,   9,   15,  16,  17,  31,  33,
                              63, 64, 65, 100, 127, 128, 129, 192, 200, 256, 270}) {
      for (const size_t first : {size_t{0}, (kRows - rows) / 2, kRows - rows}) {
        Activations together(rows, layer.out, DType::kF32, rows % 3);
        dense->Linear(*packed, in.rows(first, rows), 0, together.floats());
        for (size_t i = 0; i < rows; ++i) {
          for (size_t j = 0; j < layer.out; ++j) {
            ASSERT_TRUE(SameBits(together.Get(i, j), alone.Get(first + i, j)))
                << dense->description() << ": row " << i << " of " << rows << ", column " << j;
          }
        }
      }
    }
  }
}

// Layers of several shapes, with gaps between rows and without, one of them without rows.
TEST_P(LinearTest, EachOfSeveralHasTheBitsThatItHasAlone) {
  const std::unique_ptr<Dense> dense = Make();
  struct Part {
    Layer layer;
    size_t rows;
    size_t gap;
  };
  std::vector<std::unique_ptr<PackedLinear>> packed;
  std::vector<Activations> inputs;
  std::vector<Activations> together;
  std::vector<LinearPart> parts;
  const std::vector<Part> shapes = {{{576, 960, true}, 3, 5},  {{576, 960, true}, 70, 0},
                                    {{101, 77, false}, 2, 1},  {{64, 65, true}, 0, 0},
                                    {{1536, 64, false}, 1, 3}, {{101, 77, false}, 130, 7}};
  for (const Part& part : shapes) {
    packed.push_back(Pack(*dense, part.layer, Weights(part.layer, packed.size())));
    inputs.push_back(
        Activations::Random(part.rows, part.layer.in, type(), 40 + part.rows, part.gap));
    together.emplace_back(part.rows, part.layer.out, DType::kF32, part.gap);
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    parts.push_back({packed[i].get(), inputs[i].view(), together[i].floats()});
  }

  dense->LinearEach(parts);

  for (size_t i = 0; i < shapes.size(); ++i) {
    Activations alone(shapes[i].rows, shapes[i].layer.out, DType::kF32, shapes[i].gap);
    dense->Linear(*packed[i], inputs[i].view(), 0, alone.floats());
    const MatrixView<float> expected = alone.floats();
    const MatrixView<float> got = together[i].floats();
    EXPECT_EQ(std::memcmp(got.data, expected.data, got.rows * got.stride * sizeof(float)), 0)
        << dense->description() << ", part " << i;
  }
  dense->LinearEach({});
}

// Where gates and ups are whole panels, and where they are not, in 1 to 130 rows and some more.
TEST_P(LinearTest, WithItsActivationHasTheBitsOfBothCalls) {
  constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                         Activation::kClampedSwiglu};
  const std::unique_ptr<Dense> dense = Make();
  const Layer small = {33, 2 * 64, true};
  const auto packed = Pack(*dense, small, Weights(small, 3));
  for (size_t rows = 0; rows <= 130; ++rows) {
    ExpectGatedBits(*dense, *packed, kActivations[rows % 3], rows, rows % 2 * 5);
    ASSERT_FALSE(HasFatalFailure());
  }
  for (const Layer& layer : {Layer{101, 2 * 192, false}, Layer{577, 2 * 320, true},
                             Layer{64, 2 * 100, true}, Layer{37, 2, true}}) {
    const auto larger = Pack(*dense, layer, Weights(layer, layer.in));
    for (const size_t rows : {1, 8, 9, 12, 13, 40, 64, 65, 128, 130, 257, 300}) {
      ExpectGatedBits(*dense, *larger, kActivations[rows % 3], rows, rows % 2 * 3);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

TEST_P(LinearTest, WithItsActivationHasTheSameBitsOnManyThreads) {
  if (std::get<2>(GetParam()) != 1) {
    GTEST_SKIP() << "once for each loop";
  }
  const Layer layer = {100, 2 * 960, true};
  const Weights weights(layer, 7);
  for (const size_t threads : {3, 16, 64}) {
    const std::unique_ptr<Dense> dense = Make(threads);
    const auto packed = Pack(*dense, layer, weights);
    for (const size_t rows : {9, 40, 270}) {
      ExpectGatedBits(*dense, *packed, Activation::kSilu, rows, 0);
      ASSERT_FALSE(HasFatalFailure()) << threads << " threads";
    }
  }
}

TEST_P(LinearTest, ThreadsDoNotChangeBits) {
  const Layer layer = {576, 1600, true};
  const Weights weights(layer, 23);
  Activations in = Activations::Random(75, layer.in, type(), 5);
  const std::unique_ptr<Dense> one = Make(1);
  Activations expected(75, layer.out, DType::kF32);
  one->Linear(*Pack(*one, layer, weights), in.view(), 0, expected.floats());
  for (const size_t threads : {2, 3, 5}) {
    const std::unique_ptr<Dense> many = Make(threads);
    Activations got(75, layer.out, DType::kF32);
    many->Linear(*Pack(*many, layer, weights), in.view(), 0, got.floats());
    ASSERT_EQ(std::memcmp(got.floats().data, expected.floats().data, 75 * layer.out * 4), 0)
        << threads << " threads";
  }
}

// Layers of SmolLM2 and LLaMA-3-8B, by their outputs, with inputs enough that the work is worth
// while for as many threads as there are: cut into strips, into rows, or not at all.
TEST_P(LinearTest, CutsForManyThreadsDoNotChangeBits) {
  if (std::get<2>(GetParam()) != 1) {
    GTEST_SKIP() << "once for each loop";
  }
  constexpr size_t kRows[] = {1, 9, 70};
  for (const size_t out : {576, 960, 3072, 4096, 6144, 28672, 49152}) {
    const Layer layer = {std::max<size_t>(37, 2'400'000 / out), out, out == 576};
    const Weights weights(layer, out);
    std::vector<Activations> expected;
    for (const size_t threads : {1, 2, 3, 8, 16, 32, 128}) {
      const std::unique_ptr<Dense> dense = Make(threads);
      const auto packed = Pack(*dense, layer, weights);
      for (size_t i = 0; i < std::size(kRows); ++i) {
        Activations in = Activations::Random(kRows[i], layer.in, type(), i);
        Activations got(kRows[i], out, DType::kF32);
        dense->Linear(*packed, in.view(), 0, got.floats());
        if (threads == 1) {
          expected.push_back(std::move(got));
          continue;
        }
        ASSERT_EQ(std::memcmp(got.floats().data, expected[i].floats().data, kRows[i] * out * 4), 0)
            << out << " columns, " << kRows[i] << " rows, " << threads << " threads";
      }
    }
  }
}

// Where all weights together are more than a last cache has, few rows go through them in order.
TEST_P(LinearTest, WeightsFromMemoryGiveTheSameBits) {
  const std::unique_ptr<Dense> dense = Make();
  for (const Layer& layer : {Layer{576, 960, true}, Layer{1536, 200, false}}) {
    const auto packed = Pack(*dense, layer, Weights(layer, 43));
    for (const size_t rows : {1, 2, 5, 8, 12, 13, 25, 49, 64, 65}) {
      Activations in = Activations::Random(rows, layer.in, type(), rows);
      Activations expected(rows, layer.out, DType::kF32);
      Activations got(rows, layer.out, DType::kF32);
      dense->Linear(*packed, in.view(), 0, expected.floats());
      const cpu::WeightMemory others(size_t{33} << 20);
      ASSERT_NE(others.data(), nullptr);

      dense->Linear(*packed, in.view(), 0, got.floats());

      ASSERT_EQ(std::memcmp(got.floats().data, expected.floats().data, rows * layer.out * 4), 0)
          << dense->description() << ", " << rows << " rows of " << layer.in;
    }
  }
}

TEST_P(LinearTest, ColumnRangesHaveTheBitsOfTheWhole) {
  const std::unique_ptr<Dense> dense = Make();
  const Layer layer = {288, 5000, true};
  const Weights weights(layer, 29);
  const auto packed = Pack(*dense, layer, weights);
  for (const size_t rows : {1, 6, 70}) {
    Activations in = Activations::Random(rows, layer.in, type(), 6);
    Activations whole(rows, layer.out, DType::kF32);
    dense->Linear(*packed, in.view(), 0, whole.floats());
    for (const auto& [first, cols] : std::vector<std::pair<size_t, size_t>>{
             {0, 1}, {0, 2048}, {64, 100}, {640, 640}, {2048, 2952}, {4992, 8}, {64, 4936}}) {
      Activations part(rows, cols, DType::kF32, 2);
      dense->Linear(*packed, in.view(), first, part.floats());
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < cols; ++j) {
          ASSERT_TRUE(SameBits(part.Get(i, j), whole.Get(i, first + j)))
              << "columns from " << first << ", " << cols << " of them; row " << i << ", column "
              << j;
        }
      }
    }
  }
}

TEST_P(LinearTest, NanAndInfinityStayInTheirRow) {
  const std::unique_ptr<Dense> dense = Make();
  const Layer layer = {96, 70, false};
  const Weights weights(layer, 31);
  const auto packed = Pack(*dense, layer, weights);
  Activations in = Activations::Random(20, layer.in, type(), 7);
  Activations clean(20, layer.out, DType::kF32);
  dense->Linear(*packed, in.view(), 0, clean.floats());
  in.Set(3, 95, std::nanf(""));
  in.Set(11, 0, INFINITY);

  Activations got(20, layer.out, DType::kF32);
  dense->Linear(*packed, in.view(), 0, got.floats());

  for (size_t i = 0; i < 20; ++i) {
    for (size_t j = 0; j < layer.out; ++j) {
      if (i == 3) {
        ASSERT_TRUE(std::isnan(got.Get(i, j)));
      } else if (i == 11) {
        ASSERT_TRUE(std::isinf(got.Get(i, j)));
      } else {
        ASSERT_TRUE(SameBits(got.Get(i, j), clean.Get(i, j)));
      }
    }
  }
}

TEST_P(LinearTest, PacksBF16WeightsLikeTheSameValuesInF32) {
  const std::unique_ptr<Dense> dense = Make();
  const Layer layer = {100, 130, true};
  Weights weights(layer, 37);
  std::vector<BFloat16> rounded;
  for (float& value : weights.values) {
    rounded.push_back(ToBFloat16(value));
    value = ToFloat(rounded.back());
  }
  const auto from_f32 = Pack(*dense, layer, weights);
  const auto from_bf16 =
      *dense->Pack(rounded.data(), DType::kBF16, layer.out, layer.in, weights.bias);
  Activations in = Activations::Random(9, layer.in, type(), 8);
  Activations a(9, layer.out, DType::kF32);
  Activations b(9, layer.out, DType::kF32);
  dense->Linear(*from_f32, in.view(), 0, a.floats());
  dense->Linear(*from_bf16, in.view(), 0, b.floats());
  EXPECT_EQ(std::memcmp(a.floats().data, b.floats().data, 9 * layer.out * 4), 0);
}

// What stands before may not be there yet: it is NaN here.
TEST_P(LinearTest, FeaturesReadNothingBeforeTheirFirstByte) {
  const std::unique_ptr<Dense> dense = Make();
  for (const Layer& layer : {Layer{101, 960, true}, Layer{64, 640, false}, Layer{301, 200, true}}) {
    const auto packed = Pack(*dense, layer, Weights(layer, 5));
    const std::vector<absl::Span<std::byte>> pieces = packed->Pieces();
    ASSERT_FALSE(pieces.empty());
    for (size_t first_out = 0; first_out < layer.out; first_out += first_out < 128 ? 64 : 448) {
      for (const size_t rows : {1, 20}) {
        Activations in = Activations::Random(rows, layer.in, type(), rows);
        Activations whole(rows, layer.out - first_out, DType::kF32);
        Activations part(rows, layer.out - first_out, DType::kF32);
        dense->Linear(*packed, in.view(), first_out, whole.floats());
        std::vector<std::vector<std::byte>> before;
        for (size_t i = 0; i < pieces.size(); ++i) {
          const size_t end = packed->FirstByte(i, first_out);
          ASSERT_LE(end, pieces[i].size());
          before.emplace_back(pieces[i].begin(), pieces[i].begin() + end);
          std::fill_n(pieces[i].begin(), end, std::byte{0xff});
        }
        dense->Linear(*packed, in.view(), first_out, part.floats());
        for (size_t i = 0; i < pieces.size(); ++i) {
          std::copy(before[i].begin(), before[i].end(), pieces[i].begin());
        }
        EXPECT_EQ(std::memcmp(whole.floats().data, part.floats().data,
                              rows * (layer.out - first_out) * sizeof(float)),
                  0)
            << dense->description() << ", " << rows << " rows from feature " << first_out;
      }
    }
  }
}

TEST_P(LinearTest, TakesNoMoreThanItHasPrepared) {
  const Layer layer = {301, 130, true};
  constexpr size_t kRows = 200;
  const std::unique_ptr<Dense> dense = Make();
  const std::unique_ptr<PackedLinear> packed = Pack(*dense, layer, Weights(layer, 3));
  ASSERT_TRUE(dense->Prepare(*packed, kRows).ok());
  const uint64_t prepared = dense->scratch_bytes();
  EXPECT_GT(prepared, 0u);
  Activations in = Activations::Random(kRows, layer.in, type(), 7);
  Activations out(kRows, layer.out, DType::kF32);
  for (const size_t rows : {kRows, size_t{3}}) {
    MatrixView<float> some = out.floats();
    some.rows = rows;
    dense->Linear(*packed, in.rows(0, rows), 0, some);
    EXPECT_EQ(dense->scratch_bytes(), prepared) << rows << " rows";
  }
}

TEST_P(LinearTest, PackFailsWithResourceExhaustedWhenThereIsNoMemory) {
  const std::unique_ptr<Dense> dense = Make();
  const float nothing = 0;
  const auto packed = dense->Pack(&nothing, DType::kF32, size_t{1} << 22, size_t{1} << 26, {});
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kResourceExhausted) << packed.status();
}

TEST(OwnLinearTest, HasTheSameBitsOnEveryInstructionSetWithFusedMultiplyAdd) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const Layer layer = {301, 200, true};
    const Weights weights(layer, 41);
    Activations in = Activations::Random(23, layer.in, type, 9);
    std::vector<float> expected;
    std::string expected_target;
    OnEachTarget(kFmaTargets, [&](int64_t target) {
      const std::unique_ptr<Dense> dense = MakeDense(type, true, 1);
      Activations out(23, layer.out, DType::kF32);
      dense->Linear(*Pack(*dense, layer, weights), in.view(), 0, out.floats());
      const std::string name = cpu::PanelTargetName();
      EXPECT_EQ(name, hwy::TargetName(target));
      const std::vector<float> got(out.floats().data, out.floats().data + 23 * layer.out);
      if (expected.empty()) {
        expected = got;
        expected_target = name;
      }
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0)
          << name << " differs from " << expected_target;
    });
    EXPECT_FALSE(expected.empty());
  }
}

// The fallback GEMM widens rows of bf16, and takes those of f32 as they are.
TEST(CpuDenseTest, CountsItsCopiesOfInputs) {
  const Layer layer = {130, 70, false};
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const std::unique_ptr<Dense> dense = MakeDense(type, true, 1);
    const std::unique_ptr<PackedLinear> packed = Pack(*dense, layer, Weights(layer, 3));
    const uint64_t before = dense->scratch_bytes();
    ASSERT_TRUE(dense->Prepare(*packed, 1000).ok());
    EXPECT_EQ(dense->scratch_bytes() - before,
              type == DType::kBF16 ? 1000 * layer.in * sizeof(float) : 0);
  }
}

TEST(CpuDenseTest, SaysWhichLoopRuns) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const std::string own = MakeDense(type, true, 1)->description();
    const std::string best = MakeDense(type, false, 1)->description();
    EXPECT_EQ(own.find("highway rows "), 0u) << own;
    EXPECT_TRUE(best == own || best.find("onednn 2.") == 0 || best.find("pairs of bf16") == 0 ||
                best.find("tiles of bf16 AMX") == 0)
        << best;
    const std::string emulated = MakeDense(type, DenseLoop::kEmulatedTiles, 1)->description();
    EXPECT_EQ(emulated, type == DType::kBF16 ? "tiles of bf16, emulated" : own);
    if (cpu::PairProductsAreSlow()) {
      EXPECT_EQ(best.find("avx512_core_bf16"), std::string::npos) << best;
      EXPECT_EQ(best.find("pairs of bf16"), std::string::npos) << best;
    }
    RecordProperty(std::string(DTypeName(type)), best);
  }
}

TEST(CpuDenseTest, NoThreadsIsAnInvalidArgument) {
  EXPECT_EQ(MakeCpuDense({.threads = 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::kernels
