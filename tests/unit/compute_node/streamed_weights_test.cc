// SPDX-License-Identifier: Apache-2.0
#include "compute_node/streamed_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/shared_bus.h"
#include "compute_node/weight_form.h"
#include "compute_node/weight_store.h"
#include "kernels/attention.h"
#include "tests/unit/compute_node/block_source.h"
#include "tests/unit/compute_node/slice_program.h"
#include "tests/unit/compute_node/step_run.h"

namespace lamina::compute_node {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr uint64_t kAll = uint64_t{1} << 40;

// --- which slices stream ---------------------------------------------------------------------

std::vector<bool> Chosen(const std::vector<uint64_t>& bytes, uint64_t fixed, uint32_t slots,
                         uint64_t budget) {
  auto chosen = ChooseStreamed(bytes, fixed, slots, budget);
  EXPECT_TRUE(chosen.ok()) << chosen.status();
  return chosen.ok() ? *chosen : std::vector<bool>();
}

TEST(ChooseStreamedTest, NoneWhereAllFit) {
  EXPECT_THAT(Chosen({10, 10, 0}, 5, 2, 25), ElementsAre(false, false, false));
}

TEST(ChooseStreamedTest, AsFewAsNeededEvenlySpread) {
  // 5 stay, two slots take 20, and there is room for two of four.
  EXPECT_THAT(Chosen({10, 10, 10, 10, 0}, 5, 2, 45 - 1),
              ElementsAre(false, true, true, true, false));
  EXPECT_THAT(Chosen({10, 10, 10, 10, 10, 10, 0}, 5, 2, 55),
              ElementsAre(false, true, false, true, false, true, false));
}

TEST(ChooseStreamedTest, ABudgetWithoutRoomForTheSlotsIsRefused) {
  const auto chosen = ChooseStreamed({10 << 20, 20 << 20}, 5 << 20, 2, 45 << 20);
  EXPECT_TRUE(chosen.ok()) << chosen.status();
  const auto refused = ChooseStreamed({20 << 20, 20 << 20, 20 << 20}, 5 << 20, 2, 44 << 20);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().ToString(),
              HasSubstr("weights_budget 44.0 MiB is less than 45.0 MiB"));
  EXPECT_THAT(refused.status().ToString(), HasSubstr("5.0 MiB of embeddings"));
  EXPECT_THAT(refused.status().ToString(), HasSubstr("2 slots of 20.0 MiB"));
}

TEST(ChooseStreamedTest, AnyChoiceFitsAndNoneSmallerWould) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<uint64_t> bytes(2 + random() % 20);
    for (uint64_t& slice : bytes) {
      slice = random() % 4 == 0 ? 0 : 1 + random() % 100;
    }
    const uint64_t fixed = random() % 100;
    const uint64_t largest = *std::max_element(bytes.begin(), bytes.end());
    const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), fixed);
    const uint64_t budget = fixed + 2 * largest + random() % (all + 1);
    const std::vector<bool> chosen = Chosen(bytes, fixed, 2, budget);
    uint64_t resident = fixed;
    bool any = false;
    for (size_t i = 0; i < bytes.size(); ++i) {
      resident += chosen[i] ? 0 : bytes[i];
      any = any || chosen[i];
      EXPECT_FALSE(chosen[i] && bytes[i] == 0) << "seed " << seed;
    }
    EXPECT_EQ(any, all > budget) << "seed " << seed;
    EXPECT_LE(resident + (any ? 2 * largest : 0), budget) << "seed " << seed;
  }
}

// --- the store -------------------------------------------------------------------------------

TEST(WeightStoreTest, BytesComeBackAndNoNameIsLeft) {
  const std::string directory = testing::TempDir() + "/weight_store";
  std::filesystem::create_directories(directory);
  auto store = WeightStore::Create(directory);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::vector<std::byte> first(1000, std::byte{3});
  std::vector<std::byte> second(70'000, std::byte{7});
  EXPECT_EQ(*(*store)->Append(first), 0u);
  EXPECT_EQ(*(*store)->Append(second), 1000u);
  EXPECT_EQ((*store)->bytes(), 71'000u);

  std::vector<std::byte> read(70'001);
  ASSERT_TRUE((*store)->Read(999, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read[0], std::byte{3});
  EXPECT_EQ(std::count(read.begin() + 1, read.end(), std::byte{7}), 70'000);
  EXPECT_EQ((*store)->Read(1000, absl::MakeSpan(read)).code(), absl::StatusCode::kDataLoss);
}

// A limit of the process stands in for a disk that is full.
TEST(WeightStoreTest, AFileThatCannotGrowIsAnErrorAndKeepsWhatItHas) {
  auto store = WeightStore::Create(testing::TempDir());
  ASSERT_TRUE(store.ok()) << store.status();
  const std::vector<std::byte> first(1000, std::byte{3});
  ASSERT_TRUE((*store)->Append(first).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto second = (*store)->Append(std::vector<std::byte>(10'000, std::byte{7}));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);

  EXPECT_THAT(second.status().ToString(),
              testing::AllOf(HasSubstr("cannot write"), HasSubstr("File too large")));
  EXPECT_EQ((*store)->bytes(), 1000u);
  std::vector<std::byte> read(1000);
  ASSERT_TRUE((*store)->Read(0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, first);
}

TEST(WeightStoreTest, AFolderThatIsNotThereIsNamed) {
  const auto store = WeightStore::Create("/nowhere/at/all");
  EXPECT_THAT(store.status().ToString(), HasSubstr("weights_store /nowhere/at/all"));
}

// --- steps -----------------------------------------------------------------------------------

// A file that has been cut short.
class EndingSource final : public model::WeightSource {
 public:
  EndingSource(const model::WeightSource& source, int reads) : source_(source), left_(reads) {}

  const std::vector<model::TensorInfo>& tensors() const override { return source_.tensors(); }
  const model::TensorInfo* Find(absl::string_view name) const override {
    return source_.Find(name);
  }
  absl::Status Read(absl::string_view name, uint64_t first, absl::Span<float> out) const override {
    return left_-- > 0 ? source_.Read(name, first, out) : absl::DataLossError("it ends here");
  }

 private:
  const model::WeightSource& source_;
  mutable int left_;
};

class StreamedWeightsTest : public testing::TestWithParam<DType> {
 protected:
  std::vector<model::OpId> Ops(const SliceProgram& program) const {
    return program.OpsOf(0, program.slice_count());
  }

  absl::Status Load(Program& program, StreamedWeights& weights) {
    const SliceProgram& slices = program.executor().program();
    return weights.Load(slices, *program.model().weights, Ops(slices), [](double) {});
  }
};

TEST_P(StreamedWeightsTest, StepsHaveTheBitsOfResidentWeights) {
  for (const char* type : {"llama", "qwen2", "opt", "gpt_neox_parallel", "gpt_neox_sequential"}) {
    SCOPED_TRACE(type);
    test_support::RandomModelSpec spec = Spec(type);
    spec.layers = 8;
    Program program(spec, GetParam());
    kernels::ComputeDevice& device = program.executor().device();
    const std::vector<float> expected = RunStep(program.executor());
    const uint64_t all = program.executor().weight_source().weights().bytes();
    // Half of it is little more than two slots.
    for (const auto& [percent, kv_first, ahead] :
         {std::tuple(70u, false, 1u), std::tuple(50u, false, 1u), std::tuple(50u, true, 1u),
          std::tuple(45u, true, 0u), std::tuple(45u, false, 0u)}) {
      const auto bus = *SharedBus::Open(absl::StrCat("weights-", getpid()), 1'000'000'000'000);
      StreamedWeights weights(device, {.budget = all * percent / 100,
                                       .directory = testing::TempDir(),
                                       .ahead = ahead,
                                       .bus = bus,
                                       .kv_first = kv_first});
      const absl::Status loaded = Load(program, weights);
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_THAT(weights.Describe(),
                  HasSubstr(ahead == 0 ? "through one slot; all are" : "through 2 slots; all are"));
      EXPECT_LE(weights.bytes(), all * percent / 100);
      const auto executor =
          SliceExecutor::Create(program.model().graph, weights, device, /*head_columns=*/64);
      ASSERT_TRUE(executor.ok()) << executor.status();
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(RunStep(**executor), expected) << percent;
      }
      weights.Drop();  // Nothing comes any more.
      EXPECT_GT(bus->bytes(), 0u);
      EXPECT_EQ(bus->Totals().bytes[static_cast<size_t>(BusKind::kWeights)], bus->bytes());
    }
  }
}

// In one slot the next slice comes when the last one has been given back, and not before.
TEST_P(StreamedWeightsTest, NothingComesAheadOfASliceThatIsHeld) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 8;
  Program program(spec, GetParam());
  const uint64_t all = program.executor().weight_source().weights().bytes();
  const auto bus = *SharedBus::Open(absl::StrCat("ahead-", getpid()), 20'000'000);
  StreamedWeights weights(
      program.executor().device(),
      {.budget = all * 5 / 10, .directory = testing::TempDir(), .ahead = 0, .bus = bus});
  ASSERT_TRUE(Load(program, weights).ok());
  uint32_t slice = 0;
  while (weights.Ask(slice)->here) {  // It stays.
    weights.Release(slice++);
  }
  ASSERT_TRUE(AskAndWait(weights, slice).ok());
  const uint64_t held = bus->bytes();
  ASSERT_TRUE(AskAndWait(weights, slice).ok());
  weights.Release(slice);
  EXPECT_EQ(bus->bytes(), held) << "somebody holds it still";
  weights.Release(slice);
  const Nanos deadline = RealClock().Now() + Seconds(60);  // Only a failure waits for it.
  while (bus->bytes() == held && RealClock().Now() < deadline) {
  }
  EXPECT_GT(bus->bytes(), held) << "though nobody has asked for the next one";
}

// K and V of some rows, by the products that make them again.
std::vector<BFloat16> MadeAgain(SliceExecutor& executor, uint32_t slice, size_t first_column) {
  constexpr size_t kRows = 3;
  ValueBuffers buffers = *executor.MakeBuffers(kRows);
  const std::vector<uint32_t> ids(kRows, 1);
  const std::vector<uint32_t> positions = {0, 7, 30};
  EXPECT_TRUE(executor.SetRows({ids, positions}, buffers).ok());
  const auto in = buffers.Activations(KvInputOf(executor.program(), slice), kRows);
  std::mt19937_64 random(slice);
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t col = 0; col < in.cols; ++col) {
      const float value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
      if (in.dtype == DType::kBF16) {
        (static_cast<BFloat16*>(in.data) + row * in.stride)[col] = ToBFloat16(value);
      } else {
        (static_cast<float*>(in.data) + row * in.stride)[col] = value;
      }
    }
  }
  executor.RunKvOps(slice, first_column, buffers);
  std::vector<BFloat16> made;
  const auto qkv = executor.QkvRows(slice, kRows, buffers);
  for (size_t row = 0; row < kRows; ++row) {
    made.insert(made.end(), qkv.row(row) + first_column, qkv.row(row) + qkv.cols);
  }
  return made;
}

bool SameBits(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(BFloat16)) == 0;
}

// Over a bus so slow that nobody misses the time between.
TEST_P(StreamedWeightsTest, KAndVCanBeMadeWhileTheRestComes) {
  for (const auto& [type, kv_first] :
       {std::pair("llama", true), std::pair("llama", false), std::pair("opt", true),
        std::pair("gpt_neox_parallel", true)}) {
    SCOPED_TRACE(absl::StrCat(type, kv_first ? ", k and v first" : ", in order"));
    test_support::RandomModelSpec spec = Spec(type);
    spec.layers = 8;
    Program program(spec, GetParam());
    SliceExecutor& resident = program.executor();
    const auto bus = *SharedBus::Open(absl::StrCat("slow-", getpid()), 2'000'000);
    StreamedWeights weights(resident.device(),
                            {.budget = resident.weight_source().weights().bytes() * 6 / 10,
                             .directory = testing::TempDir(),
                             .bus = bus,
                             .kv_first = kv_first});
    ASSERT_TRUE(Load(program, weights).ok());
    const auto executor =
        SliceExecutor::Create(program.model().graph, weights, resident.device(), 64);
    ASSERT_TRUE(executor.ok()) << executor.status();
    uint32_t seen = 0;
    for (uint32_t slice = 0; slice + 1 < resident.slice_count() && seen < 2; ++slice) {
      const size_t first = resident.attention(slice).descriptor.q_width() / 64 * 64;
      const std::vector<BFloat16> expected = MadeAgain(resident, slice, first);
      for (bool here = false, made = false; !here; here = weights.Ask(slice)->here) {
        if (!made && weights.KvHere(slice, first)) {
          EXPECT_FALSE(weights.KvHere(slice, 0)) << "queries come behind them";
          EXPECT_TRUE(SameBits(MadeAgain(**executor, slice, first), expected));
          made = true;
          ++seen;
        }
      }
      EXPECT_FALSE(weights.KvHere(slice, first)) << "Ask() has found all of them";
      EXPECT_TRUE(SameBits(MadeAgain(**executor, slice, first), expected));
      weights.Release(slice);
    }
    EXPECT_EQ(seen, kv_first ? 2u : 0u);
  }
}

// Experts of a layer come together.
TEST_P(StreamedWeightsTest, MixturesOfExpertsHaveTheBitsOfResidentWeights) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.model_type = "mixtral";
  spec.layers = 6;
  spec.experts = 4;
  spec.experts_per_token = 2;
  Program program(spec, GetParam());
  kernels::ComputeDevice& device = program.executor().device();
  const std::vector<float> expected = RunStep(program.executor());
  const uint64_t all = program.executor().weight_source().weights().bytes();
  StreamedWeights weights(device, {.budget = all * 6 / 10, .directory = testing::TempDir()});
  const absl::Status loaded = Load(program, weights);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_THAT(weights.Describe(), HasSubstr("through 2 slots"));
  const auto executor =
      SliceExecutor::Create(program.model().graph, weights, device, /*head_columns=*/64);
  ASSERT_TRUE(executor.ok()) << executor.status();
  EXPECT_EQ(RunStep(**executor), expected);
}

// What was there before is gone too.
TEST_P(StreamedWeightsTest, NothingIsThereAfterAnError) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 8;
  Program program(spec, GetParam());
  const uint64_t all = program.executor().weight_source().weights().bytes();
  StreamedWeights weights(program.executor().device(),
                          {.budget = all * 7 / 10, .directory = testing::TempDir()});
  ASSERT_TRUE(Load(program, weights).ok());
  const SliceProgram& slices = program.executor().program();
  const EndingSource ends(*program.model().weights, /*reads=*/20);
  const absl::Status cut = weights.Load(slices, ends, Ops(slices), [](double) {});
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss) << cut;
  EXPECT_EQ(weights.bytes(), 0u);
  EXPECT_EQ(weights.Describe(), "");
  EXPECT_TRUE(Load(program, weights).ok());
}

TEST_P(StreamedWeightsTest, ALargeBudgetKeepsAllWeights) {
  Program program(Spec("llama"), GetParam());
  StreamedWeights weights(program.executor().device(), {.budget = kAll, .directory = "/nowhere"});
  ASSERT_TRUE(Load(program, weights).ok());
  EXPECT_THAT(weights.Describe(), StartsWith(DTypeName(GetParam())));
  EXPECT_EQ(weights.bytes(), program.executor().weight_source().weights().bytes());
  for (const uint32_t slice : {2u, 0u, 0u, 3u}) {
    EXPECT_TRUE(weights.Ask(slice)->here);
    weights.Release(slice);
  }
}

TEST_P(StreamedWeightsTest, AStoreThatCannotBeMadeIsAnError) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 8;
  Program program(spec, GetParam());
  const uint64_t all = program.executor().weight_source().weights().bytes();
  StreamedWeights weights(program.executor().device(),
                          {.budget = all * 7 / 10, .directory = "/nowhere/at/all"});
  EXPECT_THAT(Load(program, weights).ToString(), HasSubstr("weights_store /nowhere/at/all"));
}

// Lanes at random paces. Each slice comes once for all of them, and the slowest is never starved.
TEST_P(StreamedWeightsTest, LanesThatGoTogetherShareWhatComes) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 8;
  Program program(spec, GetParam());
  const uint64_t all = program.executor().weight_source().weights().bytes();
  const uint32_t slices = program.executor().slice_count();
  for (const uint32_t lanes : {2u, 5u}) {
    const auto bus =
        *SharedBus::Open(absl::StrCat("lanes-", lanes, "-", getpid()), 1'000'000'000'000);
    StreamedWeights weights(
        program.executor().device(),
        {.budget = all * 7 / 10, .lanes = lanes, .directory = testing::TempDir(), .bus = bus});
    ASSERT_TRUE(Load(program, weights).ok());
    EXPECT_THAT(weights.Describe(), HasSubstr("through 3 slots"));
    std::mt19937_64 random(1);
    uint64_t first_round = 0;
    constexpr int kRounds = 20;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<uint32_t> at(lanes, 0);  // Slices that are to run next.
      while (*std::min_element(at.begin(), at.end()) < slices) {
        uint32_t& slice = at[random() % lanes];
        if (slice == slices) {
          continue;
        }
        weights.SetEarliest(*std::min_element(at.begin(), at.end()));
        const auto wait = weights.Ask(slice);
        ASSERT_TRUE(wait.ok()) << wait.status();
        if (wait->here) {
          weights.Release(slice++);
        }
      }
      first_round = round == 0 ? bus->bytes() : first_round;
    }
    // One more, for what comes ahead of the round behind the last one.
    EXPECT_LE(bus->bytes(), (kRounds + 1) * first_round) << lanes;
    EXPECT_GT(first_round, 0u);
  }
}

// Two lanes, each of which holds its slice while it waits for the next one.
void RunLanesThatHold(StreamedWeights& weights, uint32_t slices) {
  const auto await = [&](uint32_t slice, uint32_t earliest) {
    const Nanos deadline = RealClock().Now() + Seconds(60);  // Only a failure waits for it.
    weights.SetEarliest(earliest);
    while (!weights.Ask(slice)->here) {
      ASSERT_LT(RealClock().Now(), deadline) << slice;
      weights.SetEarliest(earliest);
    }
  };
  for (int round = 0; round < 20; ++round) {
    await(0, 0);
    for (uint32_t slice = 1; slice < slices; ++slice) {
      await(slice, slice - 1);
      await(slice - 1, slice - 1);
      weights.Release(slice - 1);
      weights.Release(slice - 1);
    }
    weights.Release(slices - 1);
  }
}

TEST_P(StreamedWeightsTest, LanesThatHoldSlicesDoNotStarve) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 8;
  Program program(spec, GetParam());
  const uint64_t all = program.executor().weight_source().weights().bytes();
  for (const uint32_t ahead : {1u, 0u}) {
    StreamedWeights weights(
        program.executor().device(),
        {.budget = all * 7 / 10, .lanes = 2, .directory = testing::TempDir(), .ahead = ahead});
    ASSERT_TRUE(Load(program, weights).ok());
    RunLanesThatHold(weights, program.executor().slice_count());
  }
}

// What is asked for out of turn, as before the first step.
TEST_P(StreamedWeightsTest, AnySliceComesWhenItIsWaitedFor) {
  test_support::RandomModelSpec spec = Spec("llama");
  spec.layers = 8;
  Program program(spec, GetParam());
  const uint64_t all = program.executor().weight_source().weights().bytes();
  StreamedWeights weights(program.executor().device(),
                          {.budget = all * 7 / 10, .lanes = 3, .directory = testing::TempDir()});
  ASSERT_TRUE(Load(program, weights).ok());
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    const auto slice = static_cast<uint32_t>(random() % program.executor().slice_count());
    ASSERT_TRUE(AskAndWait(weights, slice).ok());
    weights.Release(slice);
  }
}

INSTANTIATE_TEST_SUITE_P(ComputeTypes, StreamedWeightsTest,
                         testing::Values(DType::kBF16, DType::kF32),
                         [](const auto& test) { return std::string(DTypeName(test.param)); });

// --- forms -----------------------------------------------------------------------------------

std::unique_ptr<kernels::ComputeDevice> Processor(ThreadPool& pool) {
  auto dense = kernels::MakeCpuDense({.compute_type = DType::kBF16, .pool = &pool});
  EXPECT_TRUE(dense.ok()) << dense.status();
  return kernels::MakeCpuComputeDevice(*std::move(dense), kernels::CpuAttention(), pool);
}

// A type of GGUF blocks, or "int8".
class StreamedFormsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    test_support::RandomModelSpec spec = Spec("llama");
    spec.layers = 8;
    spec.width = 256;
    spec.ffn_width = 512;
    spec.query_heads = 16;
    spec.tied = true;
    program_.emplace(spec, DType::kBF16, UINT32_MAX, Processor);
    if (device().dense().description().find("onednn") != std::string::npos) {
      GTEST_SKIP() << "oneDNN multiplies here, which takes no blocks";
    }
    UseBlocks("");
  }

  void UseBlocks(const std::string& spoiled) {
    if (form() == WeightForm::kPacked) {
      blocks_.emplace(*program_->model().weights, *model::FindGgufTensorType(GetParam()), spoiled);
    }
  }

  static WeightForm form() {
    return GetParam() == std::string("int8") ? WeightForm::kInt8 : WeightForm::kPacked;
  }
  kernels::ComputeDevice& device() { return program_->executor().device(); }
  const SliceProgram& slices() { return program_->executor().program(); }

  absl::Status Load(HeldWeights& weights) {
    const model::WeightSource& source = blocks_.has_value()
                                            ? static_cast<const model::WeightSource&>(*blocks_)
                                            : *program_->model().weights;
    return weights.Load(slices(), source, slices().OpsOf(0, slices().slice_count()), [](double) {});
  }

  std::vector<float> Logits(HeldWeights& weights) {
    const auto executor =
        SliceExecutor::Create(program_->model().graph, weights, device(), /*head_columns=*/64);
    EXPECT_TRUE(executor.ok()) << executor.status();
    return RunStep(**executor);
  }

  std::optional<Program> program_;
  std::optional<BlockSource> blocks_;
};

TEST_P(StreamedFormsTest, StepsHaveTheBitsOfResidentWeightsOfTheForm) {
  ResidentWeights resident(device(), form());
  ASSERT_TRUE(Load(resident).ok());
  const std::vector<float> expected = Logits(resident);
  ResidentWeights widened(device(), WeightForm::kBF16);
  ASSERT_TRUE(Load(widened).ok());
  EXPECT_EQ(Logits(widened) == expected, form() == WeightForm::kPacked);
  for (const uint64_t percent : {80u, 65u}) {
    const uint64_t budget = resident.bytes() * percent / 100;
    StreamedWeights weights(device(),
                            {.budget = budget, .form = form(), .directory = testing::TempDir()});
    const absl::Status loaded = Load(weights);
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_THAT(weights.Describe(),
                testing::AllOf(HasSubstr("through 2 slots; all are "), HasSubstr(GetParam())));
    EXPECT_LE(weights.bytes(), budget);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(Logits(weights), expected) << percent;
    }
  }
}

// The file says nothing of what exactly that will be.
TEST_P(StreamedFormsTest, SizesAreKnownBeforeAnythingIsRead) {
  ResidentWeights resident(device(), form());
  ASSERT_TRUE(Load(resident).ok());
  StreamedWeights all(device(),
                      {.budget = resident.bytes(), .form = form(), .directory = "/nowhere"});
  EXPECT_TRUE(Load(all).ok());
  EXPECT_EQ(all.bytes(), resident.bytes());
  StreamedWeights fewer(device(),
                        {.budget = resident.bytes() - 1, .form = form(), .directory = "/nowhere"});
  EXPECT_THAT(Load(fewer).ToString(), HasSubstr("weights_store /nowhere"));
}

// Weights of which some have to be widened after all: the budget holds, and more slices stream.
TEST_P(StreamedFormsTest, LayersThatAreWidenedStayInTheBudget) {
  if (form() != WeightForm::kPacked) {
    GTEST_SKIP() << "of blocks in files alone";
  }
  ResidentWeights resident(device(), form());
  ASSERT_TRUE(Load(resident).ok());
  const StreamedWeightsOptions options = {
      .budget = resident.bytes() + 1, .form = form(), .directory = testing::TempDir()};
  StreamedWeights all(device(), options);
  ASSERT_TRUE(Load(all).ok());
  EXPECT_THAT(all.Describe(), Not(HasSubstr("slices come")));
  UseBlocks("layers.3.mlp.down");
  StreamedWeights some(device(), options);
  const absl::Status loaded = Load(some);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_THAT(some.Describe(), testing::AllOf(HasSubstr("slices come"), HasSubstr("bf16")));
  EXPECT_LE(some.bytes(), options.budget);
}

INSTANTIATE_TEST_SUITE_P(Types, StreamedFormsTest,
                         testing::Values("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "int8"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace lamina::compute_node
