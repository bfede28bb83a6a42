// SPDX-License-Identifier: Apache-2.0
//
// The loop in tiles of AMX over its emulation: against the definition and exact products, cut in
// every way. The loop of the processor's instructions has its bits, on the processor where that
// has them, else with each instruction emulated. Last, when tiles are taken, and what is told where
// they are not.

#include "kernels/cpu/tile_products.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/philox.h"
#include "kernels/cpu/dense_tiles.h"
#include "kernels/cpu/onednn_probe_internal.h"
#include "kernels/cpu/tile_choice.h"
#include "kernels/pair_math.h"
#include "tests/unit/kernels/amx_trap.h"
#include "tests/unit/kernels/dense_test_util.h"

namespace lamina::kernels::cpu {
namespace {

constexpr size_t kOutStride = kPanelFeatures + 3;

// A panel of normal numbers and rows to multiply it by.
class Panel {
 public:
  Panel(size_t steps, size_t rows)
      : steps_(steps), rows_(rows), words_(steps * kPanelFeatures), in_(rows * 2 * steps) {
    Prng prng(steps + rows);
    for (uint32_t& word : words_) {
      const uint32_t first = ToBFloat16(static_cast<float>(prng.Normal())).bits;
      word = first | uint32_t{ToBFloat16(static_cast<float>(prng.Normal())).bits} << 16;
    }
    for (BFloat16& x : in_) {
      x = ToBFloat16(static_cast<float>(prng.Normal()));
    }
    bias_ = RandomFloats(kPanelFeatures, steps);
  }

  size_t steps() const { return steps_; }
  uint32_t Word(size_t feature, size_t step) const {
    return words_[(feature / kStripFeatures * steps_ + step) * kStripFeatures +
                  feature % kStripFeatures];
  }
  uint32_t Pair(size_t row, size_t step) const {
    return pairs::MakePair(in_[(row * steps_ + step) * 2], in_[(row * steps_ + step) * 2 + 1]);
  }
  float bias(size_t feature) const { return bias_[feature]; }

  // Rows [row, row + rows) times `strips` strips from `strip` on, in calls of so many steps.
  std::vector<float> Multiply(MultiplyTiles multiply, size_t row, size_t rows, size_t strip,
                              size_t strips, size_t steps_each) const {
    std::vector<float> out(rows * kOutStride, -1.0f);
    for (size_t first = 0; first < steps_; first += steps_each) {
      const size_t count = std::min(steps_each, steps_ - first);
      multiply({.words = words_.data() + (strip * steps_ + first) * kStripFeatures,
                .strip_words = steps_ * kStripFeatures,
                .strips = strips,
                .next = strips == kPanelStrips ? words_.data() : nullptr,
                .steps = count,
                .in = in_.data() + (row * steps_ + first) * 2,
                .in_stride = 2 * steps_,
                .rows = rows,
                .first = first == 0,
                .bias = first + count == steps_ ? bias_.data() + strip * kStripFeatures : nullptr,
                .out = out.data(),
                .out_stride = kOutStride});
    }
    return out;
  }
  std::vector<float> Multiply(MultiplyTiles multiply) const {
    return Multiply(multiply, 0, rows_, 0, kPanelStrips, steps_);
  }

  // The definition, one output at a time.
  float Defined(size_t row, size_t feature) const {
    float sum = 0;
    for (size_t step = 0; step < steps_; step += kTileSteps) {
      float first = 0;
      float second = 0;
      for (size_t i = step; i < step + kTileSteps; ++i) {
        const uint32_t a = Pair(row, i);
        const uint32_t b = Word(feature, i);
        first = pairs::FlushingMultiplyAdd(Low(a), Low(b), first);
        second = pairs::FlushingMultiplyAdd(High(a), High(b), second);
      }
      sum = pairs::FlushSubnormal(sum + pairs::FlushSubnormal(first + second));
    }
    return sum + bias_[feature];
  }

  // The sum in double, and that of the products' sizes.
  std::pair<double, double> Exact(size_t row, size_t feature) const {
    double sum = bias_[feature];
    double size = std::abs(bias_[feature]);
    for (size_t step = 0; step < steps_; ++step) {
      const uint32_t a = Pair(row, step);
      const uint32_t b = Word(feature, step);
      for (const double product :
           {double{Low(a)} * double{Low(b)}, double{High(a)} * double{High(b)}}) {
        sum += product;
        size += std::abs(product);
      }
    }
    return {sum, size};
  }

 private:
  static float Low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float High(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

  size_t steps_;
  size_t rows_;
  std::vector<uint32_t> words_;
  std::vector<BFloat16> in_;
  std::vector<float> bias_;
};

// (inputs, rows): SmolLM2's inputs, LLaMA-3-8B's, and few.
using Shape = std::tuple<size_t, size_t>;
class TileProductsTest : public testing::TestWithParam<Shape> {
 protected:
  size_t rows() const { return std::get<1>(GetParam()); }
  Panel MakePanel() const { return {std::get<0>(GetParam()) / 2, rows()}; }
};

INSTANTIATE_TEST_SUITE_P(Shapes, TileProductsTest,
                         testing::Combine(testing::Values(32, 96, 576, 1536, 4096, 14336),
                                          testing::Values(1, 2, 15, 16, 17, 32, 33, 49, 64, 100,
                                                          256, 512)),
                         [](const auto& param_info) {
                           return std::to_string(std::get<0>(param_info.param)) + "_inputs_" +
                                  std::to_string(std::get<1>(param_info.param)) + "_rows";
                         });

// Every output where that is few; else some of every row.
size_t FeatureStep(const Panel& panel, size_t rows) {
  return std::clamp<size_t>(panel.steps() * rows / 2000, 1, 61);
}

// n additions of f32, whatever their order, err by less than n 2^-24 times the sum of sizes
// (Higham, "Accuracy and Stability", section 3.1).
TEST_P(TileProductsTest, AreAsDefinedAndNearTheExactSums) {
  const Panel panel = MakePanel();
  const std::vector<float> out = panel.Multiply(MultiplyPanelEmulatedTiles);
  for (size_t row = 0; row < rows(); ++row) {
    for (size_t f = row % 7; f < kPanelFeatures; f += FeatureStep(panel, rows())) {
      const float got = out[row * kOutStride + f];
      ASSERT_TRUE(SameBits(got, panel.Defined(row, f))) << "row " << row << ", feature " << f;
      const auto [exact, size] = panel.Exact(row, f);
      ASSERT_LE(std::abs(got - exact),
                2.0 * static_cast<double>(panel.steps() + 2) * 0x1p-24 * size)
          << "row " << row << ", feature " << f;
    }
    for (size_t f = kPanelFeatures; f < kOutStride; ++f) {
      ASSERT_EQ(out[row * kOutStride + f], -1.0f) << "wrote past a row's end";
    }
  }
}

// Other rows, other columns, and calls of fewer steps.
TEST_P(TileProductsTest, CutsChangeNoBit) {
  const Panel panel = MakePanel();
  const std::vector<float> whole = panel.Multiply(MultiplyPanelEmulatedTiles);
  const auto expect_same = [&](size_t row, size_t count, size_t strip, size_t strips,
                               size_t steps) {
    const std::vector<float> part =
        panel.Multiply(MultiplyPanelEmulatedTiles, row, count, strip, strips, steps);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(std::memcmp(&part[i * kOutStride],
                            &whole[(row + i) * kOutStride + strip * kStripFeatures],
                            strips * kStripFeatures * sizeof(float)),
                0)
          << "row " << i << " of " << count << " from " << row << ", strips " << strip << " + "
          << strips << ", " << steps << " steps at once";
    }
  };
  for (const size_t strips : {1, 2, 4}) {
    for (size_t strip = 0; strip < kPanelStrips; strip += strips) {
      expect_same(0, rows(), strip, strips, panel.steps());
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  expect_same(0, rows(), 0, kPanelStrips, kTileSteps);
  expect_same(0, rows(), 2, 1, 3 * kTileSteps);
  expect_same(rows() - 1, 1, 0, kPanelStrips, panel.steps());
  expect_same(rows() / 3, rows() - rows() / 3, 0, 2, panel.steps());
}

TEST(TileProductsTest, NoRowsAreNoWork) {
  const Panel panel(kTileSteps, 1);
  EXPECT_EQ(panel.Multiply(MultiplyPanelEmulatedTiles, 0, 0, 0, kPanelStrips, kTileSteps),
            std::vector<float>());
}

// --- the processor's instructions ---

TEST(AmxTilesTest, TheInstructionsDoWhatIsEmulated) {
  if (HasTileInstructions()) {
    ASSERT_TRUE(TilePermission().ok()) << TilePermission();
    const absl::Status status = ProbeTiles(MultiplyPanelTiles);
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  const AmxTrap trap;
  const absl::Status status = ProbeTiles(MultiplyPanelTiles);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(trap.dots(), 500u);
  EXPECT_GT(trap.instructions(), 2 * trap.dots());
}

TEST(AmxTilesTest, TilesAreGivenBack) {
  if (HasTileInstructions()) {
    GTEST_SKIP() << "this processor does not tell";
  }
  const AmxTrap trap;
  for (const size_t rows : {0, 1, 20, 70}) {
    const Panel panel(kTileSteps, rows);
    panel.Multiply(MultiplyPanelTiles);
    EXPECT_FALSE(trap.configured()) << rows << " rows";
  }
}

TEST(AmxTilesTest, ALoopWithOtherBitsIsNamed) {
  const absl::Status status = ProbeTiles([](const PanelTask<BFloat16>& task) {
    MultiplyPanelEmulatedTiles(task);
    if (task.rows == 17 && task.strips == 2) {
      task.out[16 * task.out_stride + 31] += 1;
    }
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("row 16 of 17, feature 31 of 32"), std::string::npos) << status;
}

// --- the choice ---

struct ToyHost final : TileHost {
  bool HasInstructions() const override { return has_instructions; }
  bool SystemKeepsTiles() const override { return system_keeps_tiles; }
  bool IsHeldBack() const override { return held_back; }
  absl::Status Permission() override { return permission; }
  absl::Status Probe() override {
    probed = true;
    return probe;
  }

  bool has_instructions = true;
  bool system_keeps_tiles = true;
  bool held_back = false;
  absl::Status permission;
  absl::Status probe;
  bool probed = false;
};

TEST(TileChoiceTest, TilesAreTakenWhereAllSayYes) {
  ToyHost host;
  EXPECT_TRUE(CheckTiles(host).ok());
  EXPECT_TRUE(host.probed);
}

TEST(TileChoiceTest, WithoutTilesThereIsNothingToTell) {
  ToyHost host;
  host.has_instructions = false;
  host.system_keeps_tiles = false;
  host.permission = absl::PermissionDeniedError("not asked");
  EXPECT_EQ(CheckTiles(host).code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE(host.probed);
}

TEST(TileChoiceTest, TilesThatAreHeldBackAreNotProbed) {
  ToyHost host;
  host.held_back = true;
  const absl::Status status = CheckTiles(host);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("DNNL_MAX_CPU_ISA"), std::string::npos) << status;
  EXPECT_FALSE(host.probed);
}

// oneDNN takes no tiles without INT8, though nobody told it so.
TEST(TileChoiceTest, TilesWithoutInt8AreNotHeldBack) {
  EXPECT_FALSE(HoldsTilesBack(dnnl::cpu_isa::avx512_core_amx, /*tiles_have_int8=*/true));
  EXPECT_TRUE(HoldsTilesBack(dnnl::cpu_isa::avx512_core_bf16, /*tiles_have_int8=*/true));
  EXPECT_FALSE(HoldsTilesBack(dnnl::cpu_isa::avx512_core_bf16, /*tiles_have_int8=*/false));
  EXPECT_TRUE(HoldsTilesBack(dnnl::cpu_isa::avx512_core, /*tiles_have_int8=*/false));
}

// oneDNN, which asks the system too, then says that AMX is held back.
TEST(TileChoiceTest, ARefusalOfTheSystemIsAFailedPrecondition) {
  ToyHost host;
  host.held_back = true;
  host.permission = absl::UnavailableError("the system refuses: 28");
  const absl::Status status = CheckTiles(host);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("the system refuses: 28"), std::string::npos) << status;
  EXPECT_FALSE(host.probed);
}

// As before Linux 5.16. oneDNN finds no tiles then.
TEST(TileChoiceTest, ASystemThatKeepsNoTilesIsAFailedPrecondition) {
  ToyHost host;
  host.system_keeps_tiles = false;
  host.held_back = true;
  host.permission = absl::InvalidArgumentError("not asked");
  const absl::Status status = CheckTiles(host);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("as Linux does from 5.16 on"), std::string::npos) << status;
  EXPECT_FALSE(host.probed);
}

TEST(TileChoiceTest, OtherBitsAreAFailedPrecondition) {
  ToyHost host;
  host.probe = absl::InternalError("row 1 of 2 is 0x1 instead of 0x2");
  const absl::Status status = CheckTiles(host);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("row 1 of 2"), std::string::npos) << status;
}

// The log of a host that makes dense layers.
std::string LogOfDense(ToyHost& host) {
  const AnswerOfOtherHost answer(CheckTiles(host));
  SetUpLogging("c0", LogLevel::kWarning);
  testing::internal::CaptureStderr();
  MakeDense(DType::kBF16, false, 1);
  return testing::internal::GetCapturedStderr();
}

TEST(TileChoiceTest, ARefusalIsAWarningThatSaysWhatIsTaken) {
  ToyHost host;
  host.permission = absl::UnavailableError("the system refuses: 28");
  const std::string log = LogOfDense(host);
  EXPECT_NE(log.find("dense layers are slow: AMX is there, but "), std::string::npos) << log;
  EXPECT_NE(log.find(" is taken instead: the system refuses: 28\n"), std::string::npos) << log;
}

TEST(TileChoiceTest, ASystemThatKeepsNoTilesIsAWarning) {
  ToyHost host;
  host.system_keeps_tiles = false;
  const std::string log = LogOfDense(host);
  EXPECT_NE(log.find(" is taken instead: the system refuses AMX's tiles: "), std::string::npos)
      << log;
}

TEST(TileChoiceTest, WithoutTilesThereIsNoWarning) {
  ToyHost host;
  host.has_instructions = false;
  const std::string log = LogOfDense(host);
  EXPECT_EQ(log.find("AMX is there"), std::string::npos) << log;
}

TEST(TileChoiceTest, TheSystemAnswersOnceForAll) {
  EXPECT_TRUE(ProcessorHasTiles() || !HasTileInstructions());
  if (!HasTileInstructions()) {
    EXPECT_EQ(TilesOfThisHost().code(), ProcessorHasTiles() ? absl::StatusCode::kFailedPrecondition
                                                            : absl::StatusCode::kUnimplemented);
  }
  AskForTiles();
  EXPECT_EQ(&TilesOfThisHost(), &TilesOfThisHost());
  EXPECT_EQ(TilesOfThisHost().ok(),
            MakeDense(DType::kBF16, false, 1)->description() == "tiles of bf16 AMX_BF16");
}

}  // namespace
}  // namespace lamina::kernels::cpu
