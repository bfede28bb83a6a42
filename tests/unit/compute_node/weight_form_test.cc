// SPDX-License-Identifier: Apache-2.0
//
// Weights that stay in the blocks of their file: what the node computes is to the bit what it
// computes with weights that are widened, in less memory.

#include "compute_node/weight_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "compute_node/weight_source.h"
#include "model/gguf/dequantize.h"
#include "model/shard.h"
#include "tests/support/random_model.h"
#include "tests/unit/compute_node/block_source.h"
#include "tests/unit/compute_node/slice_program.h"
#include "tests/unit/compute_node/step_run.h"

namespace lamina::compute_node {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;

class WeightFormTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    spec_ = Spec("llama");
    spec_.width = 256;
    spec_.ffn_width = 512;
    spec_.query_heads = 16;
    spec_.kv_heads = 4;
    program_.emplace(spec_, DType::kBF16, UINT32_MAX, [](ThreadPool& pool) {
      auto dense = kernels::MakeCpuDense({.compute_type = DType::kBF16, .pool = &pool});
      EXPECT_TRUE(dense.ok()) << dense.status();
      return kernels::MakeCpuComputeDevice(*std::move(dense), kernels::CpuAttention(), pool);
    });
    if (program_->executor().device().dense().description().find("onednn") != std::string::npos) {
      GTEST_SKIP() << "oneDNN multiplies here, which takes no blocks";
    }
    source_.emplace(*program_->model().weights, *model::FindGgufTensorType(GetParam()));
  }

  kernels::ComputeDevice& device() { return program_->executor().device(); }

  void ExpectSameProduct(const kernels::PackedLinear& a, const kernels::PackedLinear& b) {
    constexpr size_t kRows = 3;
    const std::vector<BFloat16> in(kRows * a.in_features(), ToBFloat16(0.75f));
    std::vector<float> of_a(kRows * a.out_features());
    std::vector<float> of_b(of_a.size());
    for (const auto& [weights, out] : {std::pair(&a, &of_a), std::pair(&b, &of_b)}) {
      device().dense().Linear(
          *weights,
          {const_cast<BFloat16*>(in.data()), kRows, a.in_features(), a.in_features(), DType::kBF16},
          0, kernels::Packed(out->data(), kRows, a.out_features()));
    }
    EXPECT_EQ(of_a, of_b);
  }

  // The logits of a step with weights in this form.
  std::vector<float> Logits(ResidentWeights& weights) {
    const SliceProgram& slices = program_->executor().program();
    const absl::Status loaded =
        weights.Load(slices, *source_, slices.OpsOf(0, slices.slice_count()), [](double) {});
    EXPECT_TRUE(loaded.ok()) << loaded;
    const auto executor =
        SliceExecutor::Create(program_->model().graph, weights, device(), /*head_columns=*/64);
    EXPECT_TRUE(executor.ok()) << executor.status();
    return RunStep(**executor);
  }

  test_support::RandomModelSpec spec_;
  std::optional<Program> program_;
  std::optional<BlockSource> source_;
};

INSTANTIATE_TEST_SUITE_P(Types, WeightFormTest,
                         testing::Values("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4",
                                         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "F16"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST_P(WeightFormTest, PackedWeightsGiveTheLogitsOfBF16) {
  ResidentWeights widened(device(), WeightForm::kBF16);
  ResidentWeights packed(device(), WeightForm::kPacked);
  const std::vector<float> expected = Logits(widened);
  EXPECT_TRUE(std::isfinite(std::accumulate(expected.begin(), expected.end(), 0.0f)));
  EXPECT_EQ(Logits(packed), expected);
  EXPECT_THAT(widened.weights().bytes_by_form(), ElementsAre(Key("bf16")));
  if (kernels::FindBlockType(GetParam()).has_value()) {
    EXPECT_THAT(packed.weights().bytes_by_form(), ElementsAre(Key(GetParam())));
    EXPECT_LT(packed.bytes(), widened.bytes() * 6 / 10);
    EXPECT_THAT(packed.Describe(), HasSubstr(absl::StrCat(GetParam(), " ")));
  } else {
    EXPECT_THAT(packed.weights().bytes_by_form(), ElementsAre(Key("bf16")));
    EXPECT_EQ(packed.bytes(), widened.bytes());
  }
}

TEST_P(WeightFormTest, AutoGivesTheSameLogits) {
  if (!kernels::FindBlockType(GetParam()).has_value()) {
    GTEST_SKIP() << "nothing to measure";
  }
  ResidentWeights widened(device(), WeightForm::kBF16);
  ResidentWeights chosen(device(), WeightForm::kAuto);
  EXPECT_EQ(Logits(chosen), Logits(widened));
}

// Each shard has some heads and columns, whose blocks may be cut.
TEST_P(WeightFormTest, ShardsGiveTheLogitsOfBF16) {
  for (const uint32_t first : {0u, 1u}) {
    const auto graph = model::ShardGraph(program_->model().graph, {.index = first,
                                                                   .count = 2,
                                                                   .first_head = 2 * first,
                                                                   .heads = 2,
                                                                   .first_column = 256 * first,
                                                                   .columns = 256});
    ASSERT_TRUE(graph.ok()) << graph.status();
    std::vector<model::OpId> ops(graph->ops.size());
    std::iota(ops.begin(), ops.end(), 0u);
    WeightForms forms(WeightForm::kPacked, device().dense());
    const auto packed = ModelWeights::Load(
        *graph, *source_, device(), ops, [](double) {}, {}, &forms);
    const auto widened = ModelWeights::Load(*graph, *source_, device(), ops, [](double) {});
    ASSERT_TRUE(packed.ok() && widened.ok()) << packed.status() << widened.status();
    for (const model::OpId op : ops) {
      if (widened->linear(op) != nullptr) {
        ExpectSameProduct(*packed->linear(op), *widened->linear(op));
      }
    }
  }
}

TEST(FormThatFitsTest, AutoPacksWhatWouldNotFitAsBF16) {
  EXPECT_EQ(FormThatFits(WeightForm::kAuto, 100, 100), WeightForm::kAuto);
  EXPECT_EQ(FormThatFits(WeightForm::kAuto, 101, 100), WeightForm::kPacked);
  EXPECT_EQ(FormThatFits(WeightForm::kBF16, 101, 100), WeightForm::kBF16);
}

// Linux kills a node that takes more than its control group has, however much the host has.
TEST(WeightRoomTest, IsTheBudgetElseWhatTheProcessMayStillTake) {
  const std::string root = testing::TempDir() + "weight_room_" + std::to_string(getpid());
  std::filesystem::create_directories(root + "/proc/self");
  std::filesystem::create_directories(root + "/sys/fs/cgroup/pod");
  std::ofstream(root + "/proc/meminfo") << "MemTotal: 64000 kB\nMemAvailable: 100 kB\n";
  EXPECT_EQ(WeightRoom(5000, root), 5000u);
  EXPECT_EQ(WeightRoom(0, root), 100u << 10);
  std::ofstream(root + "/proc/self/cgroup") << "0::/pod\n";
  std::ofstream(root + "/sys/fs/cgroup/pod/memory.max") << "7000\n";
  EXPECT_EQ(WeightRoom(0, root), 7000u);
  std::filesystem::remove_all(root);
}

// Models have no subnormal weights, whose products take many times as long on some processors.
TEST(BlocksToMeasureTest, WeightsAreFiniteAndNormal) {
  for (const kernels::BlockTypeInfo& info : kernels::FileBlockTypes()) {
    const model::GgufTensorType* type = model::FindGgufTensorType(info.name);
    ASSERT_NE(type, nullptr) << info.name;
    constexpr size_t kBlocks = 100;
    const std::vector<uint8_t> bytes = BlocksToMeasure(info, kBlocks);
    std::vector<float> weights(info.elements);
    for (size_t block = 0; block < kBlocks; ++block) {
      type->dequantize(bytes.data() + block * info.bytes, weights.data());
      for (const float weight : weights) {
        ASSERT_TRUE(weight == 0 || std::isnormal(weight)) << info.name << " " << weight;
      }
    }
  }
}

// 12.6 MB each as bf16.
TEST(CopiesToMeasureTest, AreMoreThanTheLastCachesHave) {
  EXPECT_EQ(CopiesToMeasure(0, UINT64_MAX), 5u);
  EXPECT_EQ(CopiesToMeasure(uint64_t{32} << 20, UINT64_MAX), 5u);
  EXPECT_EQ(CopiesToMeasure(uint64_t{105} << 20, UINT64_MAX), 17u);
  EXPECT_EQ(CopiesToMeasure(uint64_t{1152} << 20, UINT64_MAX), 40u);
}

TEST(CopiesToMeasureTest, AreFewerWhereMemoryIsScarce) {
  EXPECT_EQ(CopiesToMeasure(uint64_t{1152} << 20, uint64_t{1} << 30), 10u);
  EXPECT_EQ(CopiesToMeasure(uint64_t{1152} << 20, 0), 5u);
}

TEST(PackedPaysTest, WhereDecodingTakesAtMostATenthLonger) {
  const FormTimes little = {.packed = {1, 1, 4.5}, .bf16 = {2, 2, 2}};
  const FormTimes more = {.packed = {1, 1, 4.7}, .bf16 = {2, 2, 2}};
  EXPECT_TRUE(PackedPays({little}));
  EXPECT_FALSE(PackedPays({more}));
}

// Slow rounds have a ratio of 0.9, fast ones of 1.3, so that their geometric mean is 1.08.
TEST(PackedPaysTest, SlowRoundsAndFastOnesCountAlikeHoweverManyThereAre) {
  const FormTimes slow = {.packed = {9, 9, 9}, .bf16 = {10, 10, 10}};
  const FormTimes fast = {.packed = {9.1, 7.8, 6.5}, .bf16 = {7, 6, 5}};
  for (const size_t fast_rounds : {3u, 5u, 7u}) {
    std::vector<FormTimes> rounds(10 - fast_rounds, slow);
    rounds.insert(rounds.end(), fast_rounds, fast);
    EXPECT_NEAR(CompareForms(rounds).ratio, 1.0817, 1e-3) << fast_rounds;
    EXPECT_NEAR(CompareForms(rounds).reads_high / CompareForms(rounds).reads_low, 10.0 / 7, 1e-9);
    EXPECT_TRUE(PackedPays(rounds)) << fast_rounds;
  }
}

TEST(PackedPaysTest, ARoundInWhichSomethingElseRanIsNoMatter) {
  const FormTimes plain = {.packed = {6, 6, 6}, .bf16 = {5, 5, 5}};
  std::vector<FormTimes> rounds(9, plain);
  rounds.push_back({.packed = {6, 6, 6}, .bf16 = {50, 5, 5}});
  EXPECT_NEAR(CompareForms(rounds).ratio, 1.2, 1e-9);
  EXPECT_NEAR(CompareForms(rounds).by_rows[0], 1.2, 1e-9);
  EXPECT_FALSE(PackedPays(rounds));
}

TEST(EnoughRoundsTest, AFewWhereEachIsClearElseTen) {
  const FormTimes longer = {.packed = {6.5, 6.5, 6.5}, .bf16 = {5, 5, 5}};
  const FormTimes shorter = {.packed = {3.5, 3.5, 3.5}, .bf16 = {5, 5, 5}};
  const FormTimes close = {.packed = {6, 6, 6}, .bf16 = {5, 5, 5}};
  std::vector<FormTimes> rounds(3, longer);
  EXPECT_FALSE(EnoughRounds({}));
  EXPECT_FALSE(EnoughRounds(rounds));
  rounds.push_back(longer);
  EXPECT_TRUE(EnoughRounds(rounds));
  EXPECT_TRUE(EnoughRounds(std::vector<FormTimes>(4, shorter)));
  rounds.back() = close;
  EXPECT_FALSE(EnoughRounds(rounds)) << "one of them is not clear";
  rounds.back() = shorter;
  EXPECT_FALSE(EnoughRounds(rounds)) << "they contradict each other";
  EXPECT_FALSE(EnoughRounds(std::vector<FormTimes>(9, close)));
  EXPECT_TRUE(EnoughRounds(std::vector<FormTimes>(10, close)));
}

// A product takes the longer of its bytes at the reads of its moment and its arithmetic, and noise.
class PlantedRounds {
 public:
  explicit PlantedRounds(uint32_t seed) : random_(seed) {}

  // From 0 to 1.
  double Uniform() { return static_cast<double>(random_()) / static_cast<double>(random_.max()); }

  FormTimes Round(bool fast) {
    const double reads = fast ? 63e9 : 37e9;
    FormTimes round;
    for (size_t i = 0; i < kBF16.size(); ++i) {
      round.bf16[i] = std::max(12.6e6 / reads, kBF16[i]) * (0.97 + 0.06 * Uniform());
      round.packed[i] = std::max(6.7e6 / reads, kPacked[i]) * (0.97 + 0.06 * Uniform());
    }
    return round;
  }

 private:
  static constexpr std::array<double, 3> kBF16 = {5e-5, 1e-4, 4e-4};
  static constexpr std::array<double, 3> kPacked = {2.0e-4, 2.5e-4, 5.3e-4};
  std::mt19937 random_;
};

// The rule of before: the best time of each form, and the ratio of their sums.
bool PaysByBestTimes(const std::vector<FormTimes>& rounds) {
  FormTimes best = rounds.front();
  for (const FormTimes& round : rounds) {
    for (size_t i = 0; i < best.packed.size(); ++i) {
      best.packed[i] = std::min(best.packed[i], round.packed[i]);
      best.bf16[i] = std::min(best.bf16[i], round.bf16[i]);
    }
  }
  return PackedPays({best});
}

// Packed weights take 0.91 of the time of bf16 while reads are slow, 1.22 while they are fast.
TEST(PackedPaysTest, TheFormIsTheSameInEachStartHoweverManyRoundsWereFast) {
  std::set<bool> by_pairs;
  std::set<bool> by_best_times;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    PlantedRounds planted(seed);
    const auto fast_rounds = static_cast<size_t>(8 * planted.Uniform());  // Mostly 0 to 7 of ten.
    std::vector<FormTimes> rounds;
    for (size_t i = 0; i < 10; ++i) {
      rounds.push_back(planted.Round(i < fast_rounds));
    }
    if (fast_rounds < 8) {
      by_pairs.insert(PackedPays(rounds));
      by_best_times.insert(PaysByBestTimes(rounds));
    }
  }
  EXPECT_THAT(by_pairs, ElementsAre(true));
  EXPECT_THAT(by_best_times, ElementsAre(false, true)) << "or there is nothing to be had by pairs";
}

}  // namespace
}  // namespace lamina::compute_node
