// SPDX-License-Identifier: Apache-2.0
//
// Thousands of damaged models, made from good ones by seeded mutations: each either opens, and then
// all of its weights can be read, or gives a Status that says something. Nothing crashes, hangs, or
// allocates far more than the file is large. CTest's timeout catches a hang; the sanitizer presets
// catch reads outside.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "model/inspect.h"
#include "model/model.h"
#include "tests/support/random_model.h"

namespace {

std::atomic<size_t> largest_allocation{0};

void* CountedAllocation(size_t size) {
  size_t largest = largest_allocation.load(std::memory_order_relaxed);
  while (size > largest && !largest_allocation.compare_exchange_weak(largest, size)) {
  }
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) {
    std::abort();  // A test with an allocation that large has failed.
  }
  return memory;
}

}  // namespace

// Every allocation of this program, to find the largest.
void* operator new(size_t size) { return CountedAllocation(size); }
void* operator new[](size_t size) { return CountedAllocation(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return CountedAllocation(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return CountedAllocation(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace lamina::model {
namespace {

using test_support::RandomModelSpec;

constexpr int kMutations = 4000;
// Parsed JSON takes some hundred bytes for each value; everything else is below the file's size.
constexpr size_t kAllocationMax = size_t{1} << 22;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t Below(size_t bound) { return random_() % bound; }

  // Changes `bytes`, mostly within the first `header` of them.
  void Mutate(std::string& bytes, size_t header) {
    const size_t changes = 1 + Below(4);
    for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
      const size_t bound = std::min(Below(10) == 0 ? bytes.size() : header, bytes.size());
      MutateAt(bytes, Below(std::max<size_t>(bound, 1)));
    }
  }

 private:
  void MutateAt(std::string& bytes, size_t at) {
    switch (Below(8)) {
      case 0:
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        Overwrite<uint32_t>(bytes, at);
        break;
      case 4:
        Overwrite<uint64_t>(bytes, at);
        break;
      case 5:
        bytes.erase(at, 1 + Below(16));
        break;
      case 6:
        bytes.insert(at, bytes.substr(Below(bytes.size()), 1 + Below(16)));
        break;
      case 7:
        EditDigit(bytes, at);
        break;
    }
  }

  template <typename T>
  void Overwrite(std::string& bytes, size_t at) {
    static constexpr uint64_t kValues[] = {0,
                                           1,
                                           2,
                                           3,
                                           9,
                                           12,
                                           31,
                                           255,
                                           1u << 16,
                                           0x7fffffff,
                                           0x80000000,
                                           0xffffffff,
                                           uint64_t{1} << 32,
                                           uint64_t{1} << 47,
                                           uint64_t{1} << 62,
                                           ~uint64_t{0},
                                           ~uint64_t{0} >> 1};
    const T value = static_cast<T>(kValues[Below(std::size(kValues))] + Below(2));
    std::memcpy(bytes.data() + at, &value, std::min(sizeof(T), bytes.size() - at));
  }

  // The next digit of a text becomes another number.
  void EditDigit(std::string& bytes, size_t at) {
    static constexpr const char* kNumbers[] = {
        "0",    "1",  "7",  "64",    "-1",  "1e99", "0.5", "65536", "99999999999999999999",
        "null", "{}", "[]", "\"x\"", "true"};
    const size_t digit = bytes.find_first_of("0123456789", at);
    if (digit != std::string::npos) {
      bytes.replace(digit, 1, kNumbers[Below(std::size(kNumbers))]);
    }
  }

  std::mt19937_64 random_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

void WriteFile(const std::string& path, const std::string& content) {
  // A new file each time: some file systems flush one that was cut to nothing when it is closed.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << content;
}

class ModelMutation : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/model_mutation_",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Opens it and reads all there is.
  void Exercise(const std::string& path) {
    largest_allocation = 0;
    const absl::StatusOr<Model> model = OpenModel(path);
    ASSERT_LE(largest_allocation.load(), kAllocationMax);
    if (!model.ok()) {
      ASSERT_FALSE(model.status().message().empty());
      ++refused_;
      return;
    }
    ++opened_;
    const ModelSummary summary = Inspect(*model);
    ASSERT_GT(summary.parameters, 0u);
    for (WeightId id = 0; id < model->graph.weights.size(); ++id) {
      const Weight& weight = model->graph.weights[id];
      ASSERT_LE(uint64_t{weight.rows} * weight.cols, kAllocationMax);
      std::vector<float> values(size_t{weight.rows} * weight.cols);
      const absl::Status status = ReadWeight(*model, id, absl::MakeSpan(values));
      ASSERT_TRUE(status.ok()) << status;  // OpenModel has checked it.
    }
  }

  void MutateGguf(const RandomModelSpec& spec, const char* type, uint64_t seed) {
    const std::string path = directory_ + "/model.gguf";
    ASSERT_TRUE(WriteRandomGguf(spec, path, type).ok());
    const std::string good = ReadFile(path);
    const size_t header = good.find("output_norm.weight") + 100;
    for (int i = 0; i < kMutations; ++i) {
      SCOPED_TRACE(absl::StrCat("mutation ", i));
      Mutator mutator(seed + static_cast<uint64_t>(i));
      std::string bad = good;
      // Half of them behind the tokenizer, where the shapes are.
      if (mutator.Below(2) == 0) {
        mutator.Mutate(bad, header);
      } else {
        std::string tail = bad.substr(header - 1200);
        mutator.Mutate(tail, 1200);
        bad.replace(header - 1200, std::string::npos, tail);
      }
      WriteFile(path, bad);
      ASSERT_NO_FATAL_FAILURE(Exercise(path));
    }
  }

  // Mutates one file of the directory.
  void MutateFile(const std::string& name, size_t header, uint64_t seed, int mutations) {
    const std::string path = absl::StrCat(directory_, "/", name);
    const std::string good = ReadFile(path);
    for (int i = 0; i < mutations; ++i) {
      SCOPED_TRACE(absl::StrCat(name, " mutation ", i));
      Mutator mutator(seed + static_cast<uint64_t>(i));
      std::string bad = good;
      mutator.Mutate(bad, std::min(header, bad.size()));
      WriteFile(path, bad);
      ASSERT_NO_FATAL_FAILURE(Exercise(directory_));
    }
    WriteFile(path, good);
  }

  // Mutations that never open a model, or always do, would test nothing.
  void ExpectBothOutcomes() const {
    EXPECT_GT(refused_, 100);
    EXPECT_GT(opened_, 100);
  }

  std::string directory_;
  int opened_ = 0;
  int refused_ = 0;
};

constexpr uint32_t kSmallVocabulary = 280;

TEST_F(ModelMutation, GgufF32) {
  MutateGguf({.layers = 1,
              .width = 32,
              .ffn_width = 32,
              .query_heads = 2,
              .kv_heads = 1,
              .vocabulary = kSmallVocabulary},
             "F32", 1'000'000);
  ExpectBothOutcomes();
}

TEST_F(ModelMutation, GgufQ8) {
  MutateGguf({.layers = 2,
              .width = 32,
              .ffn_width = 64,
              .query_heads = 2,
              .kv_heads = 2,
              .vocabulary = kSmallVocabulary,
              .tied = true},
             "Q8_0", 2'000'000);
  ExpectBothOutcomes();
}

TEST_F(ModelMutation, HuggingFaceDirectories) {
  const std::vector<RandomModelSpec> specs = {
      {.layers = 1,
       .width = 32,
       .ffn_width = 32,
       .query_heads = 2,
       .kv_heads = 1,
       .vocabulary = 64,
       .rope_scaling = R"("rope_type":"llama3","factor":2.0,"low_freq_factor":1.0,)"
                       R"("high_freq_factor":4.0,"original_max_position_embeddings":64)"},
      {.model_type = "qwen2",
       .layers = 1,
       .width = 32,
       .ffn_width = 32,
       .query_heads = 2,
       .kv_heads = 1,
       .vocabulary = 64,
       .window = 8,
       .rope_scaling = R"("rope_type":"yarn","factor":2.0,"original_max_position_embeddings":64)"},
      {.model_type = "opt",
       .layers = 1,
       .width = 32,
       .ffn_width = 32,
       .query_heads = 2,
       .kv_heads = 2,
       .vocabulary = 64,
       .positions_max = 32,
       .activation = "relu"},
      {.model_type = "gpt_neox",
       .layers = 1,
       .width = 32,
       .ffn_width = 32,
       .query_heads = 2,
       .kv_heads = 2,
       .vocabulary = 64,
       .attention_bias = true,
       .activation = "gelu"},
  };
  uint64_t seed = 3'000'000;
  for (const RandomModelSpec& spec : specs) {
    ASSERT_TRUE(test_support::WriteRandomModel(spec, directory_).ok());
    ASSERT_NO_FATAL_FAILURE(MutateFile("config.json", 1000, seed, kMutations / 2));
    ASSERT_NO_FATAL_FAILURE(MutateFile("model.safetensors", 1000, seed + 500'000, kMutations / 2));
    seed += 1'000'000;
  }
  ExpectBothOutcomes();
}

TEST_F(ModelMutation, SafetensorsIndex) {
  ASSERT_TRUE(test_support::WriteRandomModel({.layers = 1,
                                              .width = 32,
                                              .ffn_width = 32,
                                              .query_heads = 2,
                                              .kv_heads = 1,
                                              .vocabulary = 64},
                                             directory_)
                  .ok());
  WriteFile(directory_ + "/model.safetensors.index.json",
            R"({"metadata":{"total_size":1},"weight_map":{"lm_head.weight":"model.safetensors",)"
            R"("model.norm.weight":"model.safetensors"}})");
  MutateFile("model.safetensors.index.json", 1000, 9'000'000, kMutations / 2);
  ExpectBothOutcomes();
}

}  // namespace
}  // namespace lamina::model
